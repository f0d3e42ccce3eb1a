//! `cargo xtask api`: the stored listings of the public interfaces, in `docs/api`, compared with the sources.
//!
//! The listings show a changed public name in review. Rust: rustdoc's JSON, with all features. C and C++: the installed headers
//! without comments, bodies and private members. Python: `bindings/python/stubs/listing.py`.

use std::path::Path;
use std::process::Command;

use crate::dist::CRATES;
use crate::{install, lint, python, shell};

const FOLDER: &str = "docs/api";

/// The crate of the C library, whose listing is that of its headers.
const C_CRATE: &str = "estafette-c";

/// The headers that other programs include.
const HEADERS: [&str; 3] = ["estafette.h", "estafette.hpp", "dlpack_fence.h"];

/// Documents the crates, and compares the listings or replaces them; true when the stored ones are right.
pub fn run(save: bool) -> Result<bool, String> {
    let target = shell::target()?;
    shell::run(docs(&target)?)?;
    if save {
        for (name, listing) in listings(&target)? {
            install::write(&shell::root().join(FOLDER).join(name), &listing)?;
        }
        return Ok(true);
    }
    Ok(shell::passed(&check(&target)?))
}

/// After [`docs`] has run: prints how the sources differ from the stored listings, and returns which do.
pub fn check(target: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for (name, listing) in listings(target)? {
        let stored = Path::new(FOLDER).join(&name);
        let made = target.join("api").join(&name);
        install::write(&made, &listing)?;
        let mut compare = shell::command("diff");
        compare.arg("-u").arg(&stored).arg(&made);
        if !compare.status().map_err(|error| format!("diff: {error}"))?.success() {
            let stored = stored.display();
            wrong.push(format!("{stored} is not what the sources have: `cargo xtask api --save` accepts it"));
        }
    }
    Ok(wrong)
}

/// rustdoc over the published crates, with all features of `estafette`: what [`crate::site`] is compiled from too.
pub fn docs(target: &Path) -> Result<Command, String> {
    let mut command = rustdoc(target)?;
    CRATES.iter().for_each(|name| {
        command.args(["--package", name]);
    });
    let features: Vec<_> =
        lint::features(target)?.iter().map(|feature| format!("estafette/{feature}")).collect();
    command.args(["--features", &features.join(",")]);
    Ok(command)
}

