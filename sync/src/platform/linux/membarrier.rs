//! A fence on every processor that runs a thread of this process.
//!
//! The kernel makes it, `membarrier(2)`, command *private expedited*, after the process has registered. A
//! kernel that accepted the registration may still refuse a later call: it has no memory for a moment, a tool
//! that restores checkpoints has lost the registration, or a sandbox was entered since. By then other threads
//! rely on the fence, so each refusal has an answer, in this order:
//!
//! 1. `ENOMEM`: the call is repeated, [`TRIES`] times.
//! 2. `EPERM`: the process registers again, and the call is repeated once.
//! 3. `MEMBARRIER_CMD_GLOBAL`, which needs neither memory nor registration. It takes milliseconds.
//! 4. A page that was written is made read-only. The kernel has to interrupt every processor that may still
//!    have it as writable, which are those that run a thread of this process; an interrupt is a fence. Only
//!    x86-64 works like this, and only without the instruction `INVLPGB`, which spares the interrupts.
//! 5. The process ends with a message: a fence that is left out is an operation that never runs.

use std::io;

/// The number of times that a call is repeated which the kernel has no memory for.
const TRIES: u32 = 8;

trait System {
    fn membarrier(&self, command: libc::c_int) -> io::Result<()>;
    /// Has every processor that runs a thread of this process fence, by a change of a page's protection.
    fn change_page(&self) -> io::Result<()>;
}

/// Registers the process. False where the kernel does not know the command, or a sandbox refuses it.
pub(super) fn register() -> bool {
    let registered = Kernel.membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok();
    if registered {
        page::prepare();
    }
    registered
}

/// Makes every processor that runs a thread of this process fence. Ends the process if there is no way to do
/// so.
pub(super) fn fence_everywhere() {
    if Kernel.membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_ok() {
        return;
    }
    if let Err(error) = fence_despite_refusal(&Kernel) {
        crate::essential::end_process(format_args!(
            "membarrier(2) is refused ({error}) after the process was registered, and nothing stands in for it: \
             sleeping threads could not be woken any more"
        ));
    }
}

#[cold]
fn fence_despite_refusal(system: &impl System) -> io::Result<()> {
    let mut registers_again = true;
    let mut tries = 1..TRIES;
    let refusal = loop {
        let Err(error) = system.membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) else { return Ok(()) };
        let again = match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                std::thread::yield_now();
                tries.next().is_some()
            }
            Some(libc::EPERM) => {
                std::mem::take(&mut registers_again)
                    && system.membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok()
            }
            _ => false,
        };
        if !again {
            break error;
        }
    };
    let global = system.membarrier(libc::MEMBARRIER_CMD_GLOBAL);
    global.or_else(|_| system.change_page()).map_err(|_| refusal)
}

struct Kernel;

impl System for Kernel {
    fn membarrier(&self, command: libc::c_int) -> io::Result<()> {
        // SAFETY: the call takes three integers and touches no memory of the process.
        let refused = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } != 0;
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn change_page(&self) -> io::Result<()> {
        page::change()
    }
}

#[cfg(target_arch = "x86_64")]
mod page {
    use std::arch::x86_64::__cpuid;
    use std::io;
    use std::ptr::NonNull;
    use std::sync::OnceLock;

    use crate::sync::Mutex;

    /// As large as any page of this architecture that the kernel gives without being asked for a huge one.
    const LENGTH: usize = 4096;

    /// A mapping that nothing else uses. A thread that changes it has the lock, as a store while it is
    /// read-only would be a fault.
    struct Page(NonNull<u8>);

    // SAFETY: the mapping belongs to no thread.
    unsafe impl Send for Page {}

    crate::per_process! {
        /// `None` if the kernel gave no page, or a change of one interrupts no processor.
        static PAGE: OnceLock<Option<Mutex<Page>>> = OnceLock::new();
    }

    /// Takes the page while there is memory.
    pub(super) fn prepare() {
        PAGE.get_or_init(|| if has_invlpgb() { None } else { map().map(Mutex::new) });
    }

