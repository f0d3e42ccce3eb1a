//! The Python lock as a lock that bodies share: a worker keeps it from one body to the next.
//!
//! Another thread that asks for the lock gets it as from any Python thread: Python code, and every body begins with some, gives the lock
//! away once it was asked for and the switch interval has passed. So an event loop waits for one interval at most, or for one call that
//! keeps the lock for longer.

use estafette::engine::SharedLock;

use crate::interpreter::guard;

#[derive(Debug)]
pub struct PythonLock;

impl SharedLock for PythonLock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        let held = guard::attach(|_py| while next() && !guard::is_closed() {});
        if held.is_none() {
            // The operation notices the end of the interpreter.
            next();
        }
    }
}
