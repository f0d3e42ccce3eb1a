//! Reading what callgrind has counted, and what grows too fast.

use std::collections::BTreeMap;
use std::path::Path;

use super::meter::SIZES;
use super::table::CALLS;
use super::world::Alive;

/// Allowance of a cost above its power of the size: covers a logarithm, a list that grows, and what threads
/// do beside the call.
const SLACK: f64 = 3.0;

/// The least count of each call at each size.
pub type Counts = BTreeMap<(String, usize), u64>;

/// Reads the files that callgrind has written into `folder`.
pub fn read(folder: &Path) -> std::io::Result<Counts> {
    let mut least = Counts::new();
    for file in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(file?.path())?;
        if let Some((name, n, count)) = of_dump(&text) {
            least.entry((name.to_owned(), n)).and_modify(|least| *least = count.min(*least)).or_insert(count);
        }
    }
    Ok(least)
}

/// Name, size and count of one file.
pub fn of_dump(text: &str) -> Option<(&str, usize, u64)> {
    let of = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let (name, n) = of("desc: Trigger: Client Request: ")?.rsplit_once(" @")?;
    Some((name, n.parse().ok()?, of("totals: ")?.trim().parse().ok()?))
}

/// A line for each call that `alive` was alive for, and whether all are well.
pub fn table(alive: Alive, counts: &Counts) -> (Vec<String>, bool) {
    let mut good = true;
    let made = CALLS.iter().filter(|call| call.is_made_with(alive));
    let lines = made.map(|call| {
        let found: Vec<Option<u64>> =
            SIZES.iter().map(|n| counts.get(&(call.name.to_owned(), *n)).copied()).collect();
        let exponent = call.exponent(alive);
        let told_apart: Vec<_> =
            found.iter().map(|count| count.map(|count| count.max(call.beside))).collect();
        let verdict = verdict(exponent, &told_apart);
        good &= verdict.is_none();
        let shown =
            found.iter().map(|count| format!("{:>12}", count.map_or("-".into(), |count| count.to_string())));
        let verdict = verdict.unwrap_or_default();
        format!("{:<14} {:<30} n^{exponent} {} {verdict}", alive.name(), call.name, shown.collect::<String>())
    });
    let lines = lines.collect();
    (lines, good)
}

/// The fault in the growth of these counts, one for each of [`SIZES`].
pub fn verdict(exponent: u32, found: &[Option<u64>]) -> Option<String> {
    if let Some(missing) = found.iter().position(Option::is_none) {
        return Some(format!("NOT MEASURED in time at {}", SIZES[missing]));
    }
    let points: Vec<(f64, f64)> =
        SIZES.iter().zip(found.iter().flatten()).map(|(n, count)| (*n as f64, *count as f64)).collect();
    let pairs =
        points.iter().enumerate().flat_map(|(at, one)| points[at + 1..].iter().map(move |two| (one, two)));
    let excess = |one: &(f64, f64), two: &(f64, f64)| (two.1 / one.1) / (two.0 / one.0).powi(exponent as i32);
    let (one, two) = pairs.max_by(|a, b| excess(a.0, a.1).total_cmp(&excess(b.0, b.1)))?;
    (excess(one, two) > SLACK).then(|| {
        let slope = (two.1 / one.1).log10() / (two.0 / one.0).log10();
        format!("TOO STEEP from {} to {}: n^{slope:.2}", one.0, two.0)
    })
}
