//! Resident memory of this process.

/// Resident bytes, from `VmRSS` in `/proc/self/status`. That value is in kilobytes; `statm` would count
/// pages. `None` on systems without that file.
pub(crate) fn bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    parse(&status)
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_bytes_are_read_from_the_status() {
        assert_eq!(parse("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n"), Some(1234 * 1024));
        assert_eq!(parse("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_written_is_resident() {
        let before = bytes().unwrap();
        let written = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(bytes().unwrap() >= before + (48 << 20));
        drop(written);
    }
}
