//! Words that hide the subject of a sentence, in comments and in texts; and retired words, everywhere.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::source;

/// Pronouns where a sentence has to name who acts, and then those that count in comments alone: elsewhere
/// they have other meanings.
const HIDING: [&str; 2] = ["whoever, nobody, somebody, anybody, anyone, no one, of ours", "told, he, him"];

/// Names and phrases that another word has replaced, in lower case: whole identifiers, or words that follow
/// each other in a sentence or an identifier. A word with a second meaning is not here.
const RETIRED: &str = "are told, ask_for_itself, be told, bell, bells, blocked_look_last, complete_draft, crew, culprit, \
    decisive, draft, drafts, enter_begun, enter_deleter, enter_runtime, enter_slow, estafette lives, \
    frontier, frontiers, full window, give_later, give_list, give_to_magazine, go_on, guest, guests, \
    is told, is_forked_from_home, journal, leave_capture, leave_if_exceeded, leave_out_of_lists, \
    leave_queue, leave_queues, leave_to_workers, let_reach, let_view_go, life line, life lines, \
    look_after, look_at_handle, look_at_tensor, look_first, look_last, look_on, peer_line, piece_max, \
    piece_min, prompt_deleter, readysignal, recordings, ringer, stretch, stretches, stuck_engines, \
    suspension, take_answers, take_the_simulator, take_turn, tally, underway, unhelped, was told, \
    were told";

type Phrases = Vec<Vec<&'static str>>;

/// The words of [`HIDING`] and of [`RETIRED`].
static PHRASES: LazyLock<[Phrases; 3]> = LazyLock::new(|| {
    let words =
        |phrases: &'static str| phrases.split(", ").map(|phrase| phrase.split(' ').collect()).collect();
    [HIDING[0], HIDING[1], RETIRED].map(words)
});

/// Retired verbs of two words, with or without a short object between them: "gives the place back".
const RETIRED_VERBS: &[(&[&str], &str)] = &[
    (&["give", "gives", "gave", "giving", "given"], "back"),
    (&["let", "lets", "letting"], "go"),
    (&["take", "takes", "took", "taking", "taken"], "over"),
];

/// Words that an object begins with. Between the parts of a verb stand such a word and at most one more.
const OBJECTS: &[&str] =
    &["a", "all", "an", "each", "every", "it", "its", "one", "that", "the", "their", "them", "this", "what"];

/// Files whose comments alone are read: they say what became of retired words, are old, or are copies that a
/// build makes.
const ALLOWED: &[&str] = &[
    "CHANGELOG.md",
    "benches/results/",
    "bindings/python/python/estafette/include/",
    "docs/api/",
    "xtask/src/lint/",
];

/// Extensions of the files in the folders and in `docs` that are read for retired words. The root's documents
/// are read too.
const EXTENSIONS: &[&str] =
    &["rs", "py", "pyi", "c", "cpp", "h", "hpp", "js", "html", "md", "toml", "sh", "ipynb"];

/// The folders with sources.
pub(super) const FOLDERS: &[&str] = &[
    "sync", "graph", "devices", "links", "engine", "report", "bindings", "benches", "tests", "examples",
    "xtask",
];

/// Returns the lines that are wrong, by file.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for file in read_files(root)? {
        let path = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let is_allowed = ALLOWED.iter().any(|allowed| path.starts_with(allowed));
        let text = source::read(&file)?;
        let is_wrong = |line| is_wrong(line, path.ends_with(".rs"), is_allowed);
        let lines = text.lines().enumerate().filter(|(_, line)| is_wrong(line));
        let lines: Vec<usize> = lines.map(|(at, _)| at + 1).collect();
        if !lines.is_empty() {
            found.push((path, lines));
        }
    }
    let total = found.iter().map(|(_, lines)| lines.len()).sum::<usize>();
    println!("words: {total} lines have a retired word, or hide who acts");
    let wrong = || format!("{total} lines have a retired word, or hide who acts:\n{}", by_file(&found));
    Ok((total > 0).then(wrong).into_iter().collect())
}

/// True if a line has a word that must not be there: a retired one, or one that hides who acts in the texts
/// and the comment of Rust, or in all of another language. Of an allowed line only the comment is read.
fn is_wrong(line: &str, is_rust: bool, is_allowed: bool) -> bool {
    let (texts, comment) = if is_rust { texts_and_comment(line) } else { (line.to_owned(), "") };
    let has = |text: &str, phrases: &Phrases| phrases.iter().any(|phrase| follows(text, phrase));
    let [hiding, in_comments, _] = &*PHRASES;
    let hides = has(comment, hiding) || has(comment, in_comments);
    hides || !is_allowed && (has_retired(line) || has(&texts, hiding))
}

fn read_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
    let mut files: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    for folder in FOLDERS.iter().chain(&["docs"]) {
        for extension in EXTENSIONS {
            files.extend(source::files(&root.join(folder), extension)?);
        }
    }
    Ok(files)
}

