//! Tensors of other processes: tickets, doors and links.

use std::ffi::{CString, c_char};
use std::ptr::NonNull;
use std::time::Duration;

use estafette::bindings;
use estafette::remote::{Address, Door, Link, ShareOptions, Ticket};
use estafette::{Access, Engine};

use crate::engine::{self, estafette_engine, timeout};
use crate::entry::{Answer, DONE, Refusal, array, entry, entry_unless_null, flag, needed, place, text};
use crate::export::access;
use crate::handles::{Pinned, Table};
use crate::options::{self, sized_options};
use crate::places::HandleKind;
use crate::status::estafette_status;
use crate::tensor::{self, estafette_tensor};

/// Names a version of a tensor for other processes: of the same user on this machine, and with `reach` in its
/// options on other machines. Its bytes may travel through anything, to processes that no link joins.
#[derive(Debug)]
pub enum estafette_ticket {}

/// The listener by which other processes of the same user on this machine make links to this one.
#[derive(Debug)]
pub enum estafette_door {}

/// A link to another process: tensors cross it in both directions, in order, without a copy, and before they
/// are ready.
#[derive(Debug)]
pub enum estafette_link {}

static TICKETS: Table<Ticket> = Table::new(HandleKind::Ticket);
static DOORS: Table<Door> = Table::new(HandleKind::Door);
static LINKS: Table<Linked> = Table::new(HandleKind::Link);

/// A link, and the engine that its tensors belong to.
struct Linked {
    engine: Engine,
    link: Link,
}

fn link(link: *const estafette_link) -> Result<Pinned<Linked>, Refusal> {
    LINKS.get(link, "link")
}

/// Options of a ticket. All bytes zero, but for `size`, are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_ticket_options {
    /// `sizeof(estafette_ticket_options)`.
    pub size: u32,
    /// 1: for one use. The version is kept until the ticket was used and what was made with it is gone, or
    /// until it is revoked, or else for as long as this process lives; `estafette_ticket_release` leaves it
    /// valid. 0: for any number of uses, until it is revoked or released.
    pub once: i32,
    /// Condition of a copy for the other process, made in shared memory once the tensor is ready. 0: its
    /// memory is not shared. 1: always. -1: never.
    pub copy: i32,
    /// NULL, or where other machines reach this one, `host` or `host:port`: the ticket is good there as well,
    /// and gives a copy, which NIXL makes. The process then listens there for as long as it lives; without a
    /// port the system chooses one. NIXL (`libnixl_capi.so`) must be found by the loader, here and there.
    /// Data and the secret of the ticket cross the network as they are, so its machines must trust each
    /// other.
    pub reach: *const c_char,
    /// With `reach`: after how much silence a process on another machine takes this one for dead, and this
    /// one suspects that, in nanoseconds, at least 2 s; 0 for 10 s.
    pub deadline_ns: u64,
}

/// Options of what is sent. All bytes zero, but for `size`, are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_send_options {
    /// `sizeof(estafette_send_options)`.
    pub size: u32,
    /// As `copy` of `estafette_ticket_options`.
    pub copy: i32,
    /// One of `estafette_access`. `ESTAFETTE_READ`: the other process reads the version. `ESTAFETTE_WRITE`:
    /// it alone uses the tensor, which is of `estafette_zeros_shared_for_writing`, until it has released it,
    /// and what it has written is the next version. That version has failed if the process could not take the
    /// tensor, has failed to write it, has closed the link before it received it, or has died meanwhile. A
    /// later write of the whole makes the tensor usable again. `copy` is 0 or -1 then.
    pub access: i32,
}

// SAFETY: numbers and pointers, the size first.
sized_options!(unsafe estafette_send_options, 8);

/// The meaning of a field `copy`.
fn copy_of(options: &str, copy: i32) -> Result<Option<bool>, Refusal> {
    match copy {
        0 => Ok(None),
        -1 | 1 => Ok(Some(copy == 1)),
        copy => Err(Refusal::invalid(format!("{options}: copy is {copy}"))),
    }
}

