//! An error in words, with what caused it.

use std::error::Error;

/// The text of `error` and of its sources, the outermost first: "operation `any` failed: outer: root".
pub(crate) fn chain(error: &estafette::Error) -> String {
    let mut text = error.to_string();
    // An operation's failure has the body's error as its source.
    let mut next = match error.operation() {
        Some(operation) => operation.source(),
        None => error.source(),
    };
    while let Some(source) = next {
        let said = source.to_string();
        // Many errors say in their own text what their source says.
        if !said.is_empty() && !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use estafette::{BodyError, Engine};

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("root")]
    struct Root;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Root);

    #[derive(Debug, thiserror::Error)]
    #[error("says it all: {0}")]
    struct Whole(#[source] Outer);

    fn fails_with(error: fn() -> BodyError) -> String {
        let engine = Engine::builder().workers(1).build().unwrap();
        let op = engine.op("any").run(move |[], []| Err(error())).unwrap();
        chain(&op.wait().unwrap_err())
    }

    #[test]
    fn the_text_of_a_failure_has_every_source_once() {
        let text = fails_with(|| Box::new(Outer(Root)));
        assert!(text.starts_with("operation `any`") && text.ends_with("failed: outer: root"), "{text}");
        let text = fails_with(|| Box::new(Whole(Outer(Root))));
        assert!(text.ends_with("failed: says it all: outer: root"), "{text}");
        let text = fails_with(|| "plain".into());
        assert!(text.ends_with("failed: plain"), "{text}");
    }
}
