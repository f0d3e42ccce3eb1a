//! Words that hide the subject of a sentence, in comments.

use std::path::Path;

use super::source;

/// Pronouns where a comment has to name who acts.
const HIDING: &[&[&str]] =
    &[&["whoever"], &["nobody"], &["somebody"], &["of", "ours"], &["told"], &["he"], &["him"]];

/// Comments with such a word. The number may only fall.
const COMMENTS_MAX: usize = 4;

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
    Ok(if total > COMMENTS_MAX { vec![format!("{total} comments hide who acts")] } else { Vec::new() })
}

/// How often a comment of `text` has a word that hides who acts.
fn hiding(text: &str) -> usize {
    let comments = text.lines().filter_map(|line| line.split_once("//").map(|(_, comment)| comment));
    comments.map(in_comment).sum()
}

fn in_comment(comment: &str) -> usize {
    let words: Vec<String> = comment
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .map(str::to_lowercase)
        .filter(|w| !w.is_empty())
        .collect();
    HIDING
        .iter()
        .map(|phrase| words.windows(phrase.len()).filter(|at| at.iter().eq(phrase.iter())).count())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_in_comments_alone_and_whole() {
        let text = "let nobody = 1; // Nobody waits.\n/// A queue of ours, of \n/// the helper whoever_is told\nlet s = \"somebody\";";
        assert_eq!(hiding(text), 3);
    }
}
