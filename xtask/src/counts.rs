//! A test runner's closing lines: how many tests passed, failed and were skipped.

/// Sums over the closing lines of one suite.
#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    /// Tests that ran and passed.
    pub passed: u64,
    /// Tests that failed, timed out, or could not be set up.
    pub failed: u64,
    /// Tests that did not run: skipped at run time, or marked to be left out.
    pub skipped: u64,
    /// The reasons that were given for skipped tests, each once.
    pub reasons: Vec<String>,
    /// Tests that these reasons speak of.
    pub explained: u64,
    /// The names of failed tests, as their runner wrote them.
    pub failures: Vec<String>,
}

impl Counts {
    /// Looks at one line of output; lines that close nothing change nothing.
    pub fn read_line(&mut self, line: &str) {
        if line.starts_with(' ') && line.trim_start().starts_with("test result: ") {
            // nextest shows such a line for a test that failed, which its own closing line counts.
            return;
        }
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("SKIPPED [") {
            // "SKIPPED [2] tests/test_x.py:7: reason", or without the number of the line.
            let reason = rest.split_once(".py:").map_or(rest, |(_, after)| after);
            let reason = reason.split_once(": ").map_or(reason, |(_, after)| after);
            self.add_reason(reason.trim().to_owned());
            self.explained += rest.split(']').next().and_then(|number| number.parse().ok()).unwrap_or(1_u64);
        } else if let Some((_, reason)) = line.split_once(" ... ignored, ") {
            // libtest on `#[ignore = "reason"]`: "test name ... ignored, reason".
            self.add_reason(reason.to_owned());
            self.explained += 1;
        } else if is_closing(line) {
            self.add(line);
        } else if let Some(name) = failed_test(line)
            && !self.failures.contains(&name)
        {
            self.failures.push(name);
        }
    }

    /// Adds the counts of another runner.
    pub fn merge(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        other.reasons.into_iter().for_each(|reason| self.add_reason(reason));
        self.explained += other.explained;
        self.failures.extend(other.failures);
    }

    /// Skipped tests without a reason.
    pub fn unexplained(&self) -> u64 {
        self.skipped.saturating_sub(self.explained)
    }

    /// Tests that were executed.
    pub fn executed(&self) -> u64 {
        self.passed + self.failed
    }

    fn add_reason(&mut self, reason: String) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    /// Adds every "number word" pair of a closing line that names an outcome.
    fn add(&mut self, line: &str) {
        let words: Vec<&str> = line
            .split(|c: char| c.is_whitespace() || ",;()".contains(c))
            .filter(|word| !word.is_empty())
            .collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" | "xfailed" => self.passed += number,
                // "timed" is the first word of nextest's "timed out", "exec" of its "exec failed".
                "failed" | "error" | "errors" | "timed" | "exec" | "xpassed" => self.failed += number,
                "skipped" | "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

/// The name of the test that this line of libtest, nextest or pytest says has failed.
fn failed_test(line: &str) -> Option<String> {
    if let Some(rest) = line.strip_prefix("FAIL [").or_else(|| line.strip_prefix("TIMEOUT [")) {
        // "FAIL [   0.139s] ( 670/1017) package::binary name", where the place in the run is missing from old versions.
        let rest = rest.split_once(']')?.1.trim_start();
        let named =
            rest.strip_prefix('(').and_then(|place| place.split_once(')')).map_or(rest, |(_, name)| name);
        return Some(named.trim().to_owned());
    }
    if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
        return Some(name.to_owned());
    }
    // "FAILED tests/test_x.py::test_name - message" or "ERROR tests/test_x.py::test_name - message".
    let name = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
    let name = name.split(" - ").next().unwrap_or(name);
    name.contains(".py").then(|| name.to_owned())
}

/// True if the line is the closing line of libtest, nextest or pytest.
fn is_closing(line: &str) -> bool {
    line.starts_with("test result: ")
        || line.starts_with("Summary [")
        || (line.starts_with('=') && line.ends_with('=') && line.contains(" in "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Counts {
        let mut counts = Counts::default();
        output.lines().for_each(|line| counts.read_line(line));
        counts
    }

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped, ..Counts::default() }
    }

    #[test]
    fn binaries_of_one_cargo_test_are_added_up() {
        let output = "
running 3 tests
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s
test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        assert_eq!(read(output), counts(7, 1, 1));
    }

    #[test]
    fn nextest_counts_slow_tests_once_and_timeouts_as_failures() {
        let output =
            "     Summary [   3.021s] 7 tests run: 4 passed (1 slow), 2 failed, 1 timed out, 3 skipped";
        assert_eq!(read(output), counts(4, 3, 3));
    }

    #[test]
    fn what_nextest_shows_of_a_failed_test_is_not_counted_beside_its_own_line() {
        let output = "
    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.27s
     Summary [  48.011s] 768 tests run: 767 passed, 1 failed, 0 skipped";
        assert_eq!(read(output), counts(767, 1, 0));
    }

    #[test]
    fn failed_tests_are_named_once_by_each_runner() {
        let output = "
        PASS [   0.015s] (1010/1017) xtask::bin/xtask test::tests::some
        FAIL [   0.139s] ( 670/1017) tests::guarantees_devices memory_is_released
test broken::by::a_seed ... FAILED
test whole ... ok
FAILED tests/test_loops.py::test_one[3] - AssertionError: 1 - 2
ERROR tests/test_more.py
ERROR: libFuzzer: out-of-memory
        FAIL [   0.139s] ( 670/1017) tests::guarantees_devices memory_is_released";
        assert_eq!(
            read(output).failures,
            [
                "tests::guarantees_devices memory_is_released",
                "broken::by::a_seed",
                "tests/test_loops.py::test_one[3]",
                "tests/test_more.py",
            ]
        );
    }

    #[test]
    fn pytest_errors_are_failures_and_each_reason_of_a_skip_is_kept_once() {
        let output = "
SKIPPED [2] tests/test_torch.py:12: no GPU: torch.cuda is not available
SKIPPED [1] tests/test_jax.py: could not import 'jax'
SKIPPED [1] tests/test_more.py:3: could not import 'jax'
== 1 failed, 10 passed, 4 skipped, 2 warnings, 1 error in 4.56s (0:00:04) ==";
        let mut expected = counts(10, 2, 4);
        expected.reasons =
            vec!["no GPU: torch.cuda is not available".into(), "could not import 'jax'".into()];
        expected.explained = 4;
        assert_eq!(read(output), expected);
    }

    #[test]
    fn an_ignored_rust_test_may_give_its_reason() {
        let output = "
test needs_one ... ignored, no GPU: no driver
test forgotten ... ignored
test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        let counts = read(output);
        assert_eq!((counts.skipped, counts.unexplained()), (2, 1));
        assert_eq!(counts.reasons, ["no GPU: no driver"]);
    }

    #[test]
    fn prose_about_passing_tests_is_not_a_closing_line() {
        assert_eq!(read("3 passed the gate in 2 s\n=== 9 passed ===\nno tests"), counts(0, 0, 0));
    }
}
