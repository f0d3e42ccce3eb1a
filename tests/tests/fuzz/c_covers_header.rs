//! The fuzzer of the C interface leaves no function of the header out.

use std::collections::BTreeSet;
use std::path::Path;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The functions that a C header declares: names of the library before an opening parenthesis, outside of
/// comments and types.
fn declared(header: &str) -> BTreeSet<String> {
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let declarations = code.split("extern \"C\" {").last().unwrap();
    // The table has a pointer to each of them.
    let declarations = declarations.split("struct estafette_api {").next().unwrap();
    let mut found = BTreeSet::new();
    for (at, _) in declarations.match_indices('(') {
        let before = declarations[..at].trim_end();
        let start =
            before.rfind(|letter: char| !letter.is_alphanumeric() && letter != '_').map_or(0, |at| at + 1);
        let name = &before[start..];
        if name.starts_with("estafette_") {
            found.insert(name.to_owned());
        }
    }
    found
}

/// All sources of the fuzzer, without comments.
fn sources(at: &Path, into: &mut String) {
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            into.extend(
                text.lines()
                    .filter(|line| !line.trim_start().starts_with("//"))
                    .flat_map(|line| [line, "\n"]),
            );
        }
    }
}

#[test]
fn every_function_of_the_c_header_is_called_by_the_fuzzer() {
    let header = std::fs::read_to_string(folder().join("../bindings/c/include/estafette.h")).unwrap();
    let functions = declared(&header);
    assert!(functions.len() >= 64 && functions.contains("estafette_submit"), "{functions:?}");
    let mut fuzzer = String::new();
    sources(&folder().join("src/c_fuzz"), &mut fuzzer);
    let missing: Vec<_> = functions.iter().filter(|name| !fuzzer.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "no program of tests/src/c_fuzz calls {missing:?}");
}
