//! Names in texts for people: shown, never obeyed.
//!
//! Names of operations, tensors, threads and libraries come from programs and from files, and may hold
//! anything. A terminal obeys control characters; a line break in a name forges a line of a diagnosis;
//! bidirectional overrides show another order than the text has. Every text for people (terminal, diagnosis,
//! error, log) writes a name by [`shown`]. Data (JSON, trace files, fields of structs) keeps names as they
//! are.

use std::fmt::{self, Display};

/// A name for a text: `Display` writes each character that a terminal would obey as an escape (`\n`,
/// `\u{1b}`), and all others as they are. Doing it twice changes nothing.
///
/// ```
/// use estafette_report::shown::shown;
///
/// assert_eq!(shown("étape 1").to_string(), "étape 1");
/// assert_eq!(shown("a\n\u{1b}[2Jb").to_string(), "a\\n\\u{1b}[2Jb");
/// ```
pub fn shown(name: &str) -> Shown<'_> {
    Shown(name)
}

/// See [`shown`].
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(&'a str);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(is_obeyed) {
            let (before, from) = rest.split_at(at);
            f.write_str(before)?;
            let mut from = from.chars();
            if let Some(obeyed) = from.next() {
                write!(f, "{}", obeyed.escape_default())?;
            }
            rest = from.as_str();
        }
        f.write_str(rest)
    }
}

/// True if a terminal or a text view does something for this character instead of showing it: the control
/// characters of ASCII and of Latin-1 (C1), separators of lines and paragraphs, and what changes the
/// direction of text.
fn is_obeyed(character: char) -> bool {
    matches!(character,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{61c}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}' | '\u{2029}'
        | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_becomes_an_escape() {
        // Colour, title, clipboard, BEL, C1's introducer, deletion, line breaks of all kinds, overrides.
        let name = "\u{1b}[31m\u{1b}]0;t\u{7}\u{1b}]52;c;eA==\u{7}\u{9b}2J\u{7f}\r\n\t\u{85}\u{2028}\u{202e}\u{2066}";
        let text = shown(name).to_string();
        assert!(!text.chars().any(is_obeyed), "{text:?}");
        assert_eq!(
            text,
            "\\u{1b}[31m\\u{1b}]0;t\\u{7}\\u{1b}]52;c;eA==\\u{7}\\u{9b}2J\\u{7f}\\r\\n\\t\\u{85}\\u{2028}\\u{202e}\\u{2066}"
        );
        assert_eq!(shown(&text).to_string(), text);
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in ["", "decode", "C:\\new\\tab", "naïve 漢字 🦀", "שלום", "a\u{301}"] {
            assert_eq!(shown(name).to_string(), name);
        }
    }
}