// SAFETY: numbers and pointers, the size first.
sized_options!(unsafe estafette_ticket_options, 8);

/// Makes a ticket for the version of `tensor` that is current at this call, ready or not. Writes that are
/// submitted later wait until the ticket is revoked, and what was made with it is gone. Waits for nothing.
/// `options` may be NULL for the defaults. The caller owns `*out` and gives it up by
/// `estafette_ticket_revoke` or `estafette_ticket_release`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_NOT_SHARED` for memory that other processes cannot be shown, if a copy
/// was refused; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, a wrong option, or when 65,536
/// tickets are alive, and with `reach` when NIXL is missing or the address is none of this machine;
/// `ESTAFETTE_FAILED` with the reason when the system refuses to open a door; `ESTAFETTE_SHUTDOWN`;
/// `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// `options` is NULL or as long as its size says, and its `reach` NULL or a text; `out` is NULL or may be
/// written. `tensor` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_ticket_create(
    tensor: *const estafette_tensor,
    options: *const estafette_ticket_options,
    out: *mut *mut estafette_ticket,
) -> estafette_status {
    entry(|| {
        let tensor = tensor::tensor(tensor, "tensor")?;
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        let vacant = TICKETS.reserve()?;
        let once = flag("estafette_ticket_options: once", options.once)?;
        let copy = copy_of("estafette_ticket_options", options.copy)?;
        let mut how = ShareOptions { once, copy, ..ShareOptions::default() };
        if !options.reach.is_null() {
            // SAFETY: by contract of this function.
            how.reach = Some(unsafe { text(options.reach, "", "reach") }?.into());
        }
        if options.deadline_ns > 0 {
            how.deadline = Duration::from_nanos(options.deadline_ns);
        }
        let ticket = tensor.ticket(&how)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(ticket)) };
        DONE
    })
}

/// The bytes of a ticket, for `estafette_from_ticket` in another process: as many as fit into the `capacity`
/// bytes at `bytes` (which may be NULL when that is 0), and their number to `*size`, which is less than 128,
/// or less than 384 where the ticket is for other machines.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; `bytes` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_ticket_bytes(
    ticket: *const estafette_ticket,
    bytes: *mut u8,
    capacity: usize,
    size: *mut usize,
) -> estafette_status {
    entry(|| {
        let found = TICKETS.get(ticket, "ticket")?.to_bytes();
        let size = place(size, "size")?;
        let fitting = found.len().min(capacity);
        if fitting > 0 {
            // SAFETY: `capacity` bytes may be written, by contract.
            unsafe {
                place(bytes, "bytes")?.copy_from_nonoverlapping(NonNull::from(&found[..]).cast(), fitting)
            };
        }
        // SAFETY: writable, by contract.
        unsafe { size.write(found.len()) };
        DONE
    })
}

/// Revokes a ticket, also one for one use, and gives its handle up: nothing new can be made with it. Tensors
/// that were made with it stay. NULL is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a ticket that was
/// revoked before; `ESTAFETTE_FORKED`: there the ticket is leaked. May be called by any thread. `ticket` may
/// be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_ticket_revoke(ticket: *mut estafette_ticket) -> estafette_status {
    entry_unless_null(ticket, || {
        TICKETS.get(ticket, "ticket")?.revoke();
        TICKETS.release(ticket, "ticket")
    })
}

/// Gives the handle of a ticket up. A ticket for one use stays valid, as nothing has to keep it; any other
/// one is revoked by this. NULL is legal and does nothing.
///
/// Returns as `estafette_ticket_revoke`. May be called by any thread. `ticket` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_ticket_release(ticket: *mut estafette_ticket) -> estafette_status {
    entry_unless_null(ticket, || TICKETS.release(ticket, "ticket"))
}

