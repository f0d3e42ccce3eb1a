//! Counters of calls into a driver, and what is read of them.

use estafette_sync::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares the counters of a device, and the structure of their values.
macro_rules! counters {
    ($(#[$about:meta])* $values:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: $crate::counters::Counter,)*
        }

        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $values {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn read(&self) -> $values {
                $values { $($name: self.$name.get(),)* }
            }
        }
    };
}

pub(crate) use counters;