    fn map() -> Option<Page> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // Shared, so that the kernel does not merge it with a neighbour, and a change never has to split the
        // mapping.
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED { None } else { NonNull::new(page.cast()).map(Page) }
    }

    /// Writes to the page, and makes it read-only.
    pub(super) fn change() -> io::Result<()> {
        let Some(Some(page)) = PAGE.get() else { return Err(io::ErrorKind::Unsupported.into()) };
        let page = page.lock();
        protect(&page, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: mapped and writable, and the lock keeps other writers away. After it this processor may
        // hold the page as writable, and the kernel knows that it was written: it cannot skip the interrupts.
        unsafe { page.0.as_ptr().write_volatile(1) };
        protect(&page, libc::PROT_READ)
    }

    fn protect(page: &Page, protection: libc::c_int) -> io::Result<()> {
        // SAFETY: a mapping that nothing else uses.
        let refused = unsafe { libc::mprotect(page.0.as_ptr().cast(), LENGTH, protection) } != 0;
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// True if the processor notifies others of changed pages without interrupting them.
    fn has_invlpgb() -> bool {
        const SIZES: u32 = 0x8000_0008;
        const INVLPGB: u32 = 1 << 3;
        __cpuid(0x8000_0000).eax >= SIZES && __cpuid(SIZES).ebx & INVLPGB != 0
    }

    #[cfg(test)]
    pub(super) fn is_there() -> bool {
        matches!(PAGE.get(), Some(Some(_)))
    }
}

/// Other processors learn of changed pages without an interrupt.
#[cfg(not(target_arch = "x86_64"))]
mod page {
    use std::io;

    pub(super) fn prepare() {}

    pub(super) fn change() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(test)]
    pub(super) fn is_there() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use libc::{
        MEMBARRIER_CMD_GLOBAL as GLOBAL, MEMBARRIER_CMD_PRIVATE_EXPEDITED as EXPEDITED,
        MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as REGISTER,
    };

    use super::*;

    /// Stands for the page in a list of commands.
    const PAGE: libc::c_int = -1;

    /// A kernel whose answers are `(command, error)`, in order; 0 is success.
    struct Script(RefCell<Vec<(libc::c_int, libc::c_int)>>);

    impl Script {
        fn next(&self, asked: libc::c_int) -> io::Result<()> {
            let (command, error) = self.0.borrow_mut().remove(0);
            assert_eq!(asked, command, "this is asked next");
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
        }
    }

    impl System for Script {
        fn membarrier(&self, command: libc::c_int) -> io::Result<()> {
            self.next(command)
        }

        fn change_page(&self) -> io::Result<()> {
            self.next(PAGE)
        }
    }

    /// The choice that follows from these answers; all of them have been asked for.
    fn after(answers: &[(libc::c_int, libc::c_int)]) -> Option<libc::c_int> {
        let script = Script(RefCell::new(answers.to_vec()));
        let result = fence_despite_refusal(&script);
        assert_eq!(script.0.into_inner(), [], "all of it is asked");
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn a_kernel_without_memory_for_a_moment_is_asked_again() {
        assert_eq!(after(&[(EXPEDITED, libc::ENOMEM), (EXPEDITED, libc::ENOMEM), (EXPEDITED, 0)]), None);
    }

    #[test]
    fn a_kernel_without_memory_is_asked_for_a_global_barrier_in_the_end() {
        let mut answers = vec![(EXPEDITED, libc::ENOMEM); TRIES as usize];
        answers.push((GLOBAL, 0));
        assert_eq!(after(&answers), None);
    }

    #[test]
    fn a_registration_that_was_lost_is_made_again() {
        assert_eq!(after(&[(EXPEDITED, libc::EPERM), (REGISTER, 0), (EXPEDITED, 0)]), None);
        // Once: a kernel that forgets each time is not asked for ever.
        let forgets = [(EXPEDITED, libc::EPERM), (REGISTER, 0), (EXPEDITED, libc::EPERM), (GLOBAL, 0)];
        assert_eq!(after(&forgets), None);
    }

    #[test]
    fn a_sandbox_that_refuses_every_command_leaves_the_page() {
        assert_eq!(after(&[(EXPEDITED, libc::ENOSYS), (GLOBAL, libc::ENOSYS), (PAGE, 0)]), None);
        let registers = [(EXPEDITED, libc::EPERM), (REGISTER, libc::EPERM), (GLOBAL, libc::EPERM), (PAGE, 0)];
        assert_eq!(after(&registers), None);
    }

    #[test]
    fn the_first_refusal_is_the_error_when_nothing_helps() {
        let answers = [(EXPEDITED, libc::ENOSYS), (GLOBAL, libc::EINVAL), (PAGE, libc::ENOMEM)];
        assert_eq!(after(&answers), Some(libc::ENOSYS));
    }

    #[test]
    fn the_page_changes_as_often_as_it_is_asked_to_from_several_threads() {
        page::prepare();
        if !page::is_there() {
            // Not on this processor: then a change says so.
            assert!(page::change().is_err());
            return;
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| page::change().expect("a change of protection")));
            }
        });
    }
}