/// The tensor that a ticket of another process names: a promise, to be read only, in the memory of that
/// process. The caller owns `*out` and gives it up by `estafette_tensor_release`; the owner's writes of that
/// memory wait until then. It waits as submissions do, and for nothing else.
///
/// The promise fails with `ESTAFETTE_PEER_DIED` if that process has died before it was ready, and with
/// `ESTAFETTE_FAILED` if the ticket was revoked before.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or bytes that are no
/// ticket; `ESTAFETTE_LEASE_HELD`, `ESTAFETTE_WOULD_DEADLOCK`, `ESTAFETTE_SHUTDOWN`, `ESTAFETTE_FORKED` as
/// `estafette_submit`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; `bytes` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_from_ticket(
    engine: *mut estafette_engine,
    bytes: *const u8,
    size: usize,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    entry(|| {
        let engine = engine::engine(engine)?;
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let ticket = Ticket::from_bytes(unsafe { array(bytes, size, "bytes") }?)?;
        let vacant = tensor::reserve()?;
        let tensor = bindings::remote::from_ticket_at(&engine, &ticket, None)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(tensor)) };
        DONE
    })
}

/// Opens a door. The caller owns `*out` and gives it up by `estafette_door_close`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL; `ESTAFETTE_FAILED` with the reason where the system
/// refuses, as one that is not Linux does; `ESTAFETTE_FORKED`. `*out` is written only on success. May be
/// called by any thread.
///
/// # Safety
/// `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_door_open(out: *mut *mut estafette_door) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        let vacant = DOORS.reserve()?;
        let door = Door::open().map_err(estafette::Error::from)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(door)) };
        DONE
    })
}

/// The address of a door, as a text for `estafette_connect` in another process, which gets it by any means:
/// an argument, a pipe, a file. The caller owns the text and frees it by `estafette_string_free`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `door` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_door_address(
    door: *const estafette_door,
    out: *mut *mut c_char,
) -> estafette_status {
    entry(|| {
        let door = DOORS.get(door, "door")?;
        let out = place(out, "out")?;
        let address = CString::new(door.address().as_bytes()).expect("an address has no NUL");
        // SAFETY: writable, by contract.
        unsafe { out.write(address.into_raw()) };
        DONE
    })
}

/// Waits for at most `timeout_ns` (`ESTAFETTE_FOREVER` for no limit; 0 only looks) for the next link that
/// another process makes at a door. The tensors that it receives are of `engine`. The caller owns `*out` and
/// gives it up by `estafette_link_close`. The calling thread runs no operation meanwhile.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or
/// a door that is closed meanwhile; `ESTAFETTE_FAILED` with the reason where the system refuses, after which
/// the next call goes on; `ESTAFETTE_WOULD_DEADLOCK` where it would block in a callback;
/// `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. Handles may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_door_accept(
    door: *const estafette_door,
    engine: *mut estafette_engine,
    timeout_ns: u64,
    out: *mut *mut estafette_link,
) -> estafette_status {
    entry(|| {
        let door = DOORS.get(door, "door")?;
        let engine = engine::engine(engine)?;
        let out = place(out, "out")?;
        // SAFETY: writable, by contract.
        unsafe { write_link(&engine, engine.accept(&door), timeout_ns, out) }
    })
}

/// Closes a door and gives its handle up. Links that were made there stay. Calls of other threads that wait
/// at the door return `ESTAFETTE_INVALID`: it is closed. NULL is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a door that was closed
/// before; `ESTAFETTE_FORKED`: there the door is leaked. May be called by any thread. `door` may be any
/// value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_door_close(door: *mut estafette_door) -> estafette_status {
    entry_unless_null(door, || {
        DOORS.get(door, "door")?.close();
        DOORS.release(door, "door")
    })
}

