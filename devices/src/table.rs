//! The device table: the meaning of a number in [`DLDevice`], for the whole process.
//!
//! CUDA has a default context per device, so a device number identifies memory. SYCL, OpenCL, Vulkan and
//! Metal have none: memory belongs to a context, and a consumer of a number has to find the same context. The
//! table gives contexts numbers. `docs/device-table.md` proposes the table to other libraries.
//!
//! - SYCL's root devices with the default contexts of their platforms are entries 0 to n-1, in dpctl's order,
//!   without being registered: dpctl and dpnp use these numbers already.
//! - CUDA's devices are entries too, under the driver's numbers, so that every number is looked up in one
//!   place.
//! - [`register`] gives any other context a number from [`FIRST_REGISTERED`] on. The same context gets the
//!   same number again, counted; numbers are never given twice, so a stale number is an error and never
//!   another context.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use estafette_sync::sync::Mutex;

use crate::{DLDevice, Device, DeviceError, DeviceErrorKind, DeviceType, Identity};

/// Numbers of registered contexts begin here, far beyond any number of devices in a machine.
pub const FIRST_REGISTERED: i32 = 1 << 16;

/// A kind of device in the table: a runtime whose devices are entries without being registered. Functions
/// without an error find nothing where there is no runtime. They may load it, and are called under no lock.
pub trait Backend: Sync {
    /// The kind of the devices.
    fn kind(&self) -> DeviceType;

    /// The reason why there is no runtime; `None` where there is one.
    fn missing(&self) -> Option<DeviceError>;

    /// The entry of the device with a number, if it can be used.
    ///
    /// # Errors
    /// There is no runtime.
    fn find(&self, number: i32) -> Result<Option<DeviceEntry>, DeviceError>;

    /// All devices that can be used.
    fn all(&self) -> Vec<DeviceEntry>;

    /// The number of a device that the process uses already, of kinds that share memory with the host.
    fn used(&self) -> Option<i32> {
        None
    }

    /// The numbers of all devices that the process uses already, of such kinds.
    fn all_used(&self) -> Vec<i32> {
        Vec::new()
    }

    /// The number of the device that its runtime calls so, of kinds whose memory crosses processes.
    fn identified(&self, _uuid: [u8; 16]) -> Option<i32> {
        None
    }

    /// Registration of contexts, of kinds whose contexts need numbers.
    fn contexts(&self) -> Option<&dyn Contexts> {
        None
    }
}

/// Questions to the runtime of a registered context. [`entry`](Self::entry) and [`is_same`](Self::is_same)
/// are called under the lock of the table, and must not use the table.
pub trait Contexts {
    /// The device whose number stands for the context without being registered.
    ///
    /// # Errors
    /// There is no runtime.
    ///
    /// # Safety
    /// `context` is a live context of the runtime.
    unsafe fn root(&self, context: NonNull<c_void>) -> Result<Option<DLDevice>, DeviceError>;

    /// The entry of a context under a number.
    ///
    /// # Errors
    /// There is no runtime, or the context has no usable device.
    ///
    /// # Safety
    /// As [`root`](Self::root).
    unsafe fn entry(&self, context: NonNull<c_void>, id: DLDevice) -> Result<DeviceEntry, DeviceError>;

    /// True if an entry's device is of the context.
    ///
    /// # Safety
    /// As [`root`](Self::root).
    unsafe fn is_same(&self, device: &dyn Device, context: NonNull<c_void>) -> bool;
}

