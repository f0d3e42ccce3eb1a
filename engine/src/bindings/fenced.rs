//! Tensors with fences, as `dlpack_fence.h` has them: imports that are ready later, and exports that wait for
//! nothing.
//!
//! An export submits the request of its lease and returns. Its `ready` is done when the lease is granted; the
//! lease ends when the consumer has called the deleter and its fences are done. A deleter that comes before
//! the grant leaves the request in its place: the lease then ends as soon as it is granted and the consumer's
//! fences are done.

use std::ptr::NonNull;
use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, FenceSet, host};
use estafette_sync::sync::Mutex;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::abi::fenced::Fenced;
use crate::exchange::abi::fenced::{ExportedFenced, FencedOwner};
use crate::exchange::foreign_fence::{self, RawFence};
use crate::exchange::{Abi, DType, ExportFlags, Layout, ManagedTensor, export, releasing};
use crate::export::{ExportOptions, export_alias, export_held};
use crate::lease::{Access, Lease, LeaseState, check_writable};
use crate::operation::import::{ImportOptions, Produced};
use crate::tensor::alias_map::Region;
use crate::tensor::handle::Tensor;
use crate::wait::notify::{device_error, notify};

/// Adopts a fenced tensor of another library, without a copy and without waiting: it is ready when its
/// `ready` fence is.
///
/// # Errors
/// As [`import_with`](Engine::import_with), and [`Error::Invalid`] for a fence that breaks the rules, and for
/// a release stream of a tensor that is described late. The tensor comes back, and its deleter was not
/// called.
///
/// # Safety
/// As for [`import_with`](Engine::import_with); the fence is what its type says.
pub unsafe fn import_fenced(
    engine: &Engine,
    fenced: Fenced,
    mut options: ImportOptions<'_>,
) -> Result<Tensor, Box<(Error, ManagedTensor)>> {
    let Fenced { managed, ready, described_late } = fenced;
    // SAFETY: by contract; `managed` keeps the struct.
    let ready = match unsafe { foreign_fence::import(ready, engine.devices()) } {
        Ok(ready) => ready,
        Err(error) => return Err(Box::new((error, managed))),
    };
    if !ready.observed_done() {
        options.ready.insert(ready);
    }
    if !described_late {
        // SAFETY: by contract.
        return unsafe { super::engine::import_or_return(engine, managed, options) };
    }
    if options.release_stream.is_some() {
        let error =
            Error::invalid("a tensor that is described late has no release stream: its device is unknown");
        return Err(Box::new((error, managed)));
    }
    let adopt = if options.read_only { Produced::immutable } else { Produced::from };
    let late = Arc::new(Mutex::new(Some(managed)));
    let body = Arc::clone(&late);
    let produced = gate(engine, options.ready).and_then(|gate| {
        engine
            .op("described after export")
            .beyond_limit()?
            .reads([&gate])
            .produce(move |_| Ok(adopt(body.lock().take().expect("a body runs once"))))
    });
    produced.map_err(|error| Box::new((error, late.lock().take().expect("the body has not run"))))
}

/// A tensor of nothing that is ready when `ready` is.
fn gate(engine: &Engine, ready: FenceSet) -> Result<Tensor, Error> {
    let nothing = Layout::contiguous(DType::U8, DLDevice::CPU, &[0])?;
    // SAFETY: there is no memory.
    unsafe {
        let nothing = export(&nothing, std::ptr::null_mut(), ExportFlags::default(), Abi::Versioned, || ());
        engine.import_with(nothing, ImportOptions { ready, read_only: true, ..ImportOptions::default() })
    }
}

/// Hands the tensor to another library at once, as a `DLManagedTensorFenced`: its `ready` is done when the
/// tensor is ready and free for the access of `options`. The lease ends after the deleter's call and the
/// consumer's fences.
///
/// Only access and owner of `options` count: there is no copy, and the consumer orders its queues by the
/// fences.
///
/// # Errors
/// [`Error::Conflict`] for a write lease of memory that may not be written; [`Error::Invalid`] for an alias,
/// which nothing orders; [`Error::Forked`] in a forked child. A failed version fails `ready`.
pub fn export_fenced(tensor: &Tensor, options: &ExportOptions) -> Result<Fenced, Error> {
    tensor.inner.core.generation.check()?;
    match options.access {
        Access::Alias => return Err(Error::invalid("access is alias, which no fence orders")),
        Access::Write => check_writable(tensor)?,
        Access::Read => {}
    }
    let options = &ExportOptions {
        owner: Some(options.owner_text()),
        timeout: None,
        ..ExportOptions::from(options.access)
    };
    let at_once =
        options.access == Access::Read && tensor.inner.is_quiet() && tensor.inner.definition().is_ok();
    if at_once && let Some(lease) = LeaseState::try_read(tensor, || options.owner_text()) {
        let held = export_held(Arc::clone(&lease), options)?;
        let state = FencedState { lease: Some(Lease { inner: lease }), ..FencedState::default() };
        let export = Arc::new(FencedExport { tensor: tensor.clone(), state: Mutex::new(state) });
        let exported = ExportedFenced::new(export.clone(), foreign_fence::done(held.device()), Some(&held));
        export.state.lock().held = Some(held);
        return Ok(exported.owned());
    }
    let (completer, ready) = host::promise("a lease of an exported tensor");
    let mut pending = None;
    let described = match tensor.inner.definition() {
        Err(_) => None,
        Ok(definition) => {
            let read_only = options.access == Access::Read || definition.read_only;
            let keeper = LeaseState::pending(tensor, options.access, options.owner_text(), ready.clone());
            if let Some(placed) = &definition.placed {
                placed.region.add_pending(&keeper);
                pending = Some((Arc::clone(&placed.region), Arc::clone(&keeper)));
            }
            let flags = ExportFlags { read_only, is_copied: false };
            Some(export_alias(keeper, definition, flags, options))
        }
    };
    let export = Arc::new(FencedExport { tensor: tensor.clone(), state: Mutex::default() });
    let exported = ExportedFenced::new(export.clone(), tensor.export_fence(ready), described.as_ref());
    {
        let mut state = export.state.lock();
        state.late = described.is_none().then_some(exported);
        state.described = described;
        state.pending = pending;
    }
    let request = tensor.lease(options.access, options.owner_text()).for_later_consumers();
    let options = options.clone();
    notify(request, move |granted| {
        export.end_pending(granted.as_ref().ok());
        let outcome = granted.and_then(|lease| export.granted(lease, &options));
        let releasing = releasing();
        completer.settle(outcome.map_err(device_error));
        drop(export);
        drop(releasing);
    });
    Ok(exported.owned())
}

