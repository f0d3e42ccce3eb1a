//! Handles that are used after their end, and in the place of others.

use super::*;

#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Tensor(*mut estafette_tensor),
    Lease(*mut estafette_lease),
    Promise(*mut estafette_promise),
    Engine(*mut estafette_engine),
}

impl Over {
    /// One of the calls that take such a handle, with it.
    pub(super) fn is_refused(self, which: usize) {
        let (mut tensor, mut number) = (ptr::null_mut(), 0);
        let mut text = ptr::null_mut();
        let mut fence = std::mem::MaybeUninit::uninit();
        let mut view = ptr::null_mut();
        // SAFETY: handles may be any value, and the rest is as the interface wants it.
        let got = unsafe {
            match (self, which % 6) {
                (Over::Tensor(over), 0) => estafette_tensor_release(over),
                (Over::Tensor(over), 1) => estafette_tensor_retain(over),
                (Over::Tensor(over), 2) => estafette_wait(over, SHORT_NS),
                (Over::Tensor(over), 3) => estafette_export(over, ptr::null(), &raw mut view),
                (Over::Tensor(over), 4) => estafette_tensor_shape(over, ptr::null_mut(), 0, &raw mut number),
                (Over::Tensor(over), _) => estafette_tensor_fence(over, fence.as_mut_ptr()),
                (Over::Lease(over), 0) => estafette_lease_fence(over, fence.as_mut_ptr()),
                (Over::Lease(over), _) => estafette_lease_release(over, ptr::null()),
                (Over::Promise(over), 0) => estafette_promise_drop(over),
                (Over::Promise(over), _) => estafette_promise_settle(over, 0, ptr::null()),
                (Over::Engine(over), 0) => estafette_engine_destroy(over),
                (Over::Engine(over), 1) => estafette_wait_all(over, SHORT_NS),
                (Over::Engine(over), 2) => estafette_diagnose(over, &raw mut text),
                (Over::Engine(over), _) => estafette_zeros(
                    over,
                    ptr::null(),
                    0,
                    DLDataType { code: 2, bits: 32, lanes: 1 },
                    &raw mut tensor,
                ),
            }
        };
        refuses(got, "a handle that is over");
        assert!(last_error().contains("this handle is not in use"), "{self:?}: {}", last_error());
    }
}

impl Program {
    /// Notes a handle whose last holder has gone, which must be refused from now on.
    pub(super) fn is_over(&mut self, over: Over) {
        over.is_refused(0);
        if self.released.len() == HELD_MAX {
            self.released.remove(0);
        }
        self.released.push(over);
    }

    /// A handle that is over, or one of another kind.
    pub(super) fn misuse(&mut self, bytes: &mut Bytes<'_>) {
        if let Some(over) = pick(&self.released, bytes) {
            over.is_refused(bytes.below(6));
        }
        let lease = pick(&self.leases, bytes).map(|lease| lease.cast::<c_void>());
        let promise = pick(&self.promises, bytes).map(|promise| promise.cast::<c_void>());
        for other in [Some(self.engine.cast()), lease, promise].into_iter().flatten() {
            refuses(estafette_tensor_release(other.cast()), "no tensor");
            assert!(last_error().contains("this is the handle of"), "{}", last_error());
        }
        if let Some(tensor) = pick(&self.tensors, bytes) {
            refuses(estafette_engine_destroy(tensor.cast()), "no engine");
            refuses(estafette_promise_drop(tensor.cast()), "no promise");
        }
    }
}
