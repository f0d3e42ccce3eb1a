//! Streams, events, kernels and memory by hand: code as written without the engine, for baselines, for
//! planted mistakes, and to launch kernels on the engine's queues.

use std::ffi::{CString, c_void};

use cudarc::driver::DriverError;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUevent, CUfunction, CUresult, CUstream};
use estafette_sync::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The kernels, which the driver compiles.
pub const KERNELS: &str = include_str!("kernels.ptx");

/// A device's primary context with the kernels loaded. For as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    context: CUcontext,
    delay: CUfunction,
    fill: CUfunction,
    add: CUfunction,
    scale: CUfunction,
    flags: &'static Flags,
}

// SAFETY: these handles may be used from any thread.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

/// The context is current on this thread until this is dropped.
#[must_use]
pub struct CurrentGuard;

impl Drop for CurrentGuard {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: takes off what `Driver::make_current` put on.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

/// A stream, by its handle, as queues and Python give it.
pub type Stream = usize;

impl Driver {
    pub fn new(ordinal: i32) -> Result<Self, DriverError> {
        result::init()?;
        let device = result::device::get(ordinal)?;
        // SAFETY: the device is there; the context is never released.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        let none = std::ptr::null_mut();
        let _current = make_current(context)?;
        let flags = Box::leak(Box::new(Flags::new()?));
        let mut this = Self { context, delay: none, fill: none, add: none, scale: none, flags };
        let text = CString::new(KERNELS).expect("PTX has no zero bytes");
        // SAFETY: PTX text with a zero byte at its end.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        let function = |name: &str| {
            let name = CString::new(name).expect("no name has a zero byte");
            // SAFETY: the module is loaded.
            unsafe { result::module::get_function(module, name) }
        };
        this.delay = function("delay_ns")?;
        this.fill = function("fill_u8")?;
        this.add = function("add_f32")?;
        this.scale = function("scale_f32")?;
        Ok(this)
    }

    pub fn make_current(&self) -> Result<CurrentGuard, DriverError> {
        make_current(self.context)
    }

    /// Does everything once that a step does later. What is used first loads code, makes memory or starts a
    /// copy engine, which can wait for the whole device: a step that has blocked a stream by then would hang.
    pub fn warm_up(&self) -> Result<(), DriverError> {
        const BYTES: usize = 64;
        let (stream, flag, event) = (self.stream()?, self.flag()?, self.event()?);
        let [a, b] = [self.memory(BYTES)?, self.memory(BYTES)?];
        let count = BYTES / size_of::<f32>();
        // SAFETY: the memory stays for the process.
        unsafe {
            self.fill(stream, a, BYTES, 0)?;
            self.copy(stream, b, a, BYTES)?;
            self.add(stream, b, a, a, count)?;
            self.scale(stream, b, a, 1.0, count)?;
        }
        self.delay(stream, 1)?;
        self.record(event, stream)?;
        self.wait(stream, event)?;
        // A device may have none of these: the steps that want them say so.
        if self.set_by(stream, flag).is_ok() {
            self.wait_for(stream, flag)?;
        }
        self.synchronize(stream)?;
        let bytes = self.read(b, BYTES)?;
        let _current = self.make_current()?;
        // SAFETY: the memory stays, and has that size.
        unsafe { result::memcpy_htod_sync(a, &bytes) }
    }

    /// # Safety
    ///
    /// The arguments are the kernel's, and what they point to lives until it is over.
    unsafe fn launch(
        &self,
        kernel: CUfunction,
        threads: u64,
        stream: Stream,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        const BLOCK: u64 = 256;
        let block = threads.clamp(1, BLOCK) as u32;
        let grid = threads.div_ceil(BLOCK).clamp(1, 1024) as u32;
        let _current = self.make_current()?;
        // SAFETY: the function is loaded, and the rest is the caller's promise.
        unsafe {
            result::launch_kernel(kernel, (grid, 1, 1), (block, 1, 1), 0, stream as CUstream, arguments)
        }
    }

    /// Enqueues a kernel that takes so long.
    pub fn delay(&self, stream: Stream, mut nanoseconds: u64) -> Result<(), DriverError> {
        // SAFETY: the kernel touches nothing.
        unsafe { self.launch(self.delay, 1, stream, &mut [pointer(&mut nanoseconds)]) }
    }

    /// Enqueues a kernel that sets bytes.
    ///
    /// # Safety
    ///
    /// The memory lives until then.
    pub unsafe fn fill(&self, stream: Stream, out: u64, count: usize, value: u8) -> Result<(), DriverError> {
        let (mut out, mut count, mut value) = (out, count as u64, u32::from(value));
        let threads = count;
        let mut arguments = [pointer(&mut out), pointer(&mut count), pointer(&mut value)];
        // SAFETY: promised by the caller.
        unsafe { self.launch(self.fill, threads, stream, &mut arguments) }
    }

    /// Enqueues `out = a + b`.
    ///
    /// # Safety
    ///
    /// The memory lives until then.
    pub unsafe fn add(
        &self,
        stream: Stream,
        out: u64,
        a: u64,
        b: u64,
        count: usize,
    ) -> Result<(), DriverError> {
        let (mut out, mut a, mut b, mut count) = (out, a, b, count as u64);
        let threads = count;
        let mut arguments = [pointer(&mut out), pointer(&mut a), pointer(&mut b), pointer(&mut count)];
        // SAFETY: promised by the caller.
        unsafe { self.launch(self.add, threads, stream, &mut arguments) }
    }