estafette_sync::per_process! {
    /// Backends that other crates have added, by their kinds.
    static ADDED: Mutex<Vec<(DeviceType, &'static dyn Backend)>> = Mutex::new(Vec::new());
}

/// Adds a kind of device of another crate to the table. A kind that the table has already stays as it is. A
/// forked child adds the kind again.
pub fn add(backend: &'static dyn Backend) {
    let kind = backend.kind();
    let is_shipped = crate::BACKENDS.iter().any(|known| known.kind() == kind);
    let mut added = ADDED.lock();
    if !is_shipped && added.iter().all(|(known, _)| *known != kind) {
        added.push((kind, backend));
    }
}

fn backends() -> Vec<&'static dyn Backend> {
    crate::BACKENDS.iter().copied().chain(ADDED.lock().iter().map(|(_, backend)| *backend)).collect()
}

/// The reasons why runtimes are not there, one for each kind without one. Loads all others.
pub fn missing() -> Vec<DeviceError> {
    backends().iter().filter_map(|backend| backend.missing()).collect()
}

/// The entry of a device number.
#[derive(Clone)]
pub struct DeviceEntry {
    /// The kind and the number.
    pub id: DLDevice,
    /// The native context (`sycl::context *`, `cl_context`, `VkDevice`, `id<MTLDevice>`), as a number.
    pub context: usize,
    /// The device, of kinds that can run work here; `None` for kinds that are a context only.
    pub device: Option<Arc<dyn Device>>,
    /// The number of registrations; 0 for entries that need none.
    pub registrations: usize,
}

debug_as!(entry: DeviceEntry, "DeviceEntry({}, context {:#x}, {} registrations)", entry.id, entry.context, entry.registrations);

#[derive(Default)]
struct Table {
    entries: BTreeMap<i32, DeviceEntry>,
    /// Numbers given out so far.
    given: i32,
}

estafette_sync::per_process! {
    static TABLE: Mutex<Table> = Mutex::new(Table { entries: BTreeMap::new(), given: 0 });
}

/// Gives a native context a number, or counts one more registration. [`unregister`] ends one registration.
///
/// A default context of a SYCL platform keeps the number of its first device and needs no registration; it is
/// not counted.
///
/// # Errors
/// `Invalid` for a kind whose devices have numbers of their own, and for a SYCL context without a usable
/// device; the error that keeps the SYCL runtime from being loaded.
///
/// # Safety
/// `context` is a live context of that kind, for SYCL of this process's runtime, and stays so until it is
/// unregistered. (Of a SYCL context a reference is kept.)
pub unsafe fn register(kind: DeviceType, context: NonNull<c_void>) -> Result<DLDevice, DeviceError> {
    let backend = backend(kind);
    let contexts = backend.and_then(|backend| backend.contexts());
    if contexts.is_none() && !kind.is_context_alone() {
        let message = format!(
            "{kind} devices have numbers of their own, or this build has no backend for them: there is no context to register"
        );
        return Err(invalid(message));
    }
    if let Some(contexts) = contexts
        // SAFETY: by contract.
        && let Some(root) = unsafe { contexts.root(context) }?
    {
        return Ok(root);
    }
    let address = context.as_ptr().expose_provenance();
    let mut table = TABLE.lock();
    for entry in table.entries.values_mut().filter(|entry| entry.id.device_type == kind) {
        let is_same = |contexts: &dyn Contexts| {
            // SAFETY: by contract; the entry's context is alive as long as the entry.
            entry.device.as_deref().is_some_and(|device| unsafe { contexts.is_same(device, context) })
        };
        if entry.context == address || contexts.is_some_and(is_same) {
            entry.registrations += 1;
            return Ok(entry.id);
        }
    }
    let number = FIRST_REGISTERED.checked_add(table.given).ok_or_else(|| {
        DeviceError::new(DeviceErrorKind::Other, "every number of the device table has been given out")
    })?;
    let id = DLDevice::new(kind, number);
    let entry = match contexts {
        // SAFETY: by contract.
        Some(contexts) => unsafe { contexts.entry(context, id) }?,
        None => DeviceEntry { id, context: address, device: None, registrations: 0 },
    };
    table.given += 1;
    table.entries.insert(number, DeviceEntry { registrations: 1, ..entry });
    Ok(id)
}

