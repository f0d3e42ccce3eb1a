//! `Debug` of types: most are handles, and a derived `Debug` would print what they share.

/// `Debug` by a format string: `debug_as!(queue: OwnQueue, "OwnQueue({})", queue.id);`.
macro_rules! debug_as {
    ($this:ident: $type:ty, $($format:tt)+) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                write!(f, $($format)+)
            }
        }
    };
}
