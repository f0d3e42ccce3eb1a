//! Short operations for tests, on tensors of one `f32`.

use std::time::{Duration, Instant};

use estafette::operation::ResultOptions;
use estafette::wait::Status;
use estafette::{DType, Engine, Op, Tensor};

/// An engine with that many workers.
pub fn engine(workers: usize) -> Engine {
    Engine::builder().workers(workers).build().expect("an engine starts")
}

/// A tensor of one element.
pub fn tensor(engine: &Engine, value: f32) -> Tensor {
    engine.from_vec(vec![value], &[1]).expect("a tensor of one element")
}

/// Overwrites `tensor`.
pub fn set(engine: &Engine, tensor: &Tensor, value: f32) -> Op {
    let op = engine.op("set").writes([tensor]).run(move |[], [mut tensor]| {
        tensor.as_mut_slice::<f32>()?.fill(value);
        Ok(())
    });
    op.expect("accepted")
}

/// Adds to `tensor` in place.
pub fn add(engine: &Engine, tensor: &Tensor, value: f32) -> Op {
    let op = engine.op("add").updates([tensor]).run(move |[], [], [mut tensor]| {
        tensor.as_mut_slice::<f32>()?.iter_mut().for_each(|element| *element += value);
        Ok(())
    });
    op.expect("accepted")
}

/// Overwrites `tensor` and fails.
pub fn fail(engine: &Engine, tensor: &Tensor, message: &'static str) -> Op {
    engine.op("fail").writes([tensor]).run(move |[], [_tensor]| Err(message.into())).expect("accepted")
}

/// Reads `tensor` and does nothing.
pub fn read(engine: &Engine, tensor: &Tensor) -> Op {
    engine.op("look").reads([tensor]).run(|[_tensor], []| Ok(())).expect("accepted")
}

/// Value of `tensor`, once it is ready.
pub fn get(tensor: &Tensor) -> f32 {
    tensor.to_vec::<f32>().expect("a good tensor")[0]
}

/// Status of `op` in the engine; `None` when it has ended.
pub fn status(engine: &Engine, op: &Op) -> Option<Status> {
    engine.diagnose().operations.into_iter().find(|known| known.id == op.id()).map(|known| known.status)
}

/// True if `op` waits for earlier operations or leases.
pub fn waits(engine: &Engine, op: &Op) -> bool {
    status(engine, op) == Some(Status::Waiting)
}

/// Polls `condition` until it holds: for changes that other threads make without a notification.
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    until_or(what, condition, String::new);
}

/// As [`until`]; `state` says what is in the way.
pub fn until_or(what: &str, mut condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    until_some(what, || condition().then_some(()), state);
}

/// Waits until `found` finds something. `state` says what is in the way.
pub fn until_some<R>(what: &str, mut found: impl FnMut() -> Option<R>, state: impl Fn() -> String) -> R {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came to this: {what} {}", state());
        std::thread::yield_now();
    }
}

/// Serializes the tests of a binary that use or count what a process has once. The guard ends a test's turn.
pub fn exclusive() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // A test that failed has no state behind this lock.
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A result that is a view of `tensors`.
pub fn alias_of<'a>(tensors: &'a [&'a Tensor]) -> ResultOptions<'a> {
    ResultOptions { alias_of: tensors, ..ResultOptions::default() }
}

/// A result whose type and shape are declared.
pub fn like(dtype: DType, shape: &[i64]) -> ResultOptions<'_> {
    ResultOptions { like: Some((dtype, shape)), ..ResultOptions::default() }
}
