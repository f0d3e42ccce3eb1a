//! Calls about other processes. Both ends of a link are in this one, which is legal, and all that one process
//! can do.

use super::*;

/// Kinds of calls here; a system without links has none.
pub(super) const CALLS: usize = if cfg!(estafette_portable) { 0 } else { 8 };

/// Limit for steps of the library's threads.
const LONG_NS: u64 = END.as_nanos() as u64;

/// Both ends of a link, and what was sent from the near one to the far one.
struct Pair {
    near: *mut estafette_link,
    far: *mut estafette_link,
    in_flight: usize,
}

/// A program's handles of other processes.
#[derive(Default)]
pub(super) struct Remote {
    pair: Option<Pair>,
    /// Of the near end, once it was closed.
    closed: Option<*mut estafette_link>,
    tickets: Vec<*mut estafette_ticket>,
    /// Under leases of their owners until they are released, so that other steps do not find them.
    received: Vec<*mut estafette_tensor>,
}

impl Remote {
    /// A link with both of its ends.
    fn open_pair(&mut self) -> Option<&mut Pair> {
        self.pair.as_mut().filter(|_| self.closed.is_none())
    }
}

/// Refusals of a version that is shown to another process.
const SHOWN: [status; 3] = [ESTAFETTE_OK, ESTAFETTE_NOT_SHARED, ESTAFETTE_NOT_DEFINED];

impl Program {
    /// Takes one of the steps. Returns the step, or `None` without a value to call it with.
    pub(super) fn remote(&mut self, bytes: &mut Bytes<'_>) -> Option<usize> {
        let call = bytes.below(CALLS);
        match call {
            _ if CALLS == 0 => None,
            0 => self.zeros_shared(bytes),
            1 => self.open_link(bytes),
            2 => self.send(bytes),
            3 => self.receive(bytes),
            4 => self.close_link(bytes),
            5 => self.make_ticket(bytes),
            6 => self.use_ticket(bytes),
            _ => self.revoke(bytes),
        }
        .map(|()| call)
    }

