//! The sizes of the stacks that bodies run on.

use std::sync::mpsc;
use std::time::Duration;

use estafette::engine::STACK_SIZES;
use estafette::{Engine, Error};
use tests::watchdog::Watchdog;

/// Bytes of stack of the calling thread, as the C library knows it.
fn own_stack() -> usize {
    let mut size = 0;
    // SAFETY: the attributes are filled by the call that gets them, read, and destroyed once.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes), 0);
        assert_eq!(libc::pthread_attr_getstacksize(&raw const attributes, &raw mut size), 0);
        assert_eq!(libc::pthread_attr_destroy(&raw mut attributes), 0);
    }
    size
}

/// The C library's stack for a thread of which nothing is asked: what the process's limit was when it
/// began.
fn stack_of_a_plain_thread() -> usize {
    extern "C" fn measure(size: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: points to the number below, which outlives the thread.
        unsafe { size.cast::<usize>().write(own_stack()) };
        std::ptr::null_mut()
    }
    let mut size = 0_usize;
    // SAFETY: a thread that is joined before what it writes to ends.
    unsafe {
        let mut thread = std::mem::zeroed();
        let argument = (&raw mut size).cast();
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), measure, argument), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
    size
}

/// Within a page or two of what was asked for: the C library's own data of the thread may count.
fn is_about(size: usize, asked: usize) -> bool {
    size.abs_diff(asked) <= 64 << 10
}

/// Stacks of a worker, and of a thread of the asynchronous runtime.
fn stacks_of_bodies(engine: &Engine) -> [usize; 2] {
    let (tell, sizes) = mpsc::channel();
    let again = tell.clone();
    let measure = engine.op("measure").run(move |[], []| again.send(own_stack()).map_err(|_| "gone".into()));
    // A wait with a timeout leaves the body to the worker.
    measure.unwrap().wait_timeout(Some(Duration::from_secs(60))).unwrap();
    let worker = sizes.recv().unwrap();
    let body = async move { tell.send(own_stack()).map_err(|_| "gone".into()) };
    engine.op("measure asynchronously").run_future(move |[], []| body).unwrap().wait().unwrap();
    [worker, sizes.recv().unwrap()]
}

#[test]
fn a_body_has_as_much_stack_as_a_plain_thread_of_the_system() {
    let _watchdog = Watchdog::alone();
    if std::env::var_os("RUST_MIN_STACK").is_some() {
        // Then it replaces the system's default, which the next test shows.
        return;
    }
    let plain = stack_of_a_plain_thread();
    let usual = match plain {
        // A program without a limit, whose threads the C library gives an architecture's default.
        _ if limit() == libc::RLIM_INFINITY => 8 << 20,
        plain => plain.max(2 << 20),
    };
    let engine = Engine::builder().workers(1).build().unwrap();
    for size in stacks_of_bodies(&engine) {
        assert!(is_about(size, usual), "{size} bytes, and plain threads have {plain}");
    }
}

fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the struct that it is given.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) }, 0);
    limit.rlim_cur
}

#[test]
fn a_body_has_the_stack_that_was_asked_for() {
    let _watchdog = Watchdog::alone();
    for asked in [256 << 10, 32 << 20] {
        let engine = Engine::builder().workers(1).stack_size(asked).build().unwrap();
        for size in stacks_of_bodies(&engine) {
            assert!(is_about(size, asked), "{size} bytes for {asked}");
        }
    }
}

#[test]
fn a_thread_that_runs_bodies_without_workers_has_that_stack_too() {
    let _watchdog = Watchdog::alone();
    let engine = Engine::builder().workers(0).stack_size(32 << 20).build().unwrap();
    let (tell, sizes) = mpsc::channel();
    let op =
        engine.op("measure").run(move |[], []| tell.send(own_stack()).map_err(|_| "gone".into())).unwrap();
    // A wait with a timeout leaves the body to a thread that the engine starts.
    op.wait_timeout(Some(Duration::from_secs(60))).unwrap();
    let size = sizes.recv().unwrap();
    assert!(is_about(size, 32 << 20), "{size} bytes");
}

#[test]
fn a_stack_that_cannot_be_is_refused_with_its_bounds() {
    for bytes in [0, 1, STACK_SIZES.start() - 1, STACK_SIZES.end() + 1, usize::MAX] {
        let error = Engine::builder().workers(1).stack_size(bytes).build().unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        let expected = format!("a stack of {bytes} bytes: a thread's stack has 65536 to 1099511627776 bytes");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn stacks_that_the_system_has_no_room_for_are_an_error_of_the_start() {
    // 1,024 times 1 TiB is more than a process can address.
    let error = Engine::builder().workers(1_024).stack_size(*STACK_SIZES.end()).build().unwrap_err();
    assert!(matches!(error, Error::Start(_)), "{error}");
    assert!(error.to_string().contains("cannot start worker"), "{error}");
}
