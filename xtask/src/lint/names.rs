//! Names such as `Engine::op` in the documents are names of the public interfaces, as the listings in
//! docs/api have them.

use std::path::Path;

use super::source;

/// Prints how many names there are, and returns those that no listing has.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut listings = String::new();
    for file in source::files(&root.join("docs/api"), "txt")? {
        listings.push_str(&without_generics(&source::read(&file)?));
    }
    let mut pages = source::files(&root.join("docs"), "md")?;
    pages.push(root.join("README.md"));
    let (mut known, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = source::read(&page)?;
        for name in text.split('`').skip(1).step_by(2) {
            match is_listed(&listings, name) {
                Some(true) => known += 1,
                Some(false) => wrong.push(format!("{}: `{name}` is in no listing", page.display())),
                None => {}
            }
        }
    }
    println!("names: {known} of the documents are in the listings");
    Ok(wrong)
}

/// True if a listing has the member `name`; `None` for what is no member of a type that has listed members,
/// such as an alias.
fn is_listed(listings: &str, name: &str) -> Option<bool> {
    let (of, member) = name.split_once("::")?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_member = of.starts_with(|c: char| c.is_ascii_uppercase()) && name.split("::").count() == 2;
    if !is_member
        || !of.chars().chain(member.chars()).all(is_word)
        || !listings.contains(&format!("::{of}::"))
    {
        return None;
    }
    let wanted = format!("::{of}::{member}");
    Some(listings.match_indices(&wanted).any(|(at, _)| !listings[at + wanted.len()..].starts_with(is_word)))
}

/// The text without what stands in angle brackets.
pub fn without_generics(text: &str) -> String {
    let (mut depth, mut before) = (0_usize, ' ');
    text.chars()
        .filter(|&c| {
            let is_arrow = c == '>' && before == '-';
            before = c;
            match c {
                '\n' => depth = 0,
                '<' => depth += 1,
                '>' if !is_arrow => {
                    depth = depth.saturating_sub(1);
                    return false;
                }
                _ => {}
            }
            depth == 0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_gone_is_found() {
        let listings = without_generics(
            "pub fn e::Engine::op(&self)\npub fn e::Request<L>::wait(self, Option<A<B>>) -> Result<L>\n",
        );
        for (name, listed) in [
            ("Engine::op", Some(true)),
            ("Engine::o", Some(false)),
            ("Engine::opened", Some(false)),
            ("Request::wait", Some(true)),
            ("Alias::on", None),
            ("engine::op", None),
            ("a text, Engine::x", None),
        ] {
            assert_eq!(is_listed(&listings, name), listed, "{name}");
        }
    }
}
