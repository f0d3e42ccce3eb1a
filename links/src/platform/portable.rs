//! A system without links. See `platform`.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use estafette_sync::sync::atomic::{AtomicU32, AtomicU64};
use estafette_sync::time::Instant;

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "links between processes need Linux"))
}

pub use estafette_devices::Descriptor;

/// Declares types without values. What would make one says that links are not supported; nothing else can be
/// called.
macro_rules! without_values {
    ($($name:ident {
        $(fn $make:ident($($given:ty),*) -> $made:ty;)*
        $(method $method:ident($($argument:ty),*) $(-> $result:ty)?;)*
    })*) => {
        $(
            #[derive(Debug)]
            pub enum $name {}

            impl $name {
                $(pub fn $make($(_: $given),*) -> io::Result<$made> {
                    unsupported()
                })*

                $(pub fn $method(&self, $(_: $argument),*) $(-> $result)? {
                    match *self {}
                })*
            }
        )*
    };
}

without_values! {
    Memory {
        fn create(&str, usize, usize, bool) -> (Self, CloseOnFork<Descriptor>);
        fn open(&Descriptor, usize, usize, bool) -> Self;
        method populate(Range<usize>) -> bool;
        method start() -> NonNull<u8>;
        method bytes() -> usize;
        method words() -> &[AtomicU64];
        method half_word(usize) -> &AtomicU32;
    }
    Socket {
        fn listen(&[u8]) -> Self;
        fn connect(&[u8]) -> Self;
        method accept() -> io::Result<Option<Self>>;
        method peer() -> io::Result<(u32, u32)>;
        method shut_down();
        method peer_process(u32) -> io::Result<Descriptor>;
        method send(&[u8], &[&Descriptor]) -> io::Result<()>;
        method receive(&mut [u8]) -> io::Result<Option<(usize, io::Result<Vec<Descriptor>>)>>;
        method descriptor() -> &Descriptor;
    }
    Poll {
        fn new() -> Self;
        method add(&impl Sized, u64) -> io::Result<()>;
        method watch_room(&impl Sized, u64, bool) -> io::Result<()>;
        method pause(&impl Sized, u64, bool) -> io::Result<()>;
        method remove(&impl Sized);
        method wait(Option<std::time::Duration>) -> io::Result<Vec<u64>>;
    }
    Waker {
        fn new() -> Self;
        method wake();
        method clear();
        method number() -> i32;
        method descriptor() -> &Descriptor;
    }
    RobustList {
        fn of_this_thread() -> Self;
        method hold(&Memory, usize);
        method release(&Memory, usize);
    }
}

pub fn owner_died(_word: u32) -> bool {
    false
}

pub fn wait_for_any(_words: &[(&AtomicU32, u32)], _deadline: Option<Instant>) -> io::Result<bool> {
    unsupported()
}

pub fn wake_all(_word: &AtomicU32) {}

pub fn own_process() -> io::Result<Descriptor> {
    unsupported()
}

pub fn may_be_process(_descriptor: &Descriptor, _process: u32) -> io::Result<bool> {
    unsupported()
}

pub fn is_shortage(_error: &io::Error) -> bool {
    false
}

pub fn check_room(_count: usize) -> io::Result<()> {
    unsupported()
}

pub fn too_many_open_files() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

pub fn own_user() -> u32 {
    0
}

pub fn place() -> Option<u64> {
    None
}

pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    unsupported()
}

/// Keeps it: there is no connection here, and so no agent that is given anything.
///
/// # Safety
/// None is asked for.
#[cfg(feature = "nixl")]
pub unsafe fn free(_memory: *mut std::ffi::c_void) {}

/// A descriptor; see the form of Linux.
#[derive(Debug)]
pub struct CloseOnFork<T>(T);

#[cfg(feature = "nixl")]
impl<T> CloseOnFork<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> std::ops::Deref for CloseOnFork<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(feature = "nixl")]
pub fn connect(
    _address: &std::net::SocketAddr,
    _timeout: std::time::Duration,
) -> io::Result<CloseOnFork<std::net::TcpStream>> {
    unsupported()
}

#[cfg(feature = "nixl")]
pub fn keep_trying(_stream: &std::net::TcpStream) -> io::Result<()> {
    unsupported()
}
