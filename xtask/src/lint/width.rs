//! Comments are as wide as the code, but for tables and figures.

use std::path::Path;

use super::source;
use super::words::FOLDERS;

/// `max_width` of `rustfmt.toml`.
const WIDTH: usize = 110;

/// Figures and lines of examples that are wider. The number may only fall.
const WIDER_MAX: usize = 17;

/// Prints how many lines of comments are wider than the code, and returns them where these are too many.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wider = Vec::new();
    for folder in FOLDERS {
        for file in source::files(&root.join(folder), "rs")? {
            let text = source::read(&file)?;
            let lines = text.lines().enumerate().filter(|(_, line)| is_wide_comment(line));
            wider
                .extend(lines.map(|(at, _)| {
                    format!("{}:{} is a comment wider than the code", file.display(), at + 1)
                }));
        }
    }
    println!("comments wider than {WIDTH} columns: {} of {WIDER_MAX}", wider.len());
    Ok(if wider.len() > WIDER_MAX { wider } else { Vec::new() })
}

fn is_wide_comment(line: &str) -> bool {
    let comment = line.trim_start();
    let is_row = comment.trim_start_matches(['/', '!']).starts_with(" |");
    comment.starts_with("//") && !is_row && line.chars().count() > WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_but_for_rows_of_tables_count_by_their_characters() {
        assert!(is_wide_comment(&format!("    // {}", "x".repeat(WIDTH))));
        assert!(!is_wide_comment(&format!("//! | {} |", "x".repeat(WIDTH))));
        assert!(!is_wide_comment(&format!("//! {}", "├".repeat(WIDTH - 4))));
        assert!(!is_wide_comment(&format!("let x = \"{}\"; // {0}", "x".repeat(WIDTH))));
    }
}
