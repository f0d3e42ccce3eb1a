//! Statics that begin anew with each execution.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Deref;

use shuttle::lazy_static::Lazy;

/// The type of what [`statics`](crate::statics) declares.
///
/// A value is leaked at the end of its execution, as a real static is never dropped, unless
/// [`drop_at_the_end`] was called.
pub struct PerExecution<T: Sync + 'static> {
    init: fn() -> T,
}

debug_as!([T: Sync] _value: PerExecution<T>, "PerExecution");

impl<T: Sync> PerExecution<T> {
    /// For [`statics`](crate::statics): `init` makes a new value.
    pub const fn new(init: fn() -> T) -> Self {
        Self { init }
    }

    /// The value of this execution.
    pub fn get(this: &'static Self) -> &'static T {
        let key = std::ptr::from_ref(this).addr();
        let values = ENDING.get().unwrap_or_else(|| VALUES.get());
        let value = values.find(key).unwrap_or_else(|| values.add(key, Box::new((this.init)())));
        // SAFETY: the list is of one execution, and `key` is the address of a static, so the value is a `T`.
        // It is freed with the execution: after its threads, which alone have such references.
        unsafe { &*value.cast::<T>() }
    }
}

impl<T: Sync> Deref for PerExecution<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only `statics` makes such a value, as a static.
        Self::get(unsafe { &*std::ptr::from_ref(self) })
    }
}

/// Drops the statics of this execution when it is over. For an execution that ends well: one that fails
/// leaves threads behind in the middle of what they do, and leaks its statics.
pub fn drop_at_the_end() {
    VALUES.get().dropped.set(true);
}

static VALUES: Lazy<Values> = Lazy::new(Values::default);

thread_local! {
    /// The statics of the execution that this thread of the system ends, which are being dropped.
    static ENDING: Cell<Option<&'static Values>> = const { Cell::new(None) };
}

/// The statics of one execution, oldest first, each with the address of what declares it.
#[derive(Default)]
struct Values {
    list: RefCell<Vec<(usize, *mut dyn Any)>>,
    dropped: Cell<bool>,
}

// SAFETY: the threads of an execution run on one thread of the system, and none is switched while the list is
// borrowed.
unsafe impl Sync for Values {}

impl Values {
    fn find(&self, key: usize) -> Option<*mut dyn Any> {
        self.list.borrow().iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// Adds a value, unless another thread was faster.
    fn add(&self, key: usize, value: Box<dyn Any>) -> *mut dyn Any {
        self.find(key).unwrap_or_else(|| {
            let value = Box::into_raw(value);
            self.list.borrow_mut().push((key, value));
            value
        })
    }

    fn pop(&self) -> Option<Box<dyn Any>> {
        let (_, value) = self.list.borrow_mut().pop()?;
        // SAFETY: made from a box by `add`, and taken out once.
        Some(unsafe { Box::from_raw(value) })
    }
}

impl Drop for Values {
    /// Shuttle drops its statics after the threads of the execution. The newest value is dropped first. A
    /// destructor that uses a static that is gone finds a new one, which is dropped as well.
    fn drop(&mut self) {
        if !self.dropped.get() {
            return;
        }
        struct Ended;
        impl Drop for Ended {
            fn drop(&mut self) {
                ENDING.set(None);
            }
        }
        // SAFETY: only for as long as this function runs.
        ENDING.set(Some(unsafe { &*std::ptr::from_ref::<Self>(self) }));
        let _ended = Ended;
        while let Some(value) = self.pop() {
            drop(value);
        }
    }
}

/// Statics that hold synchronization primitives; each execution has values of its own, made at their first
/// use.
#[macro_export]
macro_rules! statics {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$attribute])* $visible static $name: $crate::simulated::PerExecution<$type> =
            $crate::simulated::PerExecution::new(|| $value);)+
    };
}