/// Ends one registration. The end of the last one removes the entry; devices resolved before stay usable as
/// long as a reference to them exists.
///
/// # Errors
/// `Invalid` for a number that is not registered.
pub fn unregister(id: DLDevice) -> Result<(), DeviceError> {
    if id.device_id < FIRST_REGISTERED {
        // A default context: its registrations are not counted.
        return resolve(id).map(drop);
    }
    let gone = {
        let mut table = TABLE.lock();
        let Some(entry) = table.entries.get_mut(&id.device_id).filter(|entry| entry.id == id) else {
            return Err(unknown(&table, id));
        };
        entry.registrations -= 1;
        if entry.registrations == 0 { table.entries.remove(&id.device_id) } else { None }
    };
    // The drop of a device calls its runtime: done outside of the lock.
    drop(gone);
    Ok(())
}

/// The entry of a device number.
///
/// # Errors
/// `Invalid` for a number that was never registered, and, in other words, for one that is registered no more.
pub fn resolve(id: DLDevice) -> Result<DeviceEntry, DeviceError> {
    if id.device_id >= FIRST_REGISTERED {
        let table = TABLE.lock();
        let known = table.entries.get(&id.device_id).filter(|entry| entry.id == id).cloned();
        return known.ok_or_else(|| unknown(&table, id));
    }
    let found = backend(id.device_type).map_or(Ok(None), |backend| backend.find(id.device_id));
    found
        .map_err(|error| invalid(format!("device {id} is not available: {error}")))?
        .ok_or_else(|| no_such(id))
}

fn backend(kind: DeviceType) -> Option<&'static dyn Backend> {
    let shipped = crate::BACKENDS.iter().copied().find(|backend| backend.kind() == kind);
    let added = || ADDED.lock().iter().find(|(known, _)| *known == kind).map(|(_, backend)| *backend);
    shipped.or_else(added)
}

/// The device that memory of `id` is made and freed on: `id` itself, or, of memory that a runtime shares with
/// the host, which carries no number, a device that the process uses already. The first device where it uses
/// none.
pub fn owner(id: DLDevice) -> DLDevice {
    let owner = id.queue_device();
    if owner == id {
        return id;
    }
    let used = backend(owner.device_type).and_then(|backend| backend.used());
    used.map_or(owner, |number| DLDevice::new(owner.device_type, number))
}

/// The devices that may use memory of `id`: `id` itself, or, of memory that a runtime shares with the host,
/// all devices of the runtime that the process uses already, its [owner] at least.
pub fn users(id: DLDevice) -> Vec<DLDevice> {
    let owner = owner(id);
    if owner == id {
        return vec![id];
    }
    let all = backend(owner.device_type).map_or_else(Vec::new, |backend| backend.all_used());
    let others = all.into_iter().filter(|number| *number != owner.device_id);
    std::iter::once(owner.device_id)
        .chain(others)
        .map(|number| DLDevice::new(owner.device_type, number))
        .collect()
}

/// The device that other processes know by `identity`.
///
/// # Errors
/// `Invalid` where this process does not have it.
pub fn identified(identity: &Identity) -> Result<Arc<dyn Device>, DeviceError> {
    let (kind, own) = identity.split_first_chunk().expect("longer than four bytes");
    let kind = DeviceType(i32::from_le_bytes(*kind));
    let number = backend(kind).zip(own.as_array()).and_then(|(backend, own)| backend.identified(*own));
    let device = number.map(|number| resolve(DLDevice::new(kind, number))).transpose()?;
    device.and_then(|entry| entry.device).ok_or_else(|| {
        invalid(format!("memory is on a {kind} device of another process which this process does not have"))
    })
}

/// Every entry: the devices of the backends, if there are runtimes, and what is registered. Loads all of
/// them.
pub fn entries() -> Vec<DeviceEntry> {
    let mut entries: Vec<_> = backends().into_iter().flat_map(|backend| backend.all()).collect();
    entries.extend(TABLE.lock().entries.values().cloned());
    entries
}