/// Makes a link to the process with a door at `address`, in at most `timeout_ns` (`ESTAFETTE_FOREVER` for no
/// limit); the process need not be at its door. Ownership and the rest as for `estafette_door_accept`.
///
/// Returns as `estafette_door_accept`; `ESTAFETTE_INVALID` for an address that is none as well;
/// `ESTAFETTE_FAILED` where no door is there, or not any more; `ESTAFETTE_PEER_DIED` when the process at the
/// door has died. May be called by any thread.
///
/// # Safety
/// `address` is NULL or a text; `out` is NULL or may be written. `engine` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_connect(
    engine: *mut estafette_engine,
    address: *const c_char,
    timeout_ns: u64,
    out: *mut *mut estafette_link,
) -> estafette_status {
    entry(|| {
        let engine = engine::engine(engine)?;
        // SAFETY: by contract of this function.
        let address = unsafe { needed(address, "address") }?;
        let address = Address::from_bytes(address.as_bytes()).map_err(estafette::Error::from)?;
        let out = place(out, "out")?;
        // SAFETY: writable, by contract.
        unsafe { write_link(&engine, engine.connect(&address), timeout_ns, out) }
    })
}

/// Waits for a link, and writes its handle to `out`.
///
/// # Safety
/// `out` may be written.
unsafe fn write_link(
    engine: &Engine,
    made: impl Future<Output = Result<Link, estafette::Error>>,
    timeout_ns: u64,
    out: NonNull<*mut estafette_link>,
) -> Answer {
    let vacant = LINKS.reserve()?;
    let link = bindings::remote::block_on(engine, made, timeout(timeout_ns))?;
    // SAFETY: by contract of this function.
    unsafe { out.write(vacant.fill(Linked { engine: engine.clone(), link })) };
    DONE
}

/// The number of the other process of a link, to `*out`; 0 where this process cannot see it.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `link` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_link_process(
    link: *const estafette_link,
    out: *mut u32,
) -> estafette_status {
    entry(|| {
        let process = self::link(link)?.link.process();
        // SAFETY: writable, by contract.
        unsafe { place(out, "out")?.write(process) };
        DONE
    })
}

/// Lets the other process read the version of `tensor` that is current at this call, ready or not. Writes
/// that are submitted later wait until the other process has released it, has closed the link, or has died.
/// With `ESTAFETTE_WRITE` the other process writes the next version instead, and operations on the tensor
/// that are submitted later wait for that. `options` may be NULL for the defaults. Waits, for at most
/// `timeout_ns` (`ESTAFETTE_FOREVER` for no limit; 0 does not wait), only while the link is full: the other
/// process then has 16,384 tensors of this one, or has not received hundreds. The tensor stays the caller's.
/// The calling thread runs no operation meanwhile.
///
/// Memory that is not shared, see `shared` in `estafette_engine_options` and `estafette_zeros_shared`, is
/// copied once the version is ready, and later writes wait for the copy alone.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_DEVICE` if there is no memory for a copy;
/// `ESTAFETTE_NOT_SHARED` for memory that other processes cannot be shown, if a copy was refused, and with
/// `ESTAFETTE_WRITE` for what is not of `estafette_zeros_shared_for_writing`; `ESTAFETTE_PEER_DIED`;
/// `ESTAFETTE_CANCELLED` once the other process has closed the link; `ESTAFETTE_INVALID` for NULL, a handle
/// that is not in use, a wrong option, or a link that is closed meanwhile; `ESTAFETTE_WOULD_DEADLOCK` where
/// it would block in a callback; `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. Nothing was sent unless it returns
/// `ESTAFETTE_OK`. May be called by any thread.
///
/// # Safety
/// `options` is NULL or as long as its size says. Handles may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_link_send(
    link: *const estafette_link,
    tensor: *const estafette_tensor,
    options: *const estafette_send_options,
    timeout_ns: u64,
) -> estafette_status {
    entry(|| -> Answer {
        let Linked { engine, link } = &*self::link(link)?;
        let tensor = tensor::tensor(tensor, "tensor")?;
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        let copy = copy_of("estafette_send_options", options.copy)?;
        let how = ShareOptions { copy, ..ShareOptions::default() };
        let timeout = timeout(timeout_ns);
        match (access(options.access)?, copy) {
            (Access::Read, _) => bindings::remote::block_on(engine, link.send(&tensor, &how), timeout)?,
            (Access::Write, None | Some(false)) => {
                bindings::remote::block_on(engine, link.lend(&tensor), timeout)?
            }
            (access, _) => {
                let (number, copy) = (options.access, options.copy);
                let why = if access == Access::Write {
                    "what is sent for writing is not copied"
                } else {
                    "it is no lease"
                };
                return Err(Refusal::invalid(format!(
                    "estafette_send_options: access is {number} and copy is {copy}: {why}"
                )));
            }
        }
        DONE
    })
}

