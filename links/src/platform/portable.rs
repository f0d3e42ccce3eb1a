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

/// Has no value.
#[derive(Debug)]
pub enum Memory {}

impl Memory {
    pub fn create(_name: &str, _bytes: usize) -> io::Result<(Self, Descriptor)> {
        unsupported()
    }

    pub fn create_writable(_name: &str, _bytes: usize) -> io::Result<(Self, Descriptor)> {
        unsupported()
    }

    pub fn open(_descriptor: &Descriptor, _bytes: usize, _is_writable: bool) -> io::Result<Self> {
        unsupported()
    }

    pub fn populate(&self, _range: Range<usize>) {
        match *self {}
    }

    pub fn start(&self) -> NonNull<u8> {
        match *self {}
    }

    pub fn bytes(&self) -> usize {
        match *self {}
    }

    pub fn words(&self) -> &[AtomicU64] {
        match *self {}
    }

    pub fn half_word(&self, _offset: usize) -> &AtomicU32 {
        match *self {}
    }
}

/// Has no value.
#[derive(Debug)]
pub enum Socket {}

impl Socket {
    pub fn listen(_name: &[u8]) -> io::Result<Self> {
        unsupported()
    }

    pub fn connect(_name: &[u8]) -> io::Result<Self> {
        unsupported()
    }

    pub fn accept(&self) -> io::Result<Option<Self>> {
        match *self {}
    }

    pub fn peer(&self) -> io::Result<(u32, u32)> {
        match *self {}
    }

    pub fn send(&self, _bytes: &[u8], _descriptors: &[&Descriptor]) -> io::Result<()> {
        match *self {}
    }

    pub fn receive(&self, _bytes: &mut [u8]) -> io::Result<Option<(usize, io::Result<Vec<Descriptor>>)>> {
        match *self {}
    }

    pub fn descriptor(&self) -> &Descriptor {
        match *self {}
    }
}

/// Has no value.
#[derive(Debug)]
pub enum Poll {}

impl Poll {
    pub fn new() -> io::Result<Self> {
        unsupported()
    }

    pub fn add<T>(&self, _descriptor: &T, _token: u64) -> io::Result<()> {
        match *self {}
    }

    pub fn watch_room<T>(&self, _descriptor: &T, _token: u64, _is_wanted: bool) -> io::Result<()> {
        match *self {}
    }

    pub fn remove<T>(&self, _descriptor: &T) {
        match *self {}
    }

    pub fn wait(&self, _timeout: Option<std::time::Duration>) -> io::Result<Vec<u64>> {
        match *self {}
    }
}

/// Has no value.
#[derive(Debug)]
pub enum Waker {}

impl Waker {
    pub fn new() -> io::Result<Self> {
        unsupported()
    }

    pub fn wake(&self) {
        match *self {}
    }

    pub fn clear(&self) {
        match *self {}
    }

    pub fn number(&self) -> i32 {
        match *self {}
    }

    pub fn descriptor(&self) -> &Descriptor {
        match *self {}
    }
}

/// Has no value.
#[derive(Debug)]
pub enum RobustList {}

impl RobustList {
    pub fn of_this_thread() -> io::Result<Self> {
        unsupported()
    }

    pub fn hold(&self, _memory: &Memory, _offset: usize) {
        match *self {}
    }

    pub fn release(&self, _memory: &Memory, _offset: usize) {
        match *self {}
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

pub fn too_many_open_files() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

pub fn own_user() -> u32 {
    0
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
