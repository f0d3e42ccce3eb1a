//! The `Debug` output of types, for people who debug: most types are handles, and a derived `Debug` would
//! print what they share.

/// `Debug` by a format string: `debug_as!(queue: OwnQueue, "OwnQueue({})", queue.id);`. Generic parameters
/// come first: `[T] slot: Slot<T>`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as {
    ($([$($generics:tt)*])? $this:ident: $type:ty, $($format:tt)+) => {
        impl$(<$($generics)*>)? std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                write!(f, $($format)+)
            }
        }
    };
}
