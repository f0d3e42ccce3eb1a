//! Tensors of other processes on the same machine, over a [`Link`](estafette_links::Link).
//!
//! The owner orders: what crosses is a lease of the owner's tensor and the fence that says when the lease is granted. The lease ends when
//! the other process has used the tensor, when it leaves, or when it has died and can touch nothing any more. No bytes are copied.
//! A [`Ticket`] names a version in some bytes, for processes that no link joins.
//!
//! ```no_run
//! use estafette::remote::{Address, Door, Link};
//! use estafette::{DType, Engine};
//!
//! # async fn producer(door: Door) -> Result<(), estafette::Error> {
//! let engine = Engine::builder().shared(true).build()?;
//! let link = engine.accept(&door).await?;                  // one process: `door.address()` went to the other
//! let x = engine.zeros(&[1024], DType::F32)?;
//! link.send(&x).await?;                                    // at once, whether or not `x` is ready
//! engine.op("next").writes([&x]).run(|[], [_x]| Ok(()))?;  // after the other process is done with it
//! # Ok(()) }
//! # async fn consumer(address: Address) -> Result<(), estafette::Error> {
//! let engine = Engine::new()?;
//! let link = engine.connect(&address).await?;
//! let x = link.receive().await?.expect("a tensor");        // a promise like any other
//! x.ready().await?;
//! # Ok(()) }
//! ```

#[cfg(feature = "nixl")]
mod network;
#[cfg(not(feature = "nixl"))]
#[path = "remote/no_network.rs"]
mod network;
mod ticket;

use std::sync::Arc;

use estafette_devices::host::{self, HostDevice};
use estafette_devices::{DLDevice, Device, DeviceError, Fence, Reactor};
use estafette_links::{Arena, Link as RawLink, LinkError, Received, Segment};
use estafette_sync::sync::Mutex;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::{Abi, DType, ExportFlags, Layout, ManagedTensor, Storage, export};
use crate::lease::{Access, CallSite, Lease, LeaseOwner};
use crate::operation::import;
use crate::tensor::handle::Tensor;
use crate::tensor::memory::ALIGN;
use crate::trace::{self, hooks};
use crate::wait::notify::{device_error, notify};

#[cfg(feature = "nixl")]
pub use self::network::{TicketOptions, declare_dead, suggest_nixl};
pub use self::ticket::Ticket;
pub use estafette_links::{Address, Door};

/// A link of an engine to another process.
#[derive(Debug)]
pub struct Link {
    engine: Engine,
    link: RawLink,
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Forked => Error::Forked,
            LinkError::Invalid(message) => Error::invalid(message),
            other => Error::Device(DeviceError::from(&other)),
        }
    }
}

impl Engine {
    /// A tensor of zeros in host memory that other processes can be shown, whatever the engine's other memory is.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn zeros_shared(&self, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
        import::allocate(self.core(), DLDevice::CPU, shape, dtype, |_, layout| {
            Ok(Storage::device(
                HostDevice::with_memory(Arc::new(Arena)).allocate_zeroed(layout.byte_len().max(1), ALIGN)?,
            ))
        })
    }

    /// A link to the process with a door at `address`.
    ///
    /// # Errors
    /// [`Error::Device`] if nothing is there any more, or the system refuses.
    pub async fn connect(&self, address: &Address) -> Result<Link, Error> {
        Ok(Link { engine: self.clone(), link: RawLink::connect(address).await? })
    }

    /// The next link that another process has made to `door`.
    ///
    /// # Errors
    /// [`Error::Device`] if the system refuses.
    pub async fn accept(&self, door: &Door) -> Result<Link, Error> {
        Ok(Link { engine: self.clone(), link: door.accept().await? })
    }
}

impl Link {
    /// The number of the other process.
    pub fn process(&self) -> u32 {
        self.link.process()
    }

    fn owner(&self) -> LeaseOwner {
        LeaseOwner::from(format!("process {}", self.process()))
    }

