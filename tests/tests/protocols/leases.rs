//! Leases that are given up while they are granted, or while the work that they come after ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use estafette::devices::{FenceSet, host};
use estafette::{Access, DType, ImportOptions};
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::thread;
use tests::foreign;
use tests::simulation::explore;

use crate::{SCHEDULES, engine};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// ```text
/// worker:   end of the write, grants the lease ─── wake
/// program:  poll the request ─── drop it           on a thread of its own, at any time
/// ```
#[test]
fn a_request_that_is_dropped_on_another_thread_while_it_is_granted_holds_nothing_up() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let tensor = engine.zeros(&[1], DType::U64).unwrap();
        let write = engine.op("write").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap();
        let woken = Arc::<Count>::default();
        thread::scope(|scope| {
            let (tensor, waker) = (&tensor, Waker::from(woken.clone()));
            scope.spawn(move || {
                let mut request = Box::pin(tensor.lease(Access::Write, "a test"));
                let polled = request.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(lease) = polled {
                    drop(lease.unwrap());
                }
                drop(request);
            });
            scope.spawn(move || {
                let mut request = Box::pin(tensor.lease(Access::Read, "another test"));
                let _polled = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                drop(request);
            });
        });
        engine.op("after").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap().wait().unwrap();
        write.wait().unwrap();
        assert!(woken.0.load(Ordering::SeqCst) <= 1);
        drop(tensor.lease(Access::Write, "a test").wait(None));
    });
}

/// ```text
/// other library:  done
/// engine:            the lease settles: it is held
/// program:     drop the request
/// ```
#[test]
fn a_request_that_is_dropped_while_the_fences_before_it_settle_holds_nothing_up() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let deleted = foreign::Deleted::default();
        let (completer, pending) = host::promise("work of another library");
        let ready: FenceSet = [pending].into_iter().collect();
        // SAFETY: a true description; nothing uses the memory.
        let tensor = unsafe {
            engine.import_with(
                foreign::tensor(&[1.0], &deleted),
                ImportOptions { ready, ..ImportOptions::default() },
            )
        }
        .unwrap();
        thread::scope(|scope| {
            let tensor = &tensor;
            scope.spawn(move || completer.complete());
            scope.spawn(move || {
                let mut request = Box::pin(tensor.lease(Access::Write, "a test"));
                if let Poll::Ready(lease) = poll_once(request.as_mut()) {
                    drop(lease.unwrap());
                }
                drop(request);
            });
            // Ordered before or after the lease.
            engine.op("after").writes([tensor]).run(|[], [_tensor]| Ok(())).unwrap().wait().unwrap();
        });
        drop(tensor.lease(Access::Write, "a test").wait(None));
        drop(tensor);
        // All remaining users release the memory.
        while deleted.count() == 0 {
            thread::yield_now();
        }
    });
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The request is granted to its future, and dropped on the same thread that then asks anew.
#[test]
fn a_lease_that_is_handed_over_while_others_ask_is_held_by_one() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let tensor = engine.zeros(&[1], DType::U64).unwrap();
        let holders = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    if let Some(lease) = tensor.lease(Access::Write, "a test").try_now().unwrap() {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(lease);
                    }
                });
            }
            let lease = tensor.lease(Access::Write, "a test").wait(None);
            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two writers");
            holders.fetch_sub(1, Ordering::SeqCst);
            drop(lease);
        });
        engine.wait_all(None).unwrap();
    });
}
