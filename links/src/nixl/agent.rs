//! An agent of NIXL with its UCX backend, and the transfers that it makes.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use super::api::{AgentConfig, Api, HOST_MEMORY, IN_PROGRESS, Object, READ, Status};
use super::library::api;
use crate::Segment;
use crate::platform::free;

const UCX: &CStr = c"UCX";
/// Otherwise UCX connects by calls that wait, two minutes where packets are dropped, in which the thread of
/// the network sees to no connection.
const UCX_OPTION: [&CStr; 2] = [c"engine_config", c"TCP_CONN_NB=y"];

/// The refusal of NIXL, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NixlError(String);

impl NixlError {
    /// A transfer ended with a failure, of which NIXL says no more.
    pub(crate) fn transfer_failed() -> Self {
        Self("NIXL: a transfer failed".to_owned())
    }
}

/// The status of a call, if that is no failure.
fn ok(what: &str, status: Status) -> Result<Status, NixlError> {
    if status < 0 { Err(NixlError(format!("NIXL: {what} failed with status {status}"))) } else { Ok(status) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Done,
    Failed,
}

/// An agent. It has pointers, so it stays on the thread that made it: NIXL takes no locks for it.
///
/// A transfer that was given up may still write into its memory, until the agent is dropped: with UCX over
/// TCP neither the release of the transfer nor the word that its peer is invalid stops it. So an agent serves
/// one peer, and is dropped with it, before the memory is.
#[derive(Debug)]
pub(crate) struct Agent {
    api: &'static Api,
    // The fields are dropped in this order: after the agent nothing writes to memory of transfers any more.
    /// The list that a poll of notifications fills.
    notes: Owned,
    agent: Owned,
    backend: Owned,
    /// Memory that peers and transfers may use: kept for as long as the agent may touch it.
    segments: Vec<Registered>,
    /// Memory has been registered that [`metadata`](Self::metadata) has not described.
    is_changed: bool,
}

#[derive(Debug)]
struct Registered {
    /// NIXL's handle: a list of one range.
    list: Owned,
    segment: Arc<Segment>,
}

/// An object of NIXL, which is destroyed on drop.
#[derive(Debug)]
struct Owned {
    object: Object,
    destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Owned {
    /// The object that `make` writes, which `destroy` destroys.
    fn new(
        what: &str,
        destroy: unsafe extern "C" fn(Object) -> Status,
        make: impl FnOnce(*mut Object) -> Status,
    ) -> Result<Self, NixlError> {
        let mut new = Self { object: ptr::null_mut(), destroy };
        ok(what, make(&raw mut new.object))?;
        Ok(new)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // An object that was not made is null.
        if !self.object.is_null() {
            // SAFETY: made by this library, and used no more.
            unsafe { (self.destroy)(self.object) };
        }
    }
}

/// A transfer of an agent, which has posted it.
#[derive(Debug)]
pub(crate) struct Transfer(Object);

impl Agent {
    /// An agent that peers know as `name`. Fails where the library is missing, or refuses.
    ///
    /// The first agent takes half a second, and the process may exit meanwhile. NIXL registers in three steps
    /// what destroys its statics, which runs after what is registered later. So `registered` is called with
    /// the number of each step.
    pub(crate) fn new(name: &CStr, registered: impl Fn(usize)) -> Result<Self, NixlError> {
        let api = api().map_err(NixlError)?;
        let config = AgentConfig::default();
        let (mut memory, mut options) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: names end with zero; each call writes one object through its last pointer, and is given
        // objects that earlier calls made.
        unsafe {
            let notes = Owned::new("making a list of notifications", api.destroy_notif_map, |made| {
                (api.create_notif_map)(made)
            })?;
            let agent = Owned::new("making an agent", api.destroy_agent, |made| {
                (api.create_configured_agent)(name.as_ptr(), &raw const config, made)
            })?;
            // Makes what knows the plugins, which the next call would make before it loads one.
            drop(Owned::new("looking for plugins", api.destroy_string_list, |made| {
                (api.get_available_plugins)(agent.object, made)
            })?);
            registered(0);
            let plugin =
                (api.get_plugin_params)(agent.object, UCX.as_ptr(), &raw mut memory, &raw mut options);
            ok("finding its UCX backend", plugin)?;
            (api.destroy_mem_list)(memory);
            registered(1);
            let [name, value] = UCX_OPTION.map(CStr::as_ptr);
            let configured = (api.params_add)(options, name, value);
            let backend =
                Owned::new("starting its UCX backend", api.destroy_backend, |made| match configured {
                    ..0 => configured,
                    _ => (api.create_backend)(agent.object, UCX.as_ptr(), options, made),
                });
            (api.destroy_params)(options);
            registered(2);
            Ok(Self { api, notes, agent, backend: backend?, segments: Vec::new(), is_changed: false })
        }
    }

    /// Options of a call, which name the backend.
    fn options(&self) -> Result<Owned, NixlError> {
        let api = self.api;
        // SAFETY: writes one object; the backend is the agent's.
        unsafe {
            let options =
                Owned::new("making options", api.destroy_opt_args, |made| (api.create_opt_args)(made))?;
            ok("naming the backend", (api.opt_args_add_backend)(options.object, self.backend.object))?;
            Ok(options)
        }
    }

    /// A list of one range of memory.
    fn range(&self, start: usize, bytes: usize) -> Result<Owned, NixlError> {
        let api = self.api;
        // SAFETY: writes one object.
        unsafe {
            let list = Owned::new("making a list", api.destroy_xfer_dlist, |made| {
                (api.create_xfer_dlist)(HOST_MEMORY, made, false)
            })?;
            ok("naming memory", (api.xfer_dlist_add_desc)(list.object, start, bytes, 0))?;
            Ok(list)
        }
    }

    /// Lets peers and transfers use the memory of `segment`.
    pub(crate) fn register(&mut self, segment: &Arc<Segment>) -> Result<(), NixlError> {
        if self.segments.iter().any(|known| Arc::ptr_eq(&known.segment, segment)) {
            return Ok(());
        }
        let (api, options) = (self.api, self.options()?);
        // SAFETY: the memory stays, as this agent keeps the segment. NIXL undoes a registration that fails
        // (`nixlAgent::registerMem`).
        let list = unsafe {
            let list = Owned::new("making a list of memory", api.destroy_reg_dlist, |made| {
                (api.create_reg_dlist)(HOST_MEMORY, made, false)
            })?;
            let (start, bytes) = (segment.start().as_ptr().addr(), segment.bytes());
            let added = (api.reg_dlist_add_desc)(list.object, start, bytes, 0, ptr::null(), 0);
            ok("describing memory", added)?;
            ok("registering memory", (api.register_mem)(self.agent.object, list.object, options.object))?;
            list
        };
        self.segments.push(Registered { list, segment: Arc::clone(segment) });
        self.is_changed = true;
        Ok(())
    }

    /// The number of segments that nothing else has, and their bytes.
    pub(crate) fn unused(&self) -> (usize, usize) {
        let unused = self.segments.iter().filter(|known| Arc::strong_count(&known.segment) == 1);
        unused.fold((0, 0), |(count, bytes), known| (count + 1, bytes + known.segment.bytes()))
    }

    /// Releases segments that nothing else has. Not for memory that a peer was shown: it would not learn of
    /// it.
    ///
    /// # Safety
    /// No transfer into them is pending, or was given up.
    pub(crate) unsafe fn forget_unused(&mut self) {
        let (api, agent) = (self.api, self.agent.object);
        let unused = |known: &mut Registered| Arc::strong_count(&known.segment) == 1;
        for known in self.segments.extract_if(.., unused) {
            // SAFETY: registered by this list, which is used no more; the segment goes after both, and no
            // transfer uses it.
            unsafe { (api.deregister_mem)(agent, known.list.object, ptr::null_mut()) };
        }
    }

    /// The metadata that a peer needs to read what is registered. No bytes if that is the same as the last
    /// time.
    pub(crate) fn metadata(&mut self) -> Result<Vec<u8>, NixlError> {
        if !self.is_changed {
            return Ok(Vec::new());
        }
        let (mut data, mut bytes) = (ptr::null_mut::<c_void>(), 0);
        // SAFETY: the call gives that many bytes, which are freed here and not used after.
        unsafe {
            let described = (self.api.get_local_md)(self.agent.object, &raw mut data, &raw mut bytes);
            ok("describing the agent", described)?;
            let metadata = match data.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(data.cast::<u8>(), bytes).to_vec(),
            };
            free(data);
            self.is_changed = false;
            Ok(metadata)
        }
    }

    /// Learns of a peer, or of more memory of it. Returns its name.
    pub(crate) fn load(&self, metadata: &[u8]) -> Result<CString, NixlError> {
        let mut name = ptr::null_mut::<c_char>();
        // SAFETY: reads the bytes; the name that it gives ends with zero, and is freed here.
        unsafe {
            let loaded = (self.api.load_remote_md)(
                self.agent.object,
                metadata.as_ptr().cast(),
                metadata.len(),
                &raw mut name,
            );
            ok("meeting the other agent", loaded)?;
            let copy = CStr::from_ptr(name).to_owned();
            free(name.cast());
            Ok(copy)
        }
    }

    /// Reads `bytes` bytes at `there` of `peer` to `here`; the peer gets `note` when all of them have come.
    ///
    /// # Safety
    /// `here` is memory that is registered, of that length, which nothing else uses until the transfer is
    /// done or the agent dropped.
    pub(crate) unsafe fn read(
        &self,
        peer: &CStr,
        here: *mut u8,
        there: u64,
        bytes: usize,
        note: &[u8],
    ) -> Result<Transfer, NixlError> {
        let there = usize::try_from(there).map_err(|_| NixlError("an address that is none".to_owned()))?;
        let options = self.options()?;
        let (local, remote) = (self.range(here.addr(), bytes)?, self.range(there, bytes)?);
        let mut request = ptr::null_mut();
        // SAFETY: lists and options live until the end of the block; NIXL copies the note. The caller vouches
        // for the memory here; the addresses there are checked by the peer's side.
        unsafe {
            let noted = (self.api.opt_args_set_notif_msg)(options.object, note.as_ptr().cast(), note.len());
            ok("noting the end of a transfer", noted)?;
            ok("noting the end of a transfer", (self.api.opt_args_set_has_notif)(options.object, true))?;
            let (agent, peer) = (self.agent.object, peer.as_ptr());
            let made = (self.api.create_xfer_req)(
                agent,
                READ,
                local.object,
                remote.object,
                peer,
                &raw mut request,
                options.object,
            );
            ok("preparing a transfer", made)?;
            let transfer = Transfer(request);
            match ok("starting a transfer", (self.api.post_xfer_req)(agent, request, options.object)) {
                Ok(_) => Ok(transfer),
                Err(error) => {
                    self.end(transfer);
                    Err(error)
                }
            }
        }
    }

    /// Moves bytes, and says where a transfer is.
    pub(crate) fn progress(&self, transfer: &Transfer) -> Progress {
        // SAFETY: a transfer of this agent that has not ended.
        match unsafe { (self.api.get_xfer_status)(self.agent.object, transfer.0) } {
            IN_PROGRESS => Progress::Pending,
            status if status < 0 => Progress::Failed,
            _ => Progress::Done,
        }
    }

    /// Releases a transfer. One that was pending may still write.
    pub(crate) fn end(&self, transfer: Transfer) {
        // SAFETY: a transfer of this agent, which is used no more.
        unsafe {
            (self.api.release_xfer_req)(self.agent.object, transfer.0);
            (self.api.destroy_xfer_req)(transfer.0);
        }
    }

    /// Moves bytes, and returns the notes that peers have left since.
    pub(crate) fn notes(&self) -> Result<Vec<Vec<u8>>, NixlError> {
        let (mut notes, list) = (Vec::new(), self.notes.object);
        // SAFETY: what the list gives out lives until it is cleared; the bytes are copied before.
        unsafe {
            ok("looking for notifications", (self.api.get_notifs)(self.agent.object, list, ptr::null_mut()))?;
            let mut agents = 0;
            ok("counting notifications", (self.api.notif_map_size)(list, &raw mut agents))?;
            for agent in 0..agents {
                let (mut name, mut count) = (ptr::null(), 0);
                let named = (self.api.notif_map_get_agent_at)(list, agent, &raw mut name);
                ok("reading notifications", named)?;
                let counted = (self.api.notif_map_get_notifs_size)(list, name, &raw mut count);
                ok("counting notifications", counted)?;
                for index in 0..count {
                    let (mut data, mut bytes) = (ptr::null::<c_void>(), 0);
                    let read =
                        (self.api.notif_map_get_notif)(list, name, index, &raw mut data, &raw mut bytes);
                    ok("reading a notification", read)?;
                    if !data.is_null() {
                        notes.push(std::slice::from_raw_parts(data.cast::<u8>(), bytes).to_vec());
                    }
                }
            }
            if agents > 0 {
                ok("clearing notifications", (self.api.notif_map_clear)(list))?;
            }
        }
        Ok(notes)
    }
}