    /// Lets the other process read the tensor's current version, ready or not. Writes submitted later wait until the other process is done.
    /// Waits while the link is full.
    ///
    /// # Errors
    /// [`Error::NotShared`] if the memory cannot be shown to others: its engine was made without
    /// [`shared`](crate::engine::EngineBuilder::shared), or it came from elsewhere. [`Error::NotDefined`] if there is no memory yet.
    /// [`Error::Device`] if the other process left or died.
    pub async fn send(&self, tensor: &Tensor) -> Result<(), Error> {
        hand_over(&self.link, &[], Arc::new(Export::new(tensor, self.owner())?)).await
    }

    /// The next tensor of the other process: a promise, read-only, in the memory of that process. `None` once that process has closed the
    /// link in good order.
    ///
    /// # Errors
    /// [`Error::Device`] if the other process died; [`Error::Invalid`] if it says what makes no sense.
    #[track_caller]
    pub fn receive(&self) -> impl Future<Output = Result<Option<Tensor>, Error>> + Send + use<'_> {
        self.receive_at(this_line())
    }

    /// As [`receive`](Self::receive), at a line of a program in another language.
    ///
    /// # Errors
    /// As `receive`.
    #[doc(hidden)]
    pub async fn receive_at(&self, site: Option<CallSite>) -> Result<Option<Tensor>, Error> {
        let received = match self.link.receive().await {
            Ok(received) => received,
            Err(LinkError::Closed { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let note = received.note().to_vec();
        let (managed, ready, key) = take_over(&self.link, received, &note)?;
        let tensor = import::of_another_process(self.engine.core(), managed, &ready)?;
        if trace::is_open() {
            hooks::received(&tensor, self.process(), key, &ready, site.as_ref());
        }
        Ok(Some(tensor))
    }
}

/// The line of the caller, if it will be noted.
#[track_caller]
fn this_line() -> Option<CallSite> {
    let line = std::panic::Location::caller();
    trace::is_open().then(|| CallSite {
        file: line.file().to_owned(),
        line: line.line(),
        function: String::new(),
    })
}

/// A version of a tensor, on behalf of other processes: under one read lease for as long as anything has a share in this.
struct Export {
    segment: Arc<Segment>,
    /// Where the first element is in the segment.
    first: usize,
    layout: Layout,
    /// Done when the lease is granted.
    ready: Fence,
    /// What traces of other processes call the lease.
    key: u64,
    /// Who the lease is said to be of.
    #[cfg_attr(
        not(feature = "nixl"),
        expect(dead_code, reason = "remarks are made on processes of other machines")
    )]
    owner: LeaseOwner,
    _share: Share,
}

impl Export {
    /// Requests the lease: it takes its place in the order now.
    fn new(tensor: &Tensor, owner: LeaseOwner) -> Result<Self, Error> {
        let definition = tensor.inner.definition()?;
        let layout = &definition.layout;
        let range = layout.byte_range(definition.data);
        let base = std::ptr::without_provenance::<u8>(range.start);
        let is_host = layout.device() == DLDevice::CPU && definition.host;
        let found = if is_host { Arena.find(base, range.len()) } else { None };
        let (segment, offset) = found.ok_or(Error::NotShared(NOT_SHARED.into()))?;
        let (completer, ready) = host::promise("a lease for another process");
        let share = Share::default();
        let granted = Arc::clone(&share.0);
        let owner = owner.elsewhere();
        let (request, lease) = tensor.lease(Access::Read, owner.clone()).submitted()?;
        let key = trace::process_key().wrapping_add(lease);
        notify(request, move |lease: Result<Lease, Error>| match lease {
            Ok(lease) => {
                let ended = granted.lock().put(lease);
                drop(ended);
                completer.complete();
            }
            Err(error) => completer.fail(device_error(error)),
        });
        let first = offset + (definition.data.addr() - range.start);
        Ok(Self { segment, first, layout: layout.clone(), ready, key, owner, _share: share })
    }
}

/// Why a tensor is refused.
const NOT_SHARED: &str = "the memory of the tensor is not memory that this process can show to others: make the tensor in an engine with \
                          shared memory, and have operations write to it; a tensor of another process is asked of that process";

