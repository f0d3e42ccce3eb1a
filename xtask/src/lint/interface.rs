//! How large the public interface of the crate `estafette` is, by its listing in docs/api.

use std::collections::BTreeSet;
use std::path::Path;

use super::names::without_generics;
use super::source;

const LISTING: &str = "docs/api/estafette.txt";
/// A reader learns an interface of this size in an afternoon. A method that exceeds it needs another one to
/// go.
const METHODS_MAX: usize = 200;
/// Names at the top of the crate that are no modules: what most programs use.
const TOP_MAX: usize = 25;

/// Prints the two counts, and returns those that are too high.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let listing = without_generics(&source::read(&root.join(LISTING))?);
    let (methods, top) = (methods(&listing).len(), top(&listing).len());
    println!("interface: {methods} public methods of {METHODS_MAX}, {top} names at the top of {TOP_MAX}");
    let counts = [("public methods", methods, METHODS_MAX), ("names at the top", top, TOP_MAX)];
    let high = counts.into_iter().filter(|(_, count, most)| count > most);
    Ok(high.map(|(what, count, most)| format!("{LISTING} has {count} {what}, and {most} at most")).collect())
}

/// Each method by its type and name, also where the type is listed in several modules.
fn methods(listing: &str) -> BTreeSet<(&str, &str)> {
    let functions = listing.lines().filter_map(|line| line.split_once("pub ")?.1.split_once("fn "));
    let paths = functions.filter_map(|(_, rest)| rest.split('(').next());
    let members = paths.filter_map(|path| {
        let (of, method) = path.rsplit_once("::")?;
        Some((of.rsplit("::").next()?, method))
    });
    members.filter(|(of, _)| of.starts_with(|c: char| c.is_ascii_uppercase())).collect()
}

/// The items directly in the crate, but for modules.
fn top(listing: &str) -> BTreeSet<&str> {
    const KINDS: [&str; 7] = ["struct ", "enum ", "trait ", "type ", "fn ", "macro ", "const "];
    let items = listing.lines().filter_map(|line| {
        let (kind, path) = line.split_once("pub ")?.1.split_once("estafette::")?;
        let name = path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').next()?;
        (KINDS.contains(&kind) && !name.trim_end_matches(':').contains("::"))
            .then_some(name.trim_end_matches(':'))
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "pub mod estafette\npub use estafette::devices\npub mod estafette::wait\n\
        pub fn estafette::wait::flush()\npub unsafe fn estafette::wait::Op::wait(&self) -> bool\n\
        pub async fn estafette::Op::wait(&self)\npub const fn estafette::Op::id(self)\npub estafette::Op::field: u8\n\
        #[non_exhaustive] pub enum estafette::Error\npub struct estafette::Op\npub trait estafette::Element: Copy\n\
        pub enum estafette::wait::Stall\n";

    #[test]
    fn a_method_counts_once() {
        assert_eq!(methods(LISTING).into_iter().collect::<Vec<_>>(), [("Op", "id"), ("Op", "wait")]);
    }

    #[test]
    fn modules_and_what_they_hold_are_not_at_the_top() {
        assert_eq!(top(LISTING).into_iter().collect::<Vec<_>>(), ["Element", "Error", "Op"]);
    }
}
