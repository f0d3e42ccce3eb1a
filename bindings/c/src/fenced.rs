//! Tensors with fences of both sides, as `dlpack_fence.h` has them.

use std::ffi::c_void;

use estafette::bindings::{self, exchange::Fenced};
use estafette::{Error, ExportOptions, ImportOptions};

use crate::engine::{self, estafette_engine};
use crate::entry::{DONE, Refusal, entry, place};
use crate::export::{OWNER, access};
use crate::status::estafette_status;
use crate::tensor::{estafette_tensor, reserve, tensor, write_imported};

/// `DLManagedTensorFenced`.
#[derive(Debug)]
pub enum DLManagedTensorFenced {}

/// As `estafette_import`, of a tensor with fences: it is ready when its producer's `ready` is done, and its
/// description may come as late. The deleter is called when the last use is over, so no fence is added.
///
/// Returns as `estafette_import`. If the description comes later and is invalid, the new tensor fails.
///
/// # Safety
/// As for `estafette_import`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_import_fenced(
    engine: *mut estafette_engine,
    fenced: *mut DLManagedTensorFenced,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    entry(|| {
        let engine = engine::engine(engine)?;
        let out = place(out, "out")?;
        let vacant = reserve()?;
        // SAFETY: by contract of this function.
        let taken = unsafe { Fenced::take(fenced.cast::<c_void>()) };
        let taken = taken.map_err(|error| Refusal::from(Error::from(error)))?;
        // SAFETY: by contract of this function.
        let imported = unsafe { bindings::engine::import_fenced(&engine, taken, ImportOptions::default()) };
        // SAFETY: writable, by contract.
        unsafe { write_imported(imported, vacant, out) }
    })
}

/// Hands a tensor to another library at once, with fences: its `ready` is done when the tensor is ready and
/// free for `access` (`ESTAFETTE_READ` or `ESTAFETTE_WRITE`). The caller owns `*out`; the lease ends when its
/// deleter was called, and the fences that the consumer has added before are done. A tensor whose operation
/// has not run yet is described late.
///
/// Returns `ESTAFETTE_OK`, also for a failed version, which fails `ready`; `ESTAFETTE_CONFLICT` for writing
/// what may not be written; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or another access;
/// `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_export_fenced(
    tensor: *const estafette_tensor,
    access: i32,
    out: *mut *mut DLManagedTensorFenced,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        let out = place(out, "out")?;
        let options =
            ExportOptions { owner: Some(OWNER.into()), ..ExportOptions::from(self::access(access)?) };
        let fenced = bindings::tensor::export_fenced(&tensor, &options)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(fenced.into_raw().cast()) };
        DONE
    })
}