/// An export until its deleter was called.
struct FencedExport {
    tensor: Tensor,
    state: Mutex<FencedState>,
}

#[derive(Default)]
struct FencedState {
    /// The struct, if it waits for its description. `None` from the deleter's call on.
    late: Option<ExportedFenced>,
    /// The description of a tensor that was defined at the call.
    described: Option<ManagedTensor>,
    lease: Option<Lease>,
    /// The memory and the lease that imports of the description are derived from, until the lease is granted.
    /// It outlasts the consumer's release: what these imports have left is the granted lease's to report.
    pending: Option<(Arc<Region>, Arc<LeaseState>)>,
    /// The leased tensor, by which its memory is recognized in imports.
    held: Option<ManagedTensor>,
    /// Fences of the consumer that came before the lease.
    done: Vec<Fence>,
    is_released: bool,
}

impl FencedExport {
    /// Imports find the granted lease from here on, if there is one.
    fn end_pending(&self, granted: Option<&Lease>) {
        let pending = self.state.lock().pending.take();
        if let Some((region, pending)) = pending {
            region.end_pending(&pending, granted.map(|lease| &lease.inner));
        }
    }

    fn granted(&self, lease: Lease, options: &ExportOptions) -> Result<(), Error> {
        let held = export_held(Arc::clone(&lease.inner), options)?;
        let mut state = self.state.lock();
        let done = std::mem::take(&mut state.done);
        let unneeded = if state.is_released {
            Some((held, lease.clone()))
        } else {
            if let Some(exported) = state.late.take() {
                // SAFETY: the deleter was not called, and takes this lock first; the consumer waits for
                // `ready`.
                unsafe { exported.describe(&held) };
            }
            state.held = Some(held);
            state.lease = Some(lease.clone());
            None
        };
        drop(state);
        done.into_iter().for_each(|fence| lease.used_until(fence));
        // The lease ends here if the deleter has been called.
        drop((lease, unneeded));
        Ok(())
    }
}

impl FencedOwner for FencedExport {
    unsafe fn add_done(&self, done: NonNull<RawFence>) -> i32 {
        // SAFETY: by contract.
        let Ok(fence) = (unsafe { self.tensor.import_fence(done) }) else { return foreign_fence::INVALID };
        let mut state = self.state.lock();
        match state.lease.clone() {
            None => state.done.push(fence),
            Some(lease) => {
                drop(state);
                lease.used_until(fence);
            }
        }
        foreign_fence::OK
    }

    fn release(&self) {
        let mut state = self.state.lock();
        state.is_released = true;
        state.late = None;
        let dropped = (state.held.take(), state.lease.take(), state.described.take());
        drop(state);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fenced_tensor_is_imported_with_all_options() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let known = || engine.from_vec(vec![1.0_f32], &[1]).unwrap();
        let promised =
            || engine.op("make").produce(|[]| Ok(Produced::from_vec(vec![1.0_f32], &[1])?)).unwrap();
        for (of, is_late) in [(&known as &dyn Fn() -> Tensor, false), (&promised, true)] {
            // Nothing runs before the only worker is free.
            let (done, held) = std::sync::mpsc::channel::<()>();
            engine.op("holds the worker").run(move |[], []| Ok(held.recv()?)).unwrap();
            let tensor = of();
            let fenced = export_fenced(&tensor, &ExportOptions::from(Access::Write)).unwrap();
            assert_eq!(fenced.described_late, is_late);
            let (completer, ready) = host::promise("what the importer knows");
            let options = ImportOptions { ready: ready.into(), read_only: true, ..ImportOptions::default() };
            // SAFETY: the tensor is what it says.
            let imported = unsafe { import_fenced(&engine, fenced, options) }.unwrap();
            done.send(()).unwrap();
            assert!(imported.wait_timeout(Duration::from_millis(50)).is_err(), "a fence is pending");
            completer.complete();
            imported.wait().unwrap();
            // A tensor that is described late is copied here, since this process knows the memory.
            assert_eq!(imported.is_read_only().unwrap(), !is_late);
        }
    }
}