/// The next tensor of the other process, to `*out`, after at most `timeout_ns` (`ESTAFETTE_FOREVER` for no
/// limit; 0 only looks): a promise in the memory of that process. It is read-only
/// (`estafette_tensor_read_only`) unless that process has sent it for writing; what this one then writes is
/// the owner's next version once the handle is released. The caller owns it and gives it up by
/// `estafette_tensor_release`; the owner's writes of that memory wait until then. `*out` is NULL once the
/// other process has closed the link, after everything that it had sent. The calling thread runs no operation
/// meanwhile.
///
/// A tensor that the other process had not finished when it died fails with `ESTAFETTE_PEER_DIED`. What was
/// ready stays readable.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_PEER_DIED` when that process has died, after
/// everything that it had sent; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, a link that is
/// closed meanwhile, or when the other process has violated the protocol; `ESTAFETTE_WOULD_DEADLOCK` where it
/// would block in a callback; `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. `*out` is written only on success.
/// May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `link` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_link_receive(
    link: *const estafette_link,
    timeout_ns: u64,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    entry(|| {
        let Linked { engine, link } = &*self::link(link)?;
        let out = place(out, "out")?;
        let vacant = tensor::reserve()?;
        let tensor = bindings::remote::block_on(
            engine,
            bindings::remote::receive_at(link, None),
            timeout(timeout_ns),
        )?;
        let handle = tensor.map_or(std::ptr::null_mut(), |tensor| vacant.fill(tensor));
        // SAFETY: writable, by contract.
        unsafe { out.write(handle) };
        DONE
    })
}

/// A descriptor for an event loop of the program (`epoll`, `poll`, `select`), to `*out`. It is readable while
/// a tensor may be there, or the link is over: then call `estafette_link_receive` with a timeout of 0 until
/// it returns `ESTAFETTE_TIMEOUT`, which makes the descriptor unreadable; nothing else does. It is readable
/// at first. So both level-triggered and edge-triggered loops work.
///
/// The descriptor belongs to the link, which has none before the first call, and is closed with it: take it
/// out of the event loop before `estafette_link_close`. It must not be read, written or closed. Each call
/// gives the same number.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FAILED`
/// where the system refuses; `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `link` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_link_descriptor(
    link: *const estafette_link,
    out: *mut i32,
) -> estafette_status {
    entry(|| {
        let descriptor = bindings::remote::descriptor(&self::link(link)?.link);
        // SAFETY: writable, by contract.
        unsafe { place(out, "out")?.write(descriptor?) };
        DONE
    })
}

/// Closes a link and gives its handle up. What was received stays readable. What was sent comes to the other
/// process for as long as this one lives. Calls of other threads that wait for the link return
/// `ESTAFETTE_INVALID`: it is closed. NULL is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a link that was closed
/// before; `ESTAFETTE_FORKED`: there the link is leaked. May be called by any thread. `link` may be any
/// value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_link_close(link: *mut estafette_link) -> estafette_status {
    entry_unless_null(link, || {
        bindings::remote::close(&self::link(link)?.link);
        LINKS.release(link, "link")
    })
}

/// Says that process `process` on another machine is dead, or with 0 all processes on that machine: their
/// leases end, and writes that waited go on. For who knows it, such as the program that started them: silence
/// alone is not death. `host` is the address of that machine, as messages about the process have it. Returns
/// at once.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a text that is not UTF-8; `ESTAFETTE_FORKED`. May
/// be called by any thread.
///
/// # Safety
/// `host` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_declare_dead(host: *const c_char, process: u32) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let host = unsafe { needed(host, "host") }?;
        estafette::remote::declare_dead(host, (process > 0).then_some(process));
        DONE
    })
}