/// As [`entries`], of one kind: no other runtime is loaded, and no device of another kind is opened.
pub fn entries_of(kind: DeviceType) -> Vec<DeviceEntry> {
    let mut entries = backend(kind).map_or_else(Vec::new, |backend| backend.all());
    let table = TABLE.lock();
    entries.extend(table.entries.values().filter(|entry| entry.id.device_type == kind).cloned());
    entries
}

impl DeviceEntry {
    /// The entry of a device whose number is its runtime's own.
    pub fn of<D: Device>(device: &Arc<D>) -> Self {
        let (id, context) = (device.id(), device.native_context());
        Self { id, context, device: Some(Arc::clone(device) as Arc<dyn Device>), registrations: 0 }
    }
}

fn invalid(message: impl ToString) -> DeviceError {
    DeviceError::invalid(message.to_string())
}

fn unknown(table: &Table, id: DLDevice) -> DeviceError {
    let was_given = (FIRST_REGISTERED..FIRST_REGISTERED + table.given).contains(&id.device_id);
    if was_given && !table.entries.contains_key(&id.device_id) {
        return invalid(format!("the context of {id} is registered no more"));
    }
    no_such(id)
}

fn no_such(id: DLDevice) -> DeviceError {
    invalid(format!("no context is registered as {id}, and no usable device has this number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> NonNull<c_void> {
        // A context of a kind that is never looked into here is an address and no more.
        NonNull::from(Box::leak(Box::new(0_u8))).cast()
    }

    fn register_vulkan(context: NonNull<c_void>) -> DLDevice {
        // SAFETY: contexts of this kind are only compared.
        unsafe { register(DeviceType::VULKAN, context) }.expect("any context will do")
    }

    #[test]
    fn a_context_keeps_its_number_until_its_last_registration_ends() {
        let (one, other) = (context(), context());
        let id = register_vulkan(one);
        assert!(id.device_id >= FIRST_REGISTERED);
        assert_eq!(register_vulkan(one), id);
        let second = register_vulkan(other);
        assert_ne!(second, id);
        let entry = resolve(id).expect("it is registered");
        assert_eq!((entry.context, entry.registrations), (one.as_ptr().addr(), 2));
        unregister(id).expect("registered twice");
        assert!(resolve(id).is_ok());
        unregister(id).expect("registered once more");
        for error in [resolve(id).expect_err("gone"), unregister(id).expect_err("gone")] {
            assert!(error.message().contains("registered no more"), "{error}");
        }
        assert_ne!(register_vulkan(one), id, "a number is never given twice");
        assert!(resolve(second).is_ok());
    }

    #[test]
    fn what_was_never_registered_is_an_error_that_says_so() {
        let id = DLDevice::new(DeviceType::METAL, i32::MAX);
        assert!(
            resolve(id)
                .expect_err("it is not registered")
                .message()
                .contains("no context is registered as metal:")
        );
        // SAFETY: refused before the context matters.
        let refused = unsafe { register(DeviceType::CUDA, context()) }.expect_err("CUDA counts itself");
        assert_eq!(refused.kind(), DeviceErrorKind::Invalid);
    }

    #[test]
    fn threads_that_register_one_context_agree_on_its_number() {
        let address = context().as_ptr().expose_provenance();
        let ids: Vec<_> = (0..8)
            .map(|_| {
                estafette_sync::thread::spawn(move || {
                    let context = std::ptr::with_exposed_provenance_mut(address);
                    register_vulkan(NonNull::new(context).expect("not null"))
                })
            })
            .map(|thread| thread.join().expect("nothing panics"))
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!(resolve(ids[0]).expect("registered").registrations, 8);
        ids.into_iter().for_each(|id| unregister(id).expect("once each"));
    }
}
