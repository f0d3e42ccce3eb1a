//! Machine and versions of the figures: without them they mean nothing.

use super::engines::{PEERS, library_version};
use crate::{install, shell};

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Today's date, as the system's `date` has it in UTC.
pub fn date() -> Result<String, String> {
    first_line("date", &["-u", "+%F"]).ok_or_else(|| "`date -u +%F` does not answer".to_owned())
}

/// Writes a record of today into `benches/results`.
pub fn save(name: &str, record: &str) -> Result<(), String> {
    let path = shell::root().join("benches/results").join(format!("{}-{name}.md", date()?));
    install::write(&path, record)?;
    println!("written to {}", path.display());
    Ok(())
}

/// A Markdown list of machine, system, tools, libraries and commit.
pub fn describe() -> String {
    let unknown = || "unknown".to_owned();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, model)| model.to_owned()))
        .unwrap_or_else(unknown);
    let memory_kib = read("/proc/meminfo").split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    let memory = memory_kib.map_or_else(unknown, |kib| format!("{} GiB", (kib + (1 << 19)) >> 20));
    let load = read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    let mut lines = vec![
        format!("machine: {cpu}, {} cores, {memory}", cores()),
        format!("kernel: {}", first_line("uname", &["-sr"]).unwrap_or_else(unknown)),
        // Anything much above zero before the run began means that others used the cores too.
        format!("load in the last 1, 5 and 15 minutes: {}", if load.is_empty() { unknown() } else { load }),
        format!("commit: {}", commit().unwrap_or_else(unknown)),
    ];
    for tool in ["rustc", "g++", "clang++"] {
        let version = first_line(tool, &["--version"]).unwrap_or_else(|| format!("{tool} is not there"));
        lines.push(format!("compiler: {version}"));
    }
    for peer in PEERS {
        if let Some(version) = library_version(peer) {
            lines.push(format!("library: {} {version}", peer.name));
        }
    }
    lines.iter().map(|line| format!("- {line}\n")).collect()
}

/// The commit, and whether there are changes on top of it.
fn commit() -> Option<String> {
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changed = first_line("git", &["status", "--porcelain", "--untracked-files=no"]).is_some();
    Some(if changed { format!("{commit}, with changes that are not committed") } else { commit })
}

/// The first line that a program prints when it succeeds.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let text = shell::output(shell::command(program).args(arguments)).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_year_month_and_day() {
        let date = date().unwrap();
        let lengths: Vec<usize> = date.split('-').map(str::len).collect();
        assert_eq!(lengths, [4, 2, 2], "{date}");
    }

    #[test]
    fn the_description_names_cores_and_compiler() {
        let description = describe();
        assert!(description.contains(&format!(" {} cores", cores())), "{description}");
        assert!(description.contains("compiler: rustc 1."), "{description}");
    }
}
