//! The lock of an interpreter, which a thread may have where the engine calls a driver.
//!
//! A call of a driver may wait for another thread: for one that waits in such a call, and that for a function
//! on the host which wants the interpreter's lock. So the thread releases this lock meanwhile.

use estafette_sync::sync::OnceLock;

/// Runs its argument without the lock, if the calling thread has it.
type Unlocked = fn(&mut dyn FnMut());

estafette_sync::statics! {
    static UNLOCKED: OnceLock<Unlocked> = OnceLock::new();
}

/// Sets what runs a function without the lock. Only the first call counts.
pub fn set_program_lock(unlocked: Unlocked) {
    UNLOCKED.get_or_init(|| unlocked);
}

/// Runs `f`, which may call a driver, without the lock. To be called under no lock of the engine.
pub(crate) fn without_program_lock<R>(f: impl FnOnce() -> R) -> R {
    let Some(unlocked) = UNLOCKED.get() else { return f() };
    let (mut f, mut result) = (Some(f), None);
    unlocked(&mut || result = f.take().map(|f| f()));
    result.expect("what releases the lock runs the function")
}