    fn zeros_shared(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let shape = [LENGTH as i64];
        let dtype = DLDataType { code: 2, bits: 32, lanes: 1 };
        let mut out = ptr::null_mut();
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_zeros_shared(self.engine, ptr::null(), 1, dtype, &raw mut out);
            refuses(got, "no shape");
            if self.tensors.len() < HELD_MAX {
                let ndim = bytes.below(2) as i32;
                let got = estafette_zeros_shared(self.engine, shape.as_ptr(), ndim, dtype, &raw mut out);
                accepts(got, "zeros in shared memory");
                self.tensors.push(out);
                let got = estafette_zeros_shared_for_writing(
                    self.engine,
                    shape.as_ptr(),
                    ndim,
                    dtype,
                    &raw mut out,
                );
                accepts(got, "zeros in memory that is shared for writing");
                accepts(estafette_tensor_release(out), "release it");
            }
        }
        Some(())
    }

    fn open_link(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        if self.remote.pair.is_some() {
            return None;
        }
        let (mut door, mut address) = (ptr::null_mut(), ptr::null_mut());
        let (mut near, mut far, mut process) = (ptr::null_mut(), ptr::null_mut(), 0);
        let wrong = bytes.text(20);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let got = estafette_connect(self.engine, wrong.as_ptr(), 0, &raw mut near);
            refuses(got, "an address that is none");
            refuses(estafette_door_open(ptr::null_mut()), "a door to nowhere");
            accepts(estafette_door_open(&raw mut door), "open a door");
            let got = estafette_door_address(door, &raw mut address);
            accepts(got, "the address of a door");
            let got = estafette_door_accept(door, self.engine, 0, &raw mut near);
            expect(got, ESTAFETTE_TIMEOUT, "nothing is at the door");
            // The link thread of this process greets for both.
            let got = estafette_connect(self.engine, address, LONG_NS, &raw mut far);
            accepts(got, "connect");
            let got = estafette_door_accept(door, self.engine, LONG_NS, &raw mut near);
            accepts(got, "accept");
            estafette_string_free(address);
            accepts(estafette_link_process(near, &raw mut process), "process");
        }
        assert_eq!(process, std::process::id(), "the other end is here");
        accepts(estafette_door_close(door), "close a door");
        refuses(estafette_door_close(door), "close a door twice");
        self.remote.pair = Some(Pair { near, far, in_flight: 0 });
        Some(())
    }

    fn send(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let tensor = pick(&self.tensors, bytes)?;
        let pair = self.remote.open_pair()?;
        if pair.in_flight >= HELD_MAX {
            return None;
        }
        let how = bytes.below(4);
        let timeout_ns = SHORT_NS * (how % 2) as u64;
        let mut options = estafette_send_options { size: 8, copy: 2, access: 3 };
        let strange = ptr::without_provenance(usize::from(bytes.byte()) << 33);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            let send = |link, tensor, options| estafette_link_send(link, tensor, options, timeout_ns);
            let got = send(pair.near, tensor, &raw const options);
            refuses(got, "a copy of another kind");
            options.copy = how as i32 / 2;
            options.size = 12;
            let got = send(pair.near, tensor, &raw const options);
            refuses(got, "an access of another kind");
            options.access = 0;
            let got = send(pair.near, tensor, &raw const options);
            allowed(got, &SHOWN, "send");
            pair.in_flight += usize::from(got == ESTAFETTE_OK);
            let got = send(pair.near, ptr::null(), ptr::null());
            refuses(got, "send nothing");
            refuses(send(strange, tensor, ptr::null()), "send by no link");
        }
        Some(())
    }

    fn receive(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let pair = self.remote.open_pair()?;
        let (mut out, mut descriptor, mut again) = (ptr::dangling_mut(), -1, -1);
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        unsafe {
            if bytes.one_in(2) {
                let got = estafette_link_descriptor(pair.far, &raw mut descriptor);
                accepts(got, "descriptor");
                let got = estafette_link_descriptor(pair.far, &raw mut again);
                accepts(got, "descriptor again");
                assert!(descriptor >= 0 && descriptor == again, "{descriptor} and {again}");
            }
            let got = estafette_link_receive(pair.far, 0, ptr::null_mut());
            refuses(got, "receive to nowhere");
            let got = estafette_link_receive(pair.far, SHORT_NS * bytes.below(2) as u64, &raw mut out);
            // A message that was sent is there at once.
            let expected = if pair.in_flight > 0 { ESTAFETTE_OK } else { ESTAFETTE_TIMEOUT };
            expect(got, expected, "receive");
        }
        if pair.in_flight > 0 {
            pair.in_flight -= 1;
            self.take_received(out);
        }
        Some(())
    }

    /// A tensor from another process may fail as its owner's tensor does.
    fn take_received(&mut self, tensor: *mut estafette_tensor) {
        assert!(!tensor.is_null(), "the link is open");
        allowed(estafette_query(tensor), &WAITED, "the state of what was received");
        self.remote.received.push(tensor);
        if self.remote.received.len() > HELD_MAX {
            let oldest = self.remote.received.remove(0);
            accepts(estafette_tensor_release(oldest), "release what was received");
        }
    }

    /// The near end, and at the next step the far one.
    fn close_link(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let pair = self.remote.pair.as_mut()?;
        let near = self.remote.closed.take();
        if let Some(near) = near {
            let mut out = ptr::dangling_mut();
            // SAFETY: as the interface wants it.
            let got = unsafe { estafette_link_receive(pair.far, LONG_NS, &raw mut out) };
            accepts(got, "after the end of the other end");
            if pair.in_flight > 0 {
                pair.in_flight -= 1;
                self.remote.closed = Some(near);
                self.take_received(out);
                return Some(());
            }
            assert!(out.is_null(), "more than was sent");
            let tensor = pick(&self.tensors, bytes);
            if let Some(tensor) = tensor {
                // SAFETY: no options.
                let got = unsafe { estafette_link_send(pair.far, tensor, ptr::null(), LONG_NS) };
                allowed(got, &[&SHOWN[1..], &[ESTAFETTE_CANCELLED]].concat(), "send to no end");
            }
            accepts(estafette_link_close(pair.far), "close the far end");
            refuses(estafette_link_close(near), "close twice");
            self.remote.pair = None;
        } else {
            accepts(estafette_link_close(pair.near), "close the near end");
            self.remote.closed = Some(pair.near);
        }
        accepts(estafette_link_close(ptr::null_mut()), "close nothing");
        Some(())
    }

    fn make_ticket(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let tensor = pick(&self.tensors, bytes)?;
        if self.remote.tickets.len() >= HELD_MAX {
            return None;
        }
        let mut out = ptr::null_mut();
        let mut options = estafette_ticket_options {
            size: size_of::<estafette_ticket_options>() as u32,
            once: 2,
            copy: 0,
            reach: c"a:b".as_ptr(),
            deadline_ns: 0,
        };
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            let got = estafette_ticket_create(tensor, &raw const options, &raw mut out);
            refuses(got, "neither once nor often");
            options.once = 0;
            let got = estafette_ticket_create(tensor, &raw const options, &raw mut out);
            refuses(got, "no address of this machine, or no NIXL");
            options.reach = ptr::null();
            let with = if bytes.one_in(2) { &raw const options } else { ptr::null() };
            estafette_ticket_create(tensor, with, &raw mut out)
        };
        allowed(got, &SHOWN, "a ticket");
        if got == ESTAFETTE_OK {
            self.remote.tickets.push(out);
        }
        Some(())
    }

    fn use_ticket(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let ticket = pick(&self.remote.tickets, bytes)?;
        let (mut text, mut size, mut out) = ([0; 128], 0, ptr::null_mut());
        // SAFETY: as the interface wants it, or wrong in a way that it promises to see.
        let got = unsafe {
            let got = estafette_ticket_bytes(ticket, text.as_mut_ptr(), text.len(), ptr::null_mut());
            refuses(got, "a size to nowhere");
            let got = estafette_ticket_bytes(ticket, text.as_mut_ptr(), text.len(), &raw mut size);
            accepts(got, "the bytes of a ticket");
            let got = estafette_from_ticket(self.engine, text.as_ptr(), size - 1, &raw mut out);
            refuses(got, "less than a ticket");
            // Elsewhere in the bytes are the address of a door, and a secret that nothing has.
            if bytes.one_in(3) {
                text[size - 1 - bytes.below(16)] ^= 1;
            }
            estafette_from_ticket(self.engine, text.as_ptr(), size, &raw mut out)
        };
        allowed(
            got,
            &[ESTAFETTE_OK, ESTAFETTE_LEASE_HELD, ESTAFETTE_WOULD_DEADLOCK, ESTAFETTE_IN_FLIGHT_LIMIT],
            "from a ticket",
        );
        if got == ESTAFETTE_OK {
            self.take_received(out);
        }
        Some(())
    }

    fn revoke(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let ticket = take(&mut self.remote.tickets, bytes)?;
        accepts(estafette_ticket_revoke(ticket), "revoke");
        refuses(estafette_ticket_revoke(ticket), "revoke twice");
        refuses(estafette_ticket_release(ticket), "release what was revoked");
        accepts(estafette_ticket_revoke(ptr::null_mut()), "revoke nothing");
        // SAFETY: a text, or nothing.
        unsafe {
            refuses(estafette_declare_dead(ptr::null(), 0), "nothing is dead");
            accepts(estafette_declare_dead(c"10.0.0.1".as_ptr(), 7), "declare dead");
        }
        Some(())
    }

    /// Ends the leases of other processes, which the last operations may wait for.
    pub(super) fn end_of_remote(&mut self) {
        let Remote { pair, closed, tickets, received } = std::mem::take(&mut self.remote);
        for tensor in received {
            accepts(estafette_tensor_release(tensor), "release at the end");
        }
        for ticket in tickets {
            accepts(estafette_ticket_release(ticket), "release at the end");
        }
        if let Some(Pair { near, far, .. }) = pair {
            let near = if closed.is_some() { ptr::null_mut() } else { near };
            accepts(estafette_link_close(near), "close at the end");
            accepts(estafette_link_close(far), "close at the end");
        }
    }
}
