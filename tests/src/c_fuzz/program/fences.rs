//! Calls about fences and leases.

use super::*;

impl Program {
    pub(super) fn order_on(&mut self, bytes: &mut Bytes<'_>) {
        if self.leases.len() >= HELD_MAX {
            return;
        }
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        // This thread holds other leases, so it must not wait for one: only ready tensors are leased.
        if estafette_query(tensor) != ESTAFETTE_OK {
            return;
        }
        let (access, mut lease) = (bytes.below(4) as i32, ptr::null_mut());
        // And a writer's waits for readers too, which may wait for what the program has yet to settle.
        let unsettled = !self.promises.is_empty() || !self.foreign.is_empty() || self.in_flight() > 0;
        if access == 1 && unsettled {
            return;
        }
        let cpu = estafette::devices::DLDevice::CPU;
        let options = estafette_export_options { access, ..zeroed!(estafette_export_options) };
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            match self.leases.len() % 3 {
                0 => estafette_order_on(tensor, access, cpu, ptr::null_mut(), &raw mut lease),
                1 => estafette_order_on_with(tensor, &raw const options, &raw mut lease),
                _ => {
                    let (tensors, accesses) = (&raw const tensor, &raw const access);
                    estafette_lease_all(self.engine, tensors, accesses, 1, ptr::null(), &raw mut lease)
                }
            }
        };
        allowed(
            got,
            &[
                ESTAFETTE_OK,
                ESTAFETTE_INVALID,
                ESTAFETTE_CONFLICT,
                ESTAFETTE_LEASE_HELD,
                ESTAFETTE_FAILED,
                ESTAFETTE_CANCELLED,
                ESTAFETTE_NOT_DEFINED,
            ],
            "order_on",
        );
        if got == ESTAFETTE_OK {
            assert!(access < 3, "an unknown access was accepted");
            self.leases.push(lease);
        }
    }

    pub(super) fn release_lease(&mut self, bytes: &mut Bytes<'_>) {
        let Some(lease) = take(&mut self.leases, bytes) else { return };
        let done = self.any_fence(bytes);
        let done = done.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: as the interface wants it.
        unsafe { accepts(estafette_lease_release(lease, done), "release a lease") };
        self.is_over(Over::Lease(lease));
    }

    pub(super) fn on_ready(&mut self, bytes: &mut Bytes<'_>) {
        let Some(tensor) = pick(&self.tensors, bytes) else { return };
        Shared::count(&self.shared.contexts);
        Shared::count(&self.shared.to_notify);
        let context = Arc::into_raw(self.shared.clone()).cast_mut().cast();
        // SAFETY: as the interface wants it.
        unsafe {
            refuses(estafette_on_ready(tensor, None, context, Some(drop_shared)), "no callback");
            let got = estafette_on_ready(tensor, Some(notified), context, Some(drop_shared));
            accepts(got, "on_ready");
        }
    }

    pub(super) fn new_foreign(&mut self, bytes: &mut Bytes<'_>) {
        if self.foreign.len() < HELD_MAX {
            self.foreign.push(ForeignFence::new(&self.shared, bytes));
        }
    }

    pub(super) fn settle_foreign(&mut self, bytes: &mut Bytes<'_>) {
        let Some((fence, _)) = pick(&self.foreign, bytes) else { return };
        let how = [0, 0, -2, -4][bytes.below(4)];
        // SAFETY: the program holds it.
        unsafe { &*fence }.settle(how, bytes.one_in(3));
        if bytes.one_in(2) {
            self.foreign.retain(|(known, _)| *known != fence);
            ForeignFence::release(fence);
        }
    }

    pub(super) fn promise(&mut self, bytes: &mut Bytes<'_>) {
        if self.promises.len() >= HELD_MAX || self.fences.len() >= HELD_MAX {
            return;
        }
        let (mut promise, mut fence) = (ptr::null_mut(), std::mem::MaybeUninit::uninit());
        let name = if bytes.one_in(2) { ptr::null() } else { c"fuzzed".as_ptr() };
        // SAFETY: as the interface wants it; the fence is written on success.
        unsafe {
            let got = estafette_promise_create(name, &raw mut promise, fence.as_mut_ptr());
            accepts(got, "promise");
            self.fences.push(fence.assume_init());
        }
        self.promises.push(promise);
    }

    pub(super) fn settle_promise(&mut self, bytes: &mut Bytes<'_>) {
        let Some(promise) = take(&mut self.promises, bytes) else { return };
        let how = [0, 0, -2, -4, 1, 77][bytes.below(6)];
        if how < 0 {
            Shared::count(&self.shared.failures);
        }
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_promise_settle(promise, how, ptr::null());
            accepts_if(how <= 0, got, "settle");
            if how > 0 {
                Shared::count(&self.shared.failures);
                accepts(estafette_promise_drop(promise), "drop a promise");
            }
        }
        self.is_over(Over::Promise(promise));
    }

    pub(super) fn own_fence(&mut self, bytes: &mut Bytes<'_>) {
        if self.derived.len() >= HELD_MAX {
            return;
        }
        let mut fence = std::mem::MaybeUninit::uninit();
        // SAFETY: as the interface wants it; the fence is written on success.
        unsafe {
            let got = match bytes.below(4) {
                0 => pick(&self.ops, bytes).map(|op| estafette_op_fence(op, fence.as_mut_ptr())),
                1 => pick(&self.leases, bytes).map(|lease| estafette_lease_fence(lease, fence.as_mut_ptr())),
                2 => pick(&self.tensors, bytes)
                    .map(|tensor| estafette_writable_fence(tensor, fence.as_mut_ptr())),
                _ => pick(&self.tensors, bytes)
                    .map(|tensor| estafette_tensor_fence(tensor, fence.as_mut_ptr())),
            };
            if let Some(got) = got {
                accepts(got, "a fence of Estafette");
                self.derived.push(fence.assume_init());
            }
        }
    }

    pub(super) fn use_own_fence(&mut self, bytes: &mut Bytes<'_>) {
        let list = if bytes.one_in(2) { &mut self.fences } else { &mut self.derived };
        let Some(fence) = pick(list, bytes) else { return };
        // SAFETY: the program holds a count of it; every function is there.
        unsafe {
            let context = fence.context;
            match bytes.below(4) {
                0 => assert!(
                    fence.query.is_some_and(|query| query(context) <= 1),
                    "a fence says what it cannot"
                ),
                1 => assert!(
                    fence.wait.is_some_and(|wait| wait(context, SHORT_NS) <= 2),
                    "a wait says what it cannot"
                ),
                2 => {
                    let failed = fence.query.is_some_and(|query| query(context) < 0);
                    let text = fence.error.map_or(ptr::null(), |error| error(context));
                    assert!(!failed || !text.is_null(), "a failed fence says nothing");
                }
                _ => {
                    list.retain(|known| known.context != context);
                    if let Some(release) = fence.release {
                        release(context);
                    }
                }
            }
        }
    }
}
