//! Words that hide the subject of a sentence, in comments and in texts; and retired words, everywhere.

use std::path::{Path, PathBuf};

use super::source;

/// Pronouns where a comment has to name who acts.
const HIDING: &[&[&str]] = &[
    &["whoever"],
    &["nobody"],
    &["somebody"],
    &["anybody"],
    &["anyone"],
    &["no", "one"],
    &["of", "ours"],
    &["told"],
    &["he"],
    &["him"],
];

/// Of [`HIDING`], those that count outside of comments too. The words after them have other meanings there.
const HIDING_ANYWHERE: usize = 7;

/// Comments with such a word. The number may only fall.
const COMMENTS_MAX: usize = 0;

/// Names and phrases that another word has replaced, in lower case: whole identifiers, or words that follow
/// each other in a sentence or an identifier. A word with a second meaning is not here.
const RETIRED: &[&[&str]] = &[
    &["are", "told"],
    &["ask_for_itself"],
    &["be", "told"],
    &["bell"],
    &["bells"],
    &["blocked_look_last"],
    &["complete_draft"],
    &["crew"],
    &["culprit"],
    &["decisive"],
    &["draft"],
    &["drafts"],
    &["enter_begun"],
    &["enter_deleter"],
    &["enter_runtime"],
    &["enter_slow"],
    &["estafette", "lives"],
    &["frontier"],
    &["frontiers"],
    &["full", "window"],
    &["give_later"],
    &["give_list"],
    &["give_to_magazine"],
    &["go_on"],
    &["guest"],
    &["guests"],
    &["is", "told"],
    &["is_forked_from_home"],
    &["journal"],
    &["leave_capture"],
    &["leave_if_exceeded"],
    &["leave_out_of_lists"],
    &["leave_queue"],
    &["leave_queues"],
    &["leave_to_workers"],
    &["let_reach"],
    &["let_view_go"],
    &["life", "line"],
    &["life", "lines"],
    &["look_after"],
    &["look_at_handle"],
    &["look_at_tensor"],
    &["look_first"],
    &["look_last"],
    &["look_on"],
    &["peer_line"],
    &["piece_max"],
    &["piece_min"],
    &["prompt_deleter"],
    &["readysignal"],
    &["recordings"],
    &["ringer"],
    &["stretch"],
    &["stretches"],
    &["stuck_engines"],
    &["suspension"],
    &["take_answers"],
    &["take_the_simulator"],
    &["take_turn"],
    &["tally"],
    &["underway"],
    &["unhelped"],
    &["was", "told"],
    &["were", "told"],
];

/// Retired verbs of two words, with or without a short object between them: "gives the place back".
const RETIRED_VERBS: &[(&[&str], &str)] = &[
    (&["give", "gives", "gave", "giving", "given"], "back"),
    (&["let", "lets", "letting"], "go"),
    (&["take", "takes", "took", "taking", "taken"], "over"),
];

/// Words that an object begins with. Between the parts of a verb stand such a word and at most one more.
const OBJECTS: &[&str] =
    &["a", "all", "an", "each", "every", "it", "its", "one", "that", "the", "their", "them", "this", "what"];

/// Lines with a retired word, or with a word that hides who acts outside of comments. The number may only
/// fall.
const TEXTS_MAX: usize = 0;

/// Files that name retired words: they say what became of them, are old, or are copies that a build makes.
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

/// The folders whose comments count, each by itself.
pub(super) const FOLDERS: &[&str] = &[
    "sync", "graph", "devices", "links", "engine", "report", "bindings", "benches", "tests", "examples",
    "xtask",
];

/// Prints the counts, and returns what is wrong.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut counts = Vec::new();
    let mut total = 0;
    for folder in FOLDERS {
        let mut count = 0;
        for file in source::files(&root.join(folder), "rs")? {
            count += hiding(&source::read(&file)?);
        }
        total += count;
        counts.push(format!("{folder} {count}"));
    }
    println!("words: {total} comments hide who acts (at most {COMMENTS_MAX}): {}", counts.join(", "));
    let mut wrong = Vec::new();
    if total > COMMENTS_MAX {
        wrong.push(format!("{total} comments hide who acts"));
    }
    let texts = texts(root)?;
    let total = texts.iter().map(|(_, lines)| lines.len()).sum::<usize>();
    println!("words: {total} lines have a retired word, or hide who acts (at most {TEXTS_MAX})");
    if total > TEXTS_MAX {
        wrong.push(format!("{total} lines have a retired word, or hide who acts:\n{}", by_file(&texts)));
    }
    Ok(wrong)
}

/// The numbers of the lines with a word that must not be there, by file: retired words in every line, and
/// words that hide who acts in the texts of Rust and in all of the other sources and documents.
fn texts(root: &Path) -> Result<Vec<(String, Vec<usize>)>, String> {
    let mut found = Vec::new();
    for file in read_files(root)? {
        let path = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if ALLOWED.iter().any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        let is_rust = path.ends_with(".rs");
        let text = source::read(&file)?;
        let lines = text.lines().enumerate().filter(|(_, line)| match is_rust {
            true => has_retired(line) || has_phrase(&texts_and_comment(line).0),
            false => has_retired(line) || has_phrase(line),
        });
        let lines: Vec<usize> = lines.map(|(at, _)| at + 1).collect();
        if !lines.is_empty() {
            found.push((path, lines));
        }
    }
    Ok(found)
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

/// True if `text`, which is no comment of Rust, has a word that hides who acts.
fn has_phrase(text: &str) -> bool {
    HIDING[..HIDING_ANYWHERE].iter().any(|phrase| count(text, phrase) > 0)
}

fn has_retired(line: &str) -> bool {
    let line = line.to_lowercase();
    let parts = line.replace('_', " ");
    let is_retired = |phrase: &&[&str]| {
        let text = if phrase.len() > 1 { &parts } else { &line };
        text.contains(phrase[0]) && count(text, phrase) > 0
    };
    RETIRED.iter().any(is_retired) || clauses(&parts).any(|words| has_retired_verb(&words))
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

/// Number of times that a comment of `text` has a word that hides who acts.
fn hiding(text: &str) -> usize {
    text.lines().map(|line| in_comment(texts_and_comment(line).1)).sum()
}

fn in_comment(comment: &str) -> usize {
    HIDING.iter().map(|phrase| count(comment, phrase)).sum()
}

/// Number of times that the words of `phrase` follow each other in `text`, with no punctuation between.
fn count(text: &str, phrase: &[&str]) -> usize {
    let in_clause =
        |words: Vec<String>| words.windows(phrase.len()).filter(|at| at.iter().eq(phrase.iter())).count();
    clauses(text).map(in_clause).sum()
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
    fn words_count_in_comments_alone_and_whole() {
        let text = "let nobody = 1; // Nobody waits.\n/// A queue of ours, of \n/// the helper whoever_is told\nlet s = \"somebody\";";
        assert_eq!(hiding(text), 3);
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
