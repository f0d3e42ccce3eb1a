//! The header is generated from the sources and checked in. This makes it again and compares.
//!
//! `ESTAFETTE_WRITE_HEADER=1 cargo test -p estafette-c --test header` writes it.

use std::path::Path;

use estafette_c::FUNCTIONS;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn generate() -> String {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).expect("a valid configuration");
    let builder = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder().join("src/lib.rs"))
        .with_src(folder().join("../../engine/src/exchange/foreign_fence.rs"))
        .with_src(folder().join("../../engine/src/operators/abi.rs"))
        .with_src(folder().join("../../engine/src/operators/library.rs"));
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    with_table(&tidy(&String::from_utf8(text).expect("text")))
}

/// The header with the members of `estafette_api`, which are made of the declarations of the functions.
fn with_table(header: &str) -> String {
    let mut members = String::new();
    for name in FUNCTIONS {
        let at = header.find(&format!("{name}(")).unwrap_or_else(|| panic!("{name} is not declared"));
        let start = header[..at].rfind("\n\n").map_or(0, |end| end + 2);
        let result = header[start..at].rsplit("*/").next().unwrap_or_default();
        let end = at + header[at..].find(';').expect("a declaration ends");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (result, parameters) = (words(result), words(&header[at + name.len()..end]));
        let gap = if result.ends_with('*') { "" } else { " " };
        let short = name.trim_start_matches("estafette_");
        // `export` and `import` are words of C++.
        let short =
            if ["export", "import"].contains(&short) { format!("{short}_") } else { short.to_owned() };
        members += &format!("  {result}{gap}(*{short}){parameters};\n");
    }
    let declarations = header.lines().filter(|line| {
        line.contains('(') && !line.starts_with([' ', '#', '/', '}']) && !line.starts_with("typedef")
    });
    for declaration in declarations {
        let name = declaration.split('(').next().and_then(|before| before.split([' ', '*']).next_back());
        assert!(name.is_some_and(|name| FUNCTIONS.contains(&name)), "the table lacks {declaration}");
    }
    // The comment belongs to the struct, and not to its name, which comes first.
    let name = "typedef struct estafette_api estafette_api;";
    let (before, after) = header.split_once(name).expect("the name of the table");
    let (before, comment) = before.rsplit_once("/**").expect("its comment");
    let header = format!("{before}{name}{after}");
    let fields =
        "  uint32_t size;\n  uint32_t version_major;\n  uint32_t version_minor;\n  uint32_t reserved;\n";
    let table = format!("/**{comment}struct estafette_api {{\n{fields}{members}}};\n\n");
    let guard = "#ifdef __cplusplus\n}";
    let end = header.rfind(guard).expect("the end of the declarations");
    format!("{}{table}{}", &header[..end], &header[end..])
}

/// Rustdoc's sections and links as C programmers write them.
fn tidy(text: &str) -> String {
    let text = text.replace(" * # Safety\n", " * The caller promises:\n");
    let text = text.replace("[`OPERATOR_", "`ESTAFETTE_OPERATOR_").replace("`]", "`");
    assert!(!text.contains("[`"), "a comment has a link to a name of Rust");
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = folder().join("include/estafette.h");
    let made = generate();
    if std::env::var_os("ESTAFETTE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "include/estafette.h differs from the sources (line {:?}); ESTAFETTE_WRITE_HEADER=1 writes it",
        differs.map(|line| line + 1)
    );
}