/// Sends an export behind `prefix`. The share ends when the other process touches the memory no more.
async fn hand_over(link: &RawLink, prefix: &[u8], export: Arc<Export>) -> Result<(), Error> {
    let number = link.show(&export.segment)?;
    let Export { first, layout, key, .. } = &*export;
    let description = Description { number, first: *first as u64, layout: layout.clone(), key: *key };
    let note = [prefix, &description.to_bytes()].concat();
    let answer = link.send(&export.ready, &note).await?;
    Reactor::global().when_settled([&answer], move |_| drop(export));
    Ok(())
}

/// What was received with a description, when it may be read, and its key in traces.
fn take_over(
    link: &RawLink,
    received: Received,
    description: &[u8],
) -> Result<(ManagedTensor, Fence, u64), Error> {
    let process = link.process();
    let Description { number, first, layout, key } = Description::from_bytes(description)
        .ok_or_else(|| Error::invalid(format!("process {process} sent no tensor")))?;
    let segment = link.segment(number)?;
    let start = segment.start().as_ptr();
    let outside = || Error::invalid(format!("process {process} sent a tensor outside of its memory"));
    let first = usize::try_from(first).ok().filter(|first| *first <= segment.bytes()).ok_or_else(outside)?;
    let data = start.wrapping_add(first);
    layout.check_data(data)?;
    let range = layout.byte_range(data);
    if range.start < start.addr() || range.end > start.addr() + segment.bytes() {
        return Err(outside());
    }
    let ready = received.fence().clone();
    let keeper: (Received, _) = (received, segment);
    let flags = ExportFlags { read_only: true, is_copied: false };
    // SAFETY: the elements are inside of the segment, which is mapped until the keeper is dropped; its owner leaves them alone
    // between the fence and the answer, which the drop of what was received gives.
    let managed = unsafe { export(&layout, data, flags, Abi::Versioned, move || drop(keeper)) };
    Ok((managed, ready, key))
}

/// The lease of another process, granted or not. It ends when this is dropped.
#[derive(Default)]
struct Share(Arc<Mutex<ShareState>>);

#[derive(Default)]
struct ShareState {
    lease: Option<Lease>,
    is_over: bool,
}

impl ShareState {
    /// Keeps a lease that was granted, or gives it back if it is over.
    fn put(&mut self, lease: Lease) -> Option<Lease> {
        if self.is_over { Some(lease) } else { self.lease.replace(lease) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let lease = state.lease.take();
        drop(state);
        drop(lease);
    }
}

/// What the other process learns of a tensor.
#[derive(Debug, PartialEq)]
struct Description {
    /// Of the segment.
    number: u32,
    /// Where the first element is in it.
    first: u64,
    layout: Layout,
    /// What traces call the lease.
    key: u64,
}

impl Description {
    fn to_bytes(&self) -> Vec<u8> {
        let DType { code, bits, lanes } = self.layout.dtype();
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend([code, bits, self.layout.is_padded().into(), self.layout.ndim() as u8]);
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(u64::from(lanes).to_le_bytes());
        bytes.extend(self.key.to_le_bytes());
        let numbers = self.layout.shape().iter().chain(self.layout.strides());
        bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// `None` for bytes that describe nothing.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [head, first, lanes, key, numbers @ ..] = words else { return None };
        let [a, b, c, d, code, bits, padded, ndim] = *head;
        let numbers: Vec<i64> = numbers.iter().map(|number| i64::from_le_bytes(*number)).collect();
        let (shape, strides) = numbers.split_at_checked(ndim.into())?;
        let lanes = u16::try_from(u64::from_le_bytes(*lanes)).ok()?;
        if !rest.is_empty() || padded > 1 {
            return None;
        }
        let layout = Layout::strided(DType { code, bits, lanes }, DLDevice::CPU, shape, strides).ok()?;
        let layout = layout.with_padding(padded == 1);
        let [first, key] = [first, key].map(|number| u64::from_le_bytes(*number));
        Some(Self { number: u32::from_le_bytes([a, b, c, d]), first, layout, key })
    }
}
