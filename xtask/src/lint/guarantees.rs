//! docs/guarantees.md: every guarantee, hard case and situation names tests that exist, and tests cite
//! numbers that exist.

use std::collections::BTreeMap;
use std::path::Path;

use super::source;

const PAGE: &str = "docs/guarantees.md";
/// Folders of the tests that the page names.
const TESTED: &[&str] = &["sync", "graph", "devices", "links", "engine", "report", "bindings", "tests"];
/// Folders of the files that the page names without their folder.
const IMPLIED: &[&str] =
    &["", "tests/tests/", "bindings/python/tests/", "bindings/python/clusters/", "bindings/c/tests/c/"];
/// What precedes the names of the tests of a hard case.
const TESTS: &str = " Tests: ";
/// Words that begin a part of a cell and are no file of `tests/tests`.
const LEADS: &[&str] = &["c", "doc", "loom", "nine", "py", "suite"];

/// Prints how many guarantees, hard cases, situations and tests there are, and returns what is wrong.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let page = source::read(&root.join(PAGE))?;
    let sources = Sources::read(root)?;
    let guarantees = numbered(&page, "Always", "");
    let cases = numbered(&page, "Hard cases", "- **H");
    let mut wrong = Vec::new();
    for (at, (number, text)) in cases.iter().enumerate() {
        if *number != at + 1 {
            wrong.push(format!("{PAGE} has hard case H{number} where H{} comes next", at + 1));
        }
        let tests = text.split_once(TESTS).map_or("", |(_, tests)| tests);
        if !tests.contains('`') && !tests.contains("suite ") {
            wrong.push(format!("hard case H{number} names no test"));
        }
        for part in tests.split("; ") {
            wrong.extend(sources.misses(part).map(|miss| format!("{PAGE}, H{number}: {miss}")));
        }
    }
    for (at, (number, text)) in guarantees.iter().enumerate() {
        if *number != at + 1 {
            wrong.push(format!("{PAGE} has guarantee {number} where {} comes next", at + 1));
        }
        if !emphasized(text).iter().any(|name| sources.is_test(name))
            && !paths(text).any(|path| sources.has(path))
        {
            wrong.push(format!("guarantee {number} names no test"));
        }
    }
    let is_cited = |name: &&String| name.contains(['/', '_', '-']) || sources.is_test(name);
    let names = emphasized(&page);
    let missing = names.iter().filter(|name| is_cited(name) && !sources.is_test(name));
    wrong.extend(
        missing.map(|name| format!("{PAGE} names `{name}`, which is no file of tests/tests and no suite")),
    );
    let missing = paths(&page).filter(|path| !sources.has(path));
    wrong.extend(missing.map(|path| format!("{PAGE} names the file `{path}`, which does not exist")));
    let mut count = 0;
    for (situation, tests) in situations(&page) {
        count += 1;
        for part in tests.split("; ") {
            wrong.extend(sources.misses(part).map(|miss| format!("{PAGE}, \"{situation}\": {miss}")));
        }
    }
    for (file, text) in &sources.0 {
        let unknown = cited(text).into_iter().filter(|number| !(1..=guarantees.len()).contains(number));
        wrong.extend(unknown.map(|number| format!("{file} cites guarantee {number}, which does not exist")));
        let unknown = cited_cases(text).filter(|number| !(1..=cases.len()).contains(number));
        wrong.extend(unknown.map(|number| format!("{file} cites hard case H{number}, which does not exist")));
    }
    println!(
        "guarantees: {}, held by {} files, {} hard cases, and {count} situations",
        guarantees.len(),
        names.len(),
        cases.len()
    );
    Ok(wrong)
}

/// The text of each file, by its path from the root.
struct Sources(BTreeMap<String, String>);

impl Sources {
    fn read(root: &Path) -> Result<Self, String> {
        let mut sources = BTreeMap::new();
        for folder in TESTED {
            for extension in ["rs", "py", "c"] {
                for file in source::files(&root.join(folder), extension)? {
                    let text = source::read(&file)?;
                    sources.insert(file.strip_prefix(root).unwrap_or(&file).display().to_string(), text);
                }
            }
        }
        Ok(Self(sources))
    }