/// A line for each file: how many of its lines are found, and which.
fn by_file(found: &[(String, Vec<usize>)]) -> String {
    let line = |(path, lines): &(String, Vec<usize>)| {
        let numbers: Vec<String> = lines.iter().map(usize::to_string).collect();
        format!("{path}: {} (lines {})", lines.len(), numbers.join(", "))
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn has_retired(line: &str) -> bool {
    let line = line.to_lowercase();
    let parts = line.replace('_', " ");
    let is_retired = |phrase: &Vec<&str>| {
        let text = if phrase.len() > 1 { &parts } else { &line };
        text.contains(phrase[0]) && follows(text, phrase)
    };
    PHRASES[2].iter().any(is_retired) || clauses(&parts).any(|words| has_retired_verb(&words))
}

fn has_retired_verb(words: &[String]) -> bool {
    let is_one = |at: usize| {
        let (_, end) = RETIRED_VERBS.iter().find(|(forms, _)| forms.contains(&&*words[at]))?;
        let rest = &words[at + 1..];
        let between = rest.iter().take(3).position(|word| word == end)?;
        let has_object = between == 0 || OBJECTS.contains(&&*rest[0]);
        // "Lets it go on" is another verb.
        let goes_on = *end == "go" && rest.get(between + 1).is_some_and(|word| word == "on");
        Some(has_object && !goes_on)
    };
    (0..words.len()).any(|at| is_one(at) == Some(true))
}

/// The texts in quotation marks of a line of Rust, and its comment.
fn texts_and_comment(line: &str) -> (String, &str) {
    let (mut texts, mut is_text, mut rest) = (String::new(), false, line);
    while let Some(c) = rest.chars().next() {
        let length = match is_text {
            false if rest.starts_with("//") => return (texts, &rest[2..]),
            // A character, not the beginning of a text.
            false if rest.starts_with("'\"'") => 3,
            true if c == '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => c.len_utf8(),
        };
        if c == '"' {
            is_text = !is_text;
            texts.push(' ');
        } else if is_text {
            texts.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    (texts, "")
}

/// True if the words of `phrase` follow each other in `text`, with no punctuation between.
fn follows(text: &str, phrase: &[&str]) -> bool {
    clauses(text).any(|words| words.windows(phrase.len()).any(|at| at.iter().eq(phrase.iter())))
}

/// The words between punctuation marks, in lower case.
fn clauses(text: &str) -> impl Iterator<Item = Vec<String>> {
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = move |clause: &str| {
        clause.split(|c| !is_in_word(c)).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
    };
    text.split(move |c: char| !is_in_word(c) && !c.is_whitespace() && c != '-').map(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_count_in_comments_and_but_for_allowed_files_in_texts() {
        for (line, is_text) in [
            ("let nobody = 1; // Nobody waits.", false),
            ("/// A queue of ours, of", false),
            ("/// the helper whoever_is told", false),
            ("let s = \"somebody\";", true),
        ] {
            assert!(is_wrong(line, true, false), "{line}");
            assert_eq!(is_wrong(line, true, true), !is_text, "{line}");
        }
        for line in ["let nobody = 1;", "let told = \"he\";", "// the helper whoever_is"] {
            assert!(!is_wrong(line, true, false), "{line}");
        }
        assert!(is_wrong("nobody waits", false, false) && !is_wrong("he is", false, false));
    }

    #[test]
    fn retired_words_count_as_names_and_as_phrases() {
        for line in [
            "gives the place back",
            "lets it go",
            "a queue that is_told",
            "fn Let_Go() {}",
            "a journal.",
            "Lets go of it.",
            "They give back, in time",
            "a Frontier",
            "bell: 1",
            "fn what_is_not_called_is_let_go_of() {}",
        ] {
            assert!(has_retired(line), "{line}");
        }
        for line in [
            "let_gone",
            "a doorbell",
            "guests_max",
            "let a = go",
            "lets it go on",
            "gives bytes, and back",
            "taken from one to another, over a link",
            "a prompt answer",
            "let (go, wait) = channel();",
        ] {
            assert!(!has_retired(line), "{line}");
        }
    }

    #[test]
    fn a_text_may_have_slashes_and_quotation_marks() {
        let parts = |line| {
            let (texts, comment) = texts_and_comment(line);
            (texts.split_whitespace().collect::<Vec<_>>().join(" "), comment)
        };
        assert_eq!(parts(r#"f("a", "b"); // "c""#), ("a b".into(), r#" "c""#));
        assert_eq!(parts(r#"f("http://x/ \"a\"") // b"#), (r#"http://x/ \"a\""#.into(), " b"));
        assert_eq!(parts(r#"f('"', "a")"#), ("a".into(), ""));
        assert_eq!(parts("/// é // a"), (String::new(), "/ é // a"));
    }

    #[test]
    fn past_the_limit_each_file_is_named_with_its_count() {
        let found = [("a.rs".to_string(), vec![3, 7]), ("b.md".to_string(), vec![1])];
        assert_eq!(by_file(&found), "a.rs: 2 (lines 3, 7)\nb.md: 1 (lines 1)");
    }
}
