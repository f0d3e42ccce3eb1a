//! Events of `tracing` as text, for bindings to languages that have a log of their own.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Takes the events of this copy of the library, and no spans. Each type is installed at most once per
/// process.
pub trait EventReceiver: Send + Sync + 'static {
    /// True if texts among the fields stand in quotes.
    const QUOTES: bool;

    /// The events that are wanted now. After a change, `tracing`'s cache of interests has to be rebuilt.
    fn level(&self) -> LevelFilter;

    /// An event: its message, and each field as `name=value`. Called on any thread, perhaps under a lock.
    fn take(&self, level: Level, message: String, fields: &[String]);
}

/// Has `receiver` take the events. Returns false if the process has a subscriber already.
pub fn receive_events<R: EventReceiver>(receiver: R) -> bool {
    tracing::subscriber::set_global_default(Forward(receiver)).is_ok()
}

struct Forward<R>(R);

impl<R: EventReceiver> Subscriber for Forward<R> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0.level()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.level())
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text { message: String::new(), fields: Vec::new(), quotes: R::QUOTES };
        event.record(&mut text);
        self.0.take(*event.metadata().level(), text.message, &text.fields);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// An event as people read it.
struct Text {
    message: String,
    fields: Vec<String>,
    quotes: bool,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.quotes {
            self.record_debug(field, &value)
        } else {
            self.record_debug(field, &format_args!("{value}"))
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => write!(self.message, "{value:?}").expect("a string takes what is written"),
            name => self.fields.push(format!("{name}={value:?}")),
        }
    }
}