    /// The paths of the file of that name, or of all files in the folder of that name, in one of `folders`.
    fn find(&self, folders: &[&str], name: &str) -> Vec<&String> {
        let is_named = |path: &&String| {
            folders.iter().any(|folder| {
                let rest = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix(name));
                rest.is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
            })
        };
        self.0.keys().filter(is_named).collect()
    }

    fn has(&self, name: &str) -> bool {
        !self.find(IMPLIED, name).is_empty()
    }

    /// True for a file or folder of `tests/tests`, and for a suite.
    fn is_test(&self, name: &str) -> bool {
        !self.find(&["tests/tests/"], name).is_empty() || is_suite(name)
    }

    /// The names in a part of a cell that lead to no test. A name is looked for in the file or folder that
    /// the part has named before it.
    fn misses(&self, part: &str) -> impl Iterator<Item = String> {
        let mut misses = Vec::new();
        let mut scope: Vec<&String> = self.0.keys().collect();
        if let Some(suite) = part.strip_prefix("suite ") {
            let found = emphasized(suite).iter().any(|name| is_suite(name));
            misses.extend((!found).then(|| format!("`{part}` names no suite")));
            return misses.into_iter();
        }
        for (at, piece) in part.split('`').enumerate() {
            if at % 2 == 0 {
                let words = piece.split(|c: char| !(c.is_ascii_lowercase() || "/_".contains(c)));
                for (index, word) in words.enumerate().filter(|(_, word)| !word.is_empty()) {
                    let leads = at == 0 && index == 0 && !LEADS.contains(&word);
                    if leads || word.contains(['/', '_']) {
                        scope = self.find(&["tests/tests/"], word);
                        misses
                            .extend(scope.is_empty().then(|| format!("`{word}` is no file of tests/tests")));
                    }
                }
                let tests: usize = scope.iter().map(|path| self.0[*path].matches("#[test]").count()).sum();
                let other = promised(piece).filter(|promised| tests != *promised);
                misses.extend(other.map(|promised| format!("{tests} tests exist, not {promised}: `{part}`")));
            } else if piece.contains(['/', '.']) {
                scope = self.find(IMPLIED, piece);
            } else {
                let name = piece.rsplit("::").next().unwrap_or(piece);
                if !scope.iter().any(|path| declares(&self.0[*path], name)) {
                    scope.retain(|path| Path::new(path).file_stem().is_some_and(|stem| stem == name));
                    misses
                        .extend(scope.is_empty().then(|| format!("the test `{name}` does not exist there")));
                }
            }
        }
        misses.into_iter()
    }
}

/// The items of a section that begin with `mark` and a number.
fn numbered(page: &str, section: &str, mark: &str) -> Vec<(usize, String)> {
    let section = page.split("\n## ").find(|text| text.starts_with(section)).unwrap_or_default();
    let mut found: Vec<(usize, String)> = Vec::new();
    for line in section.lines() {
        let item = line.strip_prefix(mark).and_then(|rest| rest.split_once('.'));
        match item.and_then(|(number, text)| Some((number.parse().ok()?, text))) {
            Some((number, text)) => found.push((number, text.to_owned())),
            None if line.starts_with(' ') => {
                if let Some((_, text)) = found.last_mut() {
                    text.push(' ');
                    text.push_str(line.trim_start());
                }
            }
            None => {}
        }
    }
    found
}

/// The rows of the table: each situation, and the cell of its tests.
fn situations(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.filter(|(situation, _)| *situation != "situation")
}

/// The names between single asterisks, taken apart at commas. A word without a slash, dash or underscore may
/// be plain emphasis.
fn emphasized(text: &str) -> Vec<String> {
    let text = text.replace("**", "");
    let names = text.split('*').skip(1).step_by(2).flat_map(|part| part.split(','));
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || "/_-".contains(c));
    names.map(str::trim).filter(is_name).map(str::to_owned).collect()
}

/// The files of tests and sources, and the folders of them, in backticks.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split('`').skip(1).step_by(2);
    code.filter(|name| {
        let is_file = [".rs", ".py", ".c"].iter().any(|extension| name.ends_with(extension));
        is_file || name.split_once('/').is_some_and(|(folder, _)| TESTED.contains(&folder))
    })
}

