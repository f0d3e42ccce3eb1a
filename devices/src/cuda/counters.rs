use estafette_sync::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters of a context and what is read of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        /// Calls into the driver for a device, and what became of its memory.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct CudaCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn read(&self) -> CudaCounters {
                CudaCounters { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Events made. They are used again, so this stands still after a while.
    events_created,
    /// Events recorded, for waits of other queues and for work of others' queues.
    events_recorded,
    /// Waits enqueued on a queue for an event.
    waits,
    /// Queries of an event.
    event_queries,
    /// Queries of a queue: for faults, where the device counts.
    queue_queries,
    /// Numbers that the device writes for the host to read.
    writes,
    /// Copies and fills.
    commands,
    /// Launches of graphs.
    graph_launches,
    /// Waits of a host thread for everything in the context: only for memory that nobody knows the last use of.
    context_waits,
    /// Allocations that were not freed because the context is broken.
    leaked_allocations,
    /// Their bytes.
    leaked_bytes,
    /// Events that belong to a graph of somebody else's now and are not used again.
    events_given_up,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn one(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
