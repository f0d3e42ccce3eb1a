//! Imports of overlapping memory, of which one makes a group of the variables of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use estafette::Tensor;
use estafette_sync::thread;
use tests::foreign::{Deleted, Memory};
use tests::simulation::explore;

use super::{SCHEDULES, engine};

/// So many parts are made one group when a tensor overlaps them all.
const PARTS: usize = 17;

/// ```text
/// one thread:      import of the whole, which makes a group
/// another thread:                        import of two parts, write of them: after what is under way on one of them
/// ```
#[test]
fn what_is_imported_while_a_group_is_made_waits_for_its_members() {
    explore(SCHEDULES / 3, || {
        let engine = engine(1);
        let (memory, deleted) = (Memory::of(&[0.0; PARTS]), Deleted::default());
        // SAFETY: the memory is there as long as a tensor is, and only the engine uses it.
        let import = |at, len| unsafe { engine.import(memory.tensor(at, len, &deleted)) }.unwrap();
        let parts: Vec<Tensor> = (0..PARTS).map(|at| import(at, 1)).collect();
        let (place, taken) = (Arc::new(std::sync::Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let under_way = Arc::clone(&place);
        let first = engine.op("first").writes([&parts[0]]).run_external(move |completion| {
            *under_way.lock().unwrap() = Some(completion);
        });
        let first = first.unwrap();
        let ended = Arc::clone(&taken);
        let second = thread::scope(|scope| {
            let whole = scope.spawn(|| import(0, PARTS));
            let two = scope.spawn(|| {
                let two = import(0, 2);
                let second = engine.op("second").writes([&two]).run(move |[], [_two]| {
                    assert!(ended.load(Ordering::SeqCst), "it has not waited");
                    Ok(())
                });
                second.unwrap()
            });
            whole.join().unwrap();
            two.join().unwrap()
        });
        taken.store(true, Ordering::SeqCst);
        loop {
            let completion = place.lock().unwrap().take();
            match completion {
                Some(completion) => break completion.complete(Ok(())),
                None => thread::yield_now(),
            }
        }
        first.wait().unwrap();
        second.wait().unwrap();
        drop(parts);
    });
}