/// rustdoc with warnings denied. It makes JSON, as it checks the same then as with pages.
pub fn rustdoc(target: &Path) -> Result<Command, String> {
    // Only rustdoc is allowed what is unstable: build scripts that see the variable would run again, and all that depends on them.
    let script = target.join("rustdoc-json");
    install::write_script(&script, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    let mut command = shell::cargo(target, &["doc", "--no-deps"]);
    command.env("RUSTDOC", script).env("PYO3_NO_PYTHON", "1");
    command.env("RUSTDOCFLAGS", "-D warnings -Z unstable-options --output-format json");
    Ok(command)
}

/// The listings as the sources have them, with the names of their files.
fn listings(target: &Path) -> Result<Vec<(String, String)>, String> {
    let mut made = Vec::new();
    for name in CRATES.iter().filter(|name| **name != C_CRATE) {
        let json = target.join("doc").join(format!("{}.json", name.replace('-', "_")));
        let mut list = shell::cargo(target, &["run", "--quiet", "--package", "api-listing", "--"]);
        list.arg(json);
        made.push((format!("{name}.txt"), shell::output(&mut list)?));
    }
    for header in HEADERS {
        let path = shell::root().join("bindings/c/include").join(header);
        let text = lint::source::read(&path)?;
        made.push((format!("{header}.txt"), declarations(&text)));
    }
    match python::interpreter() {
        Ok(interpreter) => {
            let mut list = shell::command(interpreter);
            list.arg("bindings/python/stubs/listing.py");
            made.push(("python.txt".to_owned(), shell::output(&mut list)?));
        }
        Err(why) => println!("python.txt is left out: {why}"),
    }
    Ok(made)
}

/// The macros with values, then the declarations of a header, one a line, and so are members of structs and enums. Of conditional
/// parts, the first alternative is listed.
fn declarations(header: &str) -> String {
    let (mut macros, mut code) = (String::new(), String::new());
    // For each `#if` that is open: whether another alternative than its first began.
    let mut is_alternative = Vec::new();
    for line in without_comments(&header.replace("\\\n", " ")).lines() {
        let line = line.trim();
        let Some(directive) = line.strip_prefix('#') else {
            if !is_alternative.contains(&true) {
                code.extend([line, " "]);
            }
            continue;
        };
        let words: Vec<_> = directive.split_whitespace().collect();
        match words[..] {
            ["if" | "ifdef" | "ifndef", ..] => is_alternative.push(false),
            ["else" | "elif", ..] => {
                is_alternative.iter_mut().next_back().into_iter().for_each(|it| *it = true)
            }
            ["endif", ..] => _ = is_alternative.pop(),
            ["define", _, _, ..] if !is_alternative.contains(&true) => {
                macros += &format!("#{}\n", words.join(" "));
            }
            _ => {}
        }
    }
    macros + &statements(&code.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// `text` with a space for each comment.
fn without_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        kept += &rest[..at];
        rest = &rest[at..];
        let end = match rest.as_bytes().get(1) {
            Some(b'*') => rest.find("*/").map(|end| end + 2),
            Some(b'/') => rest.find('\n'),
            _ => {
                kept.push('/');
                Some(1)
            }
        };
        rest = &rest[end.unwrap_or(rest.len())..];
        kept.push(' ');
    }
    kept + rest
}

/// A line for each declaration and each member, without bodies of functions.
fn statements(code: &str) -> String {
    let mut text = String::new();
    // How many braces of a body are open.
    let mut body = 0;
    let mut is_enum = false;
    for c in code.chars() {
        match c {
            '{' if body > 0 => body += 1,
            '}' if body > 0 => body -= 1,
            _ if body > 0 => {}
            // A default of a parameter.
            '{' | '}' if last_line(&text).matches('(').count() > last_line(&text).matches(')').count() => {
                text.push(c)
            }
            // Types and namespaces have no parameters.
            '{' if last_line(&text).contains(')') => {
                text.truncate(text.len() - last_line(&text).len() + signature(last_line(&text)).len());
                text += ";\n";
                body = 1;
            }
            '{' => {
                is_enum = last_line(&text).contains("enum");
                text += "{\n";
            }
            '}' => {
                is_enum = false;
                text += "\n}";
            }
            ';' => text += ";\n",
            ',' if is_enum => text += ",\n",
            ':' if ["public", "private"].contains(&last_line(&text).trim()) => text += ":\n",
            c => text.push(c),
        }
    }
    public_part(text.lines().map(str::trim).filter(|line| !line.is_empty()))
}

fn last_line(text: &str) -> &str {
    &text[text.rfind('\n').map_or(0, |end| end + 1)..]
}

/// The declaration of a function, without what a constructor begins with.
fn signature(line: &str) -> &str {
    let parameters = line.find('(').unwrap_or_default();
    let end = line[parameters..].find(" : ").map_or(line.len(), |at| parameters + at);
    line[..end].trim_end()
}

/// The lines, without the private members of classes.
fn public_part<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    // For each brace that is open: whether its members are private.
    let mut is_private = Vec::new();
    for line in lines {
        match (line, is_private.last_mut()) {
            ("public:", Some(last)) => *last = false,
            ("private:", Some(last)) => *last = true,
            _ => {
                if line.starts_with('}') {
                    is_private.pop();
                }
                if !is_private.contains(&true) {
                    text.extend([line, "\n"]);
                }
                if line.ends_with('{') {
                    is_private.push(line.starts_with("class "));
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_listed_without_bodies_and_private_members() {
        let header = "namespace n {\nclass Error : public base {\n  int hidden;\n public:\n  explicit Error(int a) : base(a), a_(f(a)) {}\n\
                      int status(D d = {0, 1}) const noexcept { return a_; }\n  Error &operator=(Error other) = delete;\n private:\n\
                      struct Drop { void operator()(int *a) const { g(a); } };\n int a_;\n};\nstruct Open { int b; };\n}\n";
        let expected = "namespace n {\nclass Error : public base {\nexplicit Error(int a);\nint status(D d = {0, 1}) const noexcept;\n\
                        Error &operator=(Error other) = delete;\n};\nstruct Open {\nint b;\n};\n}\n";
        assert_eq!(declarations(header), expected);
    }

    #[test]
    fn a_header_is_listed_without_comments_bodies_and_second_alternatives() {
        let header = "#ifndef X_H\n#define X_H\n#define LIMIT 4 /* at\nmost */\n/** Doc. */\n#if A\ntypedef enum : int { // x\n\
                      #else\ntypedef enum {\n#endif\n  ONE = 1, TWO } number;\nint f(int a,\n    int b);\n\
                      static inline int g(void) { if (1) { return 2; } return 1 / 1; }\nstruct s { int x; };\n#endif\n";
        let expected = "#define LIMIT 4\ntypedef enum : int {\nONE = 1,\nTWO\n} number;\nint f(int a, int b);\n\
                        static inline int g(void);\nstruct s {\nint x;\n};\n";
        assert_eq!(declarations(header), expected);
    }
}
