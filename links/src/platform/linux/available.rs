//! How much memory there is. The kernel takes shared memory page by page. Where there is less than was asked for, it ends processes until
//! there is enough, and those need not be the ones that asked.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes that this process can take without the end of any; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let memory = read_to_string("/proc/meminfo").ok()?;
    let swap = number_of(&memory, "SwapFree:").unwrap_or(0);
    let whole = number_of(&memory, "MemAvailable:")?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = group.map(|group| Path::new("/sys/fs/cgroup").join(group));
    let limits = group.iter().flat_map(|group| group.ancestors()).filter_map(left_in);
    Some(limits.fold(whole.saturating_mul(1024), u64::min).saturating_add(swap.saturating_mul(1024)))
}

/// Bytes that are left in a control group with a limit. Files in memory give way.
fn left_in(group: &Path) -> Option<u64> {
    let read = |name| read_to_string(group.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat")?;
    let files = number_of(&stat, "file ")?.saturating_sub(number_of(&stat, "shmem ")?);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

/// The first number of the line that begins with `name`.
fn number_of(lines: &str, name: &str) -> Option<u64> {
    lines.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_left_what_its_limit_and_its_files_leave() {
        let group = std::env::temp_dir().join(format!("estafette-group-{}", std::process::id()));
        std::fs::create_dir_all(&group).expect("a folder");
        let write = |name, text: &str| std::fs::write(group.join(name), text).expect("a file");
        write("memory.current", "700\n");
        write("memory.stat", "anon 200\nfile 500\nfile_dirty 3\nshmem 100\n");
        write("memory.max", "max\n");
        assert_eq!(left_in(&group), None);
        write("memory.max", "1000\n");
        assert_eq!(left_in(&group), Some(700));
        write("memory.max", "100\n");
        assert_eq!(left_in(&group), Some(0));
        std::fs::remove_dir_all(&group).expect("it goes");
        assert_eq!(left_in(&group), None);
    }

    #[test]
    fn a_machine_has_some_memory() {
        assert!((1 << 20..1 << 50).contains(&available().expect("Linux says it")));
    }
}
