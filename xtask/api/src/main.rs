//! Prints the public names of a Rust crate, one a line: `api-listing CRATE.json`.
//!
//! It is a package of its own since it takes longer to compile than xtask.

use std::collections::HashSet;
use std::process::ExitCode;

use public_api::tokens::Token;
use public_api::{Builder, PublicItem};

fn main() -> ExitCode {
    let Some(json) = std::env::args_os().nth(1) else {
        eprintln!("usage: api-listing CRATE.json");
        return ExitCode::FAILURE;
    };
    match Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true).build() {
        Ok(api) => {
            listing(api.items().collect()).iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}; `public-api` in xtask/api/Cargo.toml must fit the compiler");
            ExitCode::FAILURE
        }
    }
}

/// Without the functions of implemented traits, which the traits declare, and without the heads of plain
/// `impl` blocks.
fn listing(items: Vec<&PublicItem>) -> Vec<String> {
    let implements = |item: &&&PublicItem| has(item, &Token::Keyword("for".into()));
    let implementations: HashSet<_> = items.iter().filter(implements).map(|item| item.id()).collect();
    let is_declared_elsewhere = |item: &PublicItem| {
        has(item, &Token::Kind("fn".into()))
            && item.parent_id().is_some_and(|parent| implementations.contains(&parent))
    };
    let is_plain_head =
        |item: &PublicItem| item.to_string().starts_with("impl ") && !implementations.contains(&item.id());
    let kept = items.iter().filter(|item| !is_declared_elsewhere(item) && !is_plain_head(item));
    kept.map(|item| item.to_string()).filter(|line| !line.contains("StructuralPartialEq")).collect()
}

fn has(item: &PublicItem, token: &Token) -> bool {
    item.tokens().any(|its| its == token)
}
