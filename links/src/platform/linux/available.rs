//! The memory that is available. The kernel takes shared memory page by page. Where there is less than was
//! asked for, it ends processes until there is enough, and those need not be the ones that asked.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Bytes that this process can take without the end of any; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let memory = read_to_string("/proc/meminfo").ok()?;
    let number = |name| number_of(&memory, name).map(|kilobytes| kilobytes.saturating_mul(1024));
    let (whole, swap) = (number("MemAvailable:")?, number("SwapFree:").unwrap_or(0));
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = groups.lines().filter_map(group_of).filter_map(|group| left_below(&group, swap));
    Some(left.fold(whole.saturating_add(swap), u64::min))
}

/// The control group of a line of the process, if it may limit memory: of version 2, or of version 1.
fn group_of(line: &str) -> Option<PathBuf> {
    let (controllers, group) = line.split_once(':')?.1.split_once(":/")?;
    let root = match controllers {
        "" => "/sys/fs/cgroup",
        _ if controllers.split(',').any(|controller| controller == "memory") => "/sys/fs/cgroup/memory",
        _ => return None,
    };
    Some(Path::new(root).join(group))
}

/// Bytes that a control group and those above it leave, of which at most `swap` are swapped out. `None` if
/// none has a limit.
fn left_below(group: &Path, mut swap: u64) -> Option<u64> {
    let levels: Vec<_> = group.ancestors().collect();
    // A limit of swap holds for the groups below as well.
    levels.into_iter().rev().filter_map(|level| left_in(level, &mut swap)).min()
}

/// Bytes that are left in a control group with a limit of memory, and in `swap`. Files in memory give way.
fn left_in(group: &Path, swap: &mut u64) -> Option<u64> {
    let read = |name| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    if let Some(limit) = read("memory.swap.max") {
        *swap = limit.saturating_sub(read("memory.swap.current")?).min(*swap);
    }
    let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
    let stat = read_to_string(group.join("memory.stat")).ok()?;
    // Of version 1 the total is that of the groups below as well.
    let number = |total, own| number_of(&stat, total).or_else(|| number_of(&stat, own));
    let files = number("total_cache ", "file ")?.saturating_sub(number("total_shmem ", "shmem ")?);
    Some(limit.saturating_sub(used.saturating_sub(files)).saturating_add(*swap))
}

/// The first number of the line that begins with `name`.
fn number_of(lines: &str, name: &str) -> Option<u64> {
    lines.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is gone afterwards, in the place of one of the kernel's.
    struct Group(PathBuf);

    impl Group {
        fn new(name: &str) -> Self {
            let group = std::env::temp_dir().join(format!("estafette-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&group).expect("a folder");
            Self(group)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::create_dir_all(self.0.join(name).parent().expect("a folder")).expect("a folder");
            std::fs::write(self.0.join(name), text).expect("a file");
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).expect("it goes");
        }
    }

    #[test]
    fn a_group_has_left_what_its_limit_and_its_files_leave() {
        let group = Group::new("group");
        let left = || left_below(&group.0, 0);
        group.write("memory.current", "700\n");
        group.write("memory.stat", "anon 200\nfile 500\nfile_dirty 3\nshmem 100\n");
        group.write("memory.max", "max\n");
        assert_eq!(left(), None);
        group.write("memory.max", "1000\n");
        assert_eq!(left(), Some(700));
        group.write("memory.max", "100\n");
        assert_eq!(left(), Some(0));
    }

    #[test]
    fn a_group_has_left_what_it_may_swap_and_no_more() {
        let group = Group::new("swaps");
        let left = |swap| left_below(&group.0.join("below"), swap);
        group.write("below/memory.current", "700\n");
        group.write("below/memory.stat", "file 0\nshmem 0\n");
        group.write("below/memory.max", "1000\n");
        assert_eq!(left(50), Some(350));
        group.write("below/memory.swap.current", "10\n");
        group.write("below/memory.swap.max", "40\n");
        assert_eq!([0, 20, 50].map(left), [Some(300), Some(320), Some(330)]);
        group.write("below/memory.swap.max", "max\n");
        assert_eq!(left(50), Some(350));
        group.write("memory.swap.current", "0\n");
        group.write("memory.swap.max", "0\n");
        assert_eq!(left(50), Some(300));
    }

    #[test]
    fn groups_of_version_1_have_limits_too() {
        let group = Group::new("version-1");
        group.write("memory.usage_in_bytes", "700\n");
        group.write("memory.stat", "cache 5\nshmem 3\ntotal_cache 500\ntotal_shmem 100\n");
        group.write("memory.limit_in_bytes", "1000\n");
        assert_eq!(left_below(&group.0, 0), Some(700));
        let memory = |line| group_of(line).map(|group| group.display().to_string());
        assert_eq!(memory("11:memory:/docker/a").as_deref(), Some("/sys/fs/cgroup/memory/docker/a"));
        assert_eq!(memory("3:cpu,memory:/").as_deref(), Some("/sys/fs/cgroup/memory/"));
        assert_eq!(memory("0::/user.slice/a:b").as_deref(), Some("/sys/fs/cgroup/user.slice/a:b"));
        assert_eq!(memory("1:name=systemd:/a"), None);
    }

    #[test]
    fn a_machine_has_some_memory() {
        assert!((1 << 20..1 << 50).contains(&available().expect("Linux says it")));
    }
}