    /// Enqueues `out = factor * a`.
    ///
    /// # Safety
    ///
    /// The memory lives until then.
    pub unsafe fn scale(
        &self,
        stream: Stream,
        out: u64,
        a: u64,
        factor: f32,
        count: usize,
    ) -> Result<(), DriverError> {
        let (mut out, mut a, mut factor, mut count) = (out, a, factor, count as u64);
        let threads = count;
        let mut arguments = [pointer(&mut out), pointer(&mut a), pointer(&mut factor), pointer(&mut count)];
        // SAFETY: promised by the caller.
        unsafe { self.launch(self.scale, threads, stream, &mut arguments) }
    }

    /// Enqueues a copy within the device.
    ///
    /// # Safety
    ///
    /// The memory lives until then.
    pub unsafe fn copy(&self, stream: Stream, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: promised by the caller.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream as CUstream) }
    }

    /// A stream that the legacy stream does not wait for.
    pub fn stream(&self) -> Result<Stream, DriverError> {
        let _current = self.make_current()?;
        Ok(result::stream::create(result::stream::StreamKind::NonBlocking)? as Stream)
    }

    /// An event without timing.
    pub fn event(&self) -> Result<Event, DriverError> {
        let _current = self.make_current()?;
        Ok(Event(result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?))
    }

    pub fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: both are alive.
        unsafe { result::event::record(event.0, stream as CUstream) }
    }

    pub fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(stream as CUstream, event.0, flags) }
    }

    pub fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: it is alive.
        unsafe { result::stream::synchronize(stream as CUstream) }
    }

    pub fn synchronize_context(&self) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: a context is current.
        unsafe { sys::cuCtxSynchronize() }.result()
    }

    /// Memory of the device. For as long as the process lives: the suite takes little.
    pub fn memory(&self, bytes: usize) -> Result<u64, DriverError> {
        let _current = self.make_current()?;
        // SAFETY: the size is not zero.
        unsafe { result::malloc_sync(bytes) }
    }

    /// A word of pinned memory, 0 at first, that was made with the driver. Nothing else has it.
    pub fn flag(&self) -> Result<Flag, DriverError> {
        self.flags.next()
    }

    /// Makes a stream wait until the host sets a flag. `None` where the device has no such waits.
    pub fn wait_for(&self, stream: Stream, flag: Flag) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: the flag lives for ever, and pinned memory has the same address for the device.
        unsafe { sys::cuStreamWaitValue32_v2(stream as CUstream, flag.address(), 1, 0) }.result()
    }

    /// Makes a stream set a flag.
    pub fn set_by(&self, stream: Stream, flag: Flag) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: as above.
        unsafe { sys::cuStreamWriteValue32_v2(stream as CUstream, flag.address(), 1, 0) }.result()
    }

    /// Makes a stream call a function.
    ///
    /// # Safety
    ///
    /// It may be called with that argument, on any thread.
    pub unsafe fn call(
        &self,
        stream: Stream,
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: promised by the caller.
        unsafe { result::stream::launch_host_function(stream as CUstream, function, argument) }
    }

    /// The current value in device memory. Its writers have ended.
    pub fn read(&self, from: u64, bytes: usize) -> Result<Vec<u8>, DriverError> {
        let _current = self.make_current()?;
        let mut out = vec![0; bytes];
        // SAFETY: the caller's memory.
        unsafe { result::memcpy_dtoh_sync(&mut out, from) }?;
        Ok(out)
    }
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

#[derive(Clone, Copy, Debug)]
pub struct Event(CUevent);

// SAFETY: a handle that any thread may use.
unsafe impl Send for Event {}

impl Event {
    /// Asks the driver whether it is over.
    pub fn query(self) -> bool {
        // SAFETY: events of the suite are not destroyed.
        unsafe { result::event::query(self.0) }.is_ok()
    }
}

fn make_current(context: CUcontext) -> Result<CurrentGuard, DriverError> {
    // SAFETY: the context is alive.
    unsafe { sys::cuCtxPushCurrent_v2(context) }.result()?;
    Ok(CurrentGuard)
}

/// All flags of the process, made at once: pinning memory may wait for the whole device, and some stream is
/// blocked by the time that a step wants its next flag.
#[derive(Debug)]
struct Flags {
    words: &'static [Line],
    taken: AtomicUsize,
}

/// Flags that the device and the host write at the same time share no cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU32);

impl Flags {
    /// A step takes about a hundred.
    const COUNT: usize = 4_096;

    fn new() -> Result<Self, DriverError> {
        let bytes = Self::COUNT * size_of::<Line>();
        // SAFETY: the size is not zero; what is got is written before it is read.
        let place = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: so many bytes, aligned to pages, for as long as the process lives.
        let words = unsafe {
            place.cast::<u8>().write_bytes(0, bytes);
            std::slice::from_raw_parts(place.cast(), Self::COUNT)
        };
        Ok(Self { words, taken: AtomicUsize::new(0) })
    }

    fn next(&self) -> Result<Flag, DriverError> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let line = self.words.get(taken).ok_or(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        Ok(Flag(&line.0))
    }
}

/// A word that host and device both see.
#[derive(Clone, Copy, Debug)]
pub struct Flag(&'static AtomicU32);

impl Flag {
    fn address(self) -> u64 {
        std::ptr::from_ref(self.0) as u64
    }

    pub fn set(self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    pub fn get(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
