//! The deques of crossbeam. Loom does not see into them: its models have deques under a lock, with no more
//! order than crossbeam's. (A push and a steal release, a look acquires; the owner's pop does neither.)

#[cfg(not(estafette_loom))]
pub(super) use crossbeam_deque::{Injector, Steal, Stealer, Worker};
#[cfg(estafette_loom)]
pub(super) use modelled::{Injector, Steal, Stealer, Worker};

/// Makes what all deques of the process share, which the first steal does otherwise: each deque's memory is
/// freed by the epochs of one collector. A child that is forked while a thread makes the collector would wait
/// for that thread for ever.
pub(super) fn make_shared() {
    // A model's deques share nothing.
    #[cfg(not(estafette_loom))]
    let _ = Worker::<()>::new_fifo().stealer().steal();
}

#[cfg(estafette_loom)]
mod modelled {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use estafette_sync::sync::Mutex;
    use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

    pub(in super::super) use crossbeam_deque::Steal;

    #[derive(Debug)]
    struct Jobs<J> {
        jobs: Mutex<VecDeque<J>>,
        len: AtomicUsize,
    }

    impl<J> Jobs<J> {
        fn new() -> Self {
            Self { jobs: Mutex::new(VecDeque::new()), len: AtomicUsize::new(0) }
        }

        fn len(&self) -> usize {
            self.len.load(Ordering::Acquire)
        }

        fn change<R>(&self, order: Ordering, change: impl FnOnce(&mut VecDeque<J>) -> R) -> R {
            let mut jobs = self.jobs.lock();
            let result = change(&mut jobs);
            self.len.store(jobs.len(), order);
            result
        }

        fn push(&self, job: J) {
            self.change(Ordering::Release, |jobs| jobs.push_back(job));
        }

        fn steal(&self) -> Steal<J> {
            if self.len() == 0 {
                return Steal::Empty;
            }
            self.change(Ordering::Release, VecDeque::pop_front).map_or(Steal::Empty, Steal::Success)
        }
    }

    /// Jobs that every thread may take.
    #[derive(Debug)]
    pub(in super::super) struct Stealer<J>(Arc<Jobs<J>>);

    pub(in super::super) type Injector<J> = Stealer<J>;

    impl<J> Stealer<J> {
        pub(in super::super) fn new() -> Self {
            Self(Arc::new(Jobs::new()))
        }

        pub(in super::super) fn push(&self, job: J) {
            self.0.push(job);
        }

        pub(in super::super) fn steal(&self) -> Steal<J> {
            self.0.steal()
        }

        pub(in super::super) fn steal_batch_and_pop(&self, _own: &Worker<J>) -> Steal<J> {
            self.0.steal()
        }

        pub(in super::super) fn is_empty(&self) -> bool {
            self.len() == 0
        }

        pub(in super::super) fn len(&self) -> usize {
            self.0.len()
        }
    }

    #[derive(Debug)]
    pub(in super::super) struct Worker<J> {
        jobs: Arc<Jobs<J>>,
        is_lifo: bool,
    }

    impl<J> Worker<J> {
        pub(in super::super) fn new_lifo() -> Self {
            Self { jobs: Arc::new(Jobs::new()), is_lifo: true }
        }

        pub(in super::super) fn new_fifo() -> Self {
            Self { jobs: Arc::new(Jobs::new()), is_lifo: false }
        }

        pub(in super::super) fn stealer(&self) -> Stealer<J> {
            Stealer(self.jobs.clone())
        }

        pub(in super::super) fn push(&self, job: J) {
            self.jobs.push(job);
        }

        pub(in super::super) fn pop(&self) -> Option<J> {
            if self.is_empty() {
                return None;
            }
            let pop = if self.is_lifo { VecDeque::pop_back } else { VecDeque::pop_front };
            self.jobs.change(Ordering::Relaxed, pop)
        }

        pub(in super::super) fn is_empty(&self) -> bool {
            self.len() == 0
        }

        pub(in super::super) fn len(&self) -> usize {
            self.jobs.len()
        }
    }
}
