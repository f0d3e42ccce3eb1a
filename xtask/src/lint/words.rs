//! Words that hide the subject of a sentence, in comments and in texts; and retired words, everywhere.

use std::path::Path;

use super::source;

/// Pronouns where a comment has to name who acts.
const HIDING: &[&[&str]] =
    &[&["whoever"], &["nobody"], &["somebody"], &["of", "ours"], &["told"], &["he"], &["him"]];

/// Comments with such a word. The number may only fall.
const COMMENTS_MAX: usize = 4;

/// Words that another one has replaced, as whole identifiers or words of a sentence, in lower case. A word with a second meaning is not here.
const RETIRED: &[&str] = &[
    "complete_draft",
    "crew",
    "culprit",
    "decisive",
    "draft",
    "give_back",
    "go_on",
    "journal",
    "lets_go",
    "let_go",
    "prompt",
    "prompt_deleter",
    "recordings",
    "seat",
    "stretch",
    "stretches",
    "suspension",
    "take_over",
    "take_turn",
    "tally",
    "underway",
    "unhelped",
];

/// Texts, documents and names with a retired word, or with a word that hides who acts outside of comments. The number may only fall.
const TEXTS_MAX: usize = 53;

/// Files that name retired words: they say what became of them, or are old.
const ALLOWED: &[&str] = &["CHANGELOG.md", "benches/results/", "docs/api/", "xtask/src/lint/"];

/// The folders whose comments count, each by itself.
const FOLDERS: &[&str] = &[
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
    println!(
        "words: {} texts and names have a retired word, or hide who acts (at most {TEXTS_MAX})",
        texts.len()
    );
    if texts.len() > TEXTS_MAX {
        wrong.push(format!("{} texts and names have a retired word:\n{}", texts.len(), texts.join("\n")));
    }
    Ok(wrong)
}

/// The lines with a word that must not be there, of Rust without its comments, and of all other sources and documents.
fn texts(root: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for folder in FOLDERS.iter().chain(&["docs"]) {
        for extension in ["rs", "py", "pyi", "h", "hpp", "js", "md"] {
            for file in source::files(&root.join(folder), extension)? {
                let path = file.strip_prefix(root).unwrap_or(&file).display().to_string();
                if ALLOWED.iter().any(|allowed| path.starts_with(allowed)) {
                    continue;
                }
                let text = source::read(&file)?;
                let lines = text.lines().enumerate().filter(|(_, line)| match extension {
                    "rs" => has_retired(line) || has_phrase(&texts_of(line)),
                    _ => has_retired(line) || has_phrase(line),
                });
                found.extend(lines.map(|(at, line)| format!("{path}:{}: {}", at + 1, line.trim())));
            }
        }
    }
    Ok(found)
}

/// Whether `text` has a word that hides who acts. The last words of the list have other meanings outside of comments.
fn has_phrase(text: &str) -> bool {
    HIDING[..4].iter().any(|phrase| count(text, phrase) > 0)
}

fn has_retired(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| RETIRED.contains(&word.to_lowercase().as_str()))
}

/// The texts in quotation marks of a line of code.
fn texts_of(line: &str) -> String {
    let code = line.split("//").next().unwrap_or_default();
    code.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" ")
}

/// How often a comment of `text` has a word that hides who acts.
fn hiding(text: &str) -> usize {
    let comments = text.lines().filter_map(|line| line.split_once("//").map(|(_, comment)| comment));
    comments.map(in_comment).sum()
}

fn in_comment(comment: &str) -> usize {
    HIDING.iter().map(|phrase| count(comment, phrase)).sum()
}

/// How often the words of `phrase` follow each other in `text`.
fn count(text: &str, phrase: &[&str]) -> usize {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .map(str::to_lowercase)
        .filter(|w| !w.is_empty())
        .collect();
    words.windows(phrase.len()).filter(|at| at.iter().eq(phrase.iter())).count()
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
    fn retired_words_count_whole_and_in_texts() {
        assert!(has_retired("fn Let_Go() {}") && has_retired("a journal.") && !has_retired("let_gone"));
        assert_eq!(texts_of("f(\"a\", \"b\"); // \"c\""), "a b");
    }
}
