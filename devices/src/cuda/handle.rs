/// A handle of the driver: an address that is handed back and never followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle<T>(T);

// SAFETY: handles may be used from every thread; the driver has locks of its own.
unsafe impl<T> Send for Handle<*mut T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<*mut T> {}

impl<T: Copy> Handle<T> {
    pub(super) fn new(raw: T) -> Self {
        Self(raw)
    }

    pub(super) fn get(self) -> T {
        self.0
    }
}