fn is_suite(name: &str) -> bool {
    crate::suites::SUITES.iter().any(|suite| suite.name == name)
}

/// The number in "(3 tests)" or "(3 models)".
fn promised(text: &str) -> Option<usize> {
    let (before, _) = text.split_once(" tests)").or_else(|| text.split_once(" models)"))?;
    before.rsplit_once('(')?.1.parse().ok()
}

/// True if `text` declares the function or class; an ellipsis stands for the rest of a name.
fn declares(text: &str, name: &str) -> bool {
    let bare = name.trim_matches('…');
    if name.starts_with('…') {
        return text.contains(&format!("{bare}("));
    }
    let is_whole = |rest: &str| name.ends_with('…') || rest.starts_with(['(', '<', ':']);
    ["fn ", "def ", "class ", "void "].iter().any(|word| {
        let declared = format!("{word}{bare}");
        text.match_indices(&declared).any(|(at, _)| is_whole(&text[at + declared.len()..]))
    })
}

/// The numbers behind the word "guarantee".
fn cited(text: &str) -> Vec<usize> {
    let behind = text.split("uarantee ").skip(1);
    behind.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

/// The numbers with an H in a line behind the words "hard case".
fn cited_cases(text: &str) -> impl Iterator<Item = usize> {
    let lines = text.split("ard case").skip(1).filter_map(|rest| rest.lines().next());
    let words = lines.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
    words.filter_map(|word| word.strip_prefix('H')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title\n\n## Always\n\n1. **One.** It *must* hold. *order/access, memory*\n2. **Two**\n   more.\n\n## Else\n3. no\n\n\
        ## Hard cases\n\n**Group**\n\n- **H1.** A case.\n  Tests: `a`; b\n- **H2.** No test.\n\n\
        | situation | test |\n|---|---|\n| **Head** | |\n| one | `a`; b |\n";

    #[test]
    fn guarantees_have_numbers_and_tests() {
        let found = numbered(TEXT, "Always", "");
        assert_eq!(found.len(), 2);
        assert_eq!(emphasized(&found[0].1), ["must", "order/access", "memory"]);
        assert!(emphasized(&found[1].1).is_empty());
        assert_eq!(
            paths("`a/b`, `tests/gpu`, `x.c` and `Op::run`").collect::<Vec<_>>(),
            ["tests/gpu", "x.c"]
        );
        assert_eq!(cited("Guarantee 4 and guarantee 12: x"), [4, 12]);
    }

    #[test]
    fn hard_cases_have_numbers_and_tests() {
        let found = numbered(TEXT, "Hard cases", "- **H");
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(found[0].1.split_once(TESTS).map(|(_, tests)| tests), Some("`a`; b"));
        assert!(!found[1].1.contains(TESTS));
        assert_eq!(
            cited_cases("Hard cases H8 and H10: x\nH200, a hard case: H").collect::<Vec<_>>(),
            [8, 10]
        );
    }

    #[test]
    fn each_part_of_a_row_leads_to_tests() {
        assert_eq!(situations(TEXT).collect::<Vec<_>>(), [("one", "`a`; b")]);
        let files = [
            ("tests/tests/order/access.rs", "#[test]\nfn a_b() {}\n#[test]\nfn a_c() {}"),
            ("bindings/python/tests/test_a.py", "class TestA:\n    def test_b(self):"),
            ("graph/tests/loom/pins.rs", "#[test]\nfn x_y() {}"),
        ];
        let sources = Sources(files.map(|(path, text)| (path.to_owned(), text.to_owned())).into());
        for part in [
            "order/access `a_b`, `a_…`",
            "order `access` (2 tests)",
            "py `test_a.py` `TestA` `test_b`",
            "loom `pins` (1 models)",
            "`x_y`",
            "`pins::tests::x_y`",
            "suite *scale*",
        ] {
            assert_eq!(sources.misses(part).collect::<Vec<_>>(), Vec::<String>::new(), "{part}");
        }
        for part in [
            "order/acces `a_b`",
            "order/access `x_y`",
            "order `access` (1 tests)",
            "order `access` (3 tests)",
            "py `test_a.py` `TestB`",
            "loom `pin`",
            "oder",
            "suite *none*",
        ] {
            assert!(sources.misses(part).count() > 0, "{part}");
        }
    }
}
