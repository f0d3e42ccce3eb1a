//! The header is generated from the sources and checked in. This makes it again and compares.
//!
//! `ESTAFETTE_WRITE_HEADER=1 cargo test -p estafette-c --test header` writes it.

use std::path::Path;

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
    tidy(&String::from_utf8(text).expect("text"))
}

/// Rustdoc's sections as C programmers write them.
fn tidy(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        if line.trim() == "* # Safety" {
            lines.push(" * What the caller promises:");
        } else {
            lines.push(line.trim_end());
        }
    }
    lines.join("\n") + "\n"
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
