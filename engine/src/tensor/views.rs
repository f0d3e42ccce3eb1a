//! Views of operands in the body of an operation: borrowed, typed on use.

use std::marker::PhantomData;

use estafette_devices::DLDevice;

use crate::core::error::Error;
use crate::exchange::pack;
use crate::exchange::{Element, Layout};
use crate::tensor::handle::{Definition, TensorInner};

/// A tensor that the running operation may read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    definition: &'a Definition,
    on_queue: Option<OnQueue<'a>>,
}

/// A tensor that the running operation may read and write, alone.
pub struct ViewMut<'a> {
    definition: &'a Definition,
    on_queue: Option<OnQueue<'a>>,
    /// Mutable use is exclusive: the view is neither `Clone` nor shared.
    exclusive: PhantomData<&'a mut [u8]>,
}

// SAFETY: a view is a reference to memory that the graph keeps all others from writing; element types are
// `Send + Sync`.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}
// SAFETY: an exclusive reference to memory that the graph keeps for this operation alone.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: shared use of a `ViewMut` only reads.
unsafe impl Sync for ViewMut<'_> {}

/// An operand of a body that enqueues on a queue. The queue is ordered after earlier device work on the
/// operand, which may be pending: then the host must not use the memory.
#[derive(Clone, Copy)]
pub(crate) struct OnQueue<'a> {
    pub(crate) tensor: &'a TensorInner,
    /// For a node of a program, whose variables do not carry what earlier nodes of the run have left.
    pub(crate) earlier_nodes: Option<&'a EarlierNodes<'a>>,
}

/// True if device work that earlier nodes have left may be pending and use a tensor: write it, or with `true`
/// read it.
pub(crate) type EarlierNodes<'a> = dyn Fn(&TensorInner, bool) -> bool + Sync + 'a;

impl OnQueue<'_> {
    /// Checks that the host may read the memory, and `writes` it where that is set.
    pub(crate) fn check_settled(&self, writes: bool) -> Result<(), Error> {
        let tensor = self.tensor;
        if tensor.has_device_work(writes) || self.earlier_nodes.is_some_and(|used| used(tensor, writes)) {
            let message = "device work on the tensor is pending, which the queue comes after and the host does not: use an operation \
                           without a queue";
            return Err(Error::invalid(message));
        }
        Ok(())
    }
}

/// Checks that the host can use the memory, and may do so now.
#[inline]
fn check_host(definition: &Definition, on_queue: Option<OnQueue<'_>>, writes: bool) -> Result<(), Error> {
    if definition.host && on_queue.is_none() {
        return Ok(());
    }
    check_host_closely(definition, on_queue, writes)
}

#[cold]
fn check_host_closely(
    definition: &Definition,
    on_queue: Option<OnQueue<'_>>,
    writes: bool,
) -> Result<(), Error> {
    if !definition.host {
        let device = definition.layout.device();
        return Err(Error::invalid(format!("memory on {device} cannot be used by the host")));
    }
    on_queue.map_or(Ok(()), |operand| operand.check_settled(writes))
}

/// Checks that `definition` can be a slice of `T`, and returns the length of the slice.
fn check_slice<T: Element>(definition: &Definition) -> Result<usize, Error> {
    let layout = &definition.layout;
    let len = layout.check_slice::<T>(definition.data)?;
    // SAFETY: type, contiguity and place were just checked, so this many bytes are there; the operation may
    // read them.
    let bytes =
        unsafe { std::slice::from_raw_parts(slice_start::<u8>(definition, len), len * size_of::<T>()) };
    if T::valid(bytes) {
        Ok(len)
    } else {
        Err(Error::invalid(format!("the memory holds bytes that are not values of {}", T::DTYPE)))
    }
}

fn slice_start<T>(definition: &Definition, len: usize) -> *mut T {
    if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { definition.data.cast() }
}

impl<'a> View<'a> {
    /// The memory may be read for `'a`.
    pub(crate) fn new(definition: &'a Definition) -> Self {
        Self { definition, on_queue: None }
    }

    /// The queue may read the memory for `'a`.
    pub(crate) fn on_queue(operand: OnQueue<'a>) -> Self {
        Self { definition: operand.tensor.granted_definition(), on_queue: Some(operand) }
    }

    /// Checks that the host can read the memory, and may do so now.
    #[inline]
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        check_host(self.definition, self.on_queue, false)
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `T` is not the element type, or the memory is not contiguous, not aligned or
    /// not on the host; and in a body on a queue while device work that the queue comes after is pending
    /// there.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], Error> {
        self.check_host()?;
        let len = check_slice::<T>(self.definition)?;
        // SAFETY: type, alignment, contiguity and place were checked; the layout was validated against
        // overflow; the operation is granted read access for as long as the view lives.
        Ok(unsafe { std::slice::from_raw_parts(slice_start(self.definition, len), len) })
    }

    /// The elements in row-major order, copied; strided memory as well.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice), but for contiguity.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        if self.definition.layout.is_contiguous() {
            return Ok(self.as_slice::<T>()?.to_vec());
        }
        let layout = &self.definition.layout;
        let mut packed: Vec<T> = Vec::with_capacity(layout.len());
        let target = Layout::contiguous(layout.dtype(), DLDevice::CPU, layout.shape())?;
        self.check_host()?;
        // The type is checked against the packed layout, which is aligned and contiguous.
        target.check_slice::<T>(packed.as_ptr().cast())?;
        // SAFETY: the operation may read the memory; the vector has room for the row-major elements, which a
        // check just showed to be of this size.
        unsafe { pack::to_contiguous(layout, self.definition.data, packed.as_mut_ptr().cast()) }?;
        // SAFETY: the capacity's bytes were all written; they are checked before they become values.
        let bytes = unsafe {
            std::slice::from_raw_parts(packed.as_ptr().cast::<u8>(), layout.len() * size_of::<T>())
        };
        if !T::valid(bytes) {
            return Err(Error::invalid(format!(
                "the memory holds bytes that are not values of {}",
                T::DTYPE
            )));
        }
        // SAFETY: `len` elements were written and are valid.
        unsafe { packed.set_len(layout.len()) };
        Ok(packed)
    }

    /// Type, shape, strides and place together.
    pub fn layout(&self) -> &'a Layout {
        &self.definition.layout
    }

    #[cfg(feature = "ndarray")]
    pub(crate) fn definition(&self) -> &'a Definition {
        self.definition
    }

    /// Address of the first element; may be read while the view lives, as the layout describes. In a body on
    /// a queue, work on that queue may read it, and the host only what no pending device work writes.
    pub fn data_ptr(&self) -> *const u8 {
        self.definition.data
    }
}

impl<'a> ViewMut<'a> {
    /// The caller has exclusive access to the memory for `'a`.
    pub(crate) fn new(definition: &'a Definition) -> Self {
        Self { definition, on_queue: None, exclusive: PhantomData }
    }

    /// The queue has exclusive access to the memory for `'a`.
    pub(crate) fn on_queue(operand: OnQueue<'a>) -> Self {
        let definition = operand.tensor.granted_definition();
        Self { definition, on_queue: Some(operand), exclusive: PhantomData }
    }

    /// Checks that the host can use the memory, and may do so now.
    #[inline]
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        check_host(self.definition, self.on_queue, true)
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// As [`View::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], Error> {
        self.check_host()?;
        let len = check_slice::<T>(self.definition)?;
        // SAFETY: as for `View::as_slice`, with write access; the borrow of `self` keeps the slice unique.
        Ok(unsafe { std::slice::from_raw_parts_mut(slice_start(self.definition, len), len) })
    }

    /// Type, shape, strides and place together.
    pub fn layout(&self) -> &'a Layout {
        &self.definition.layout
    }

    #[cfg(feature = "ndarray")]
    pub(crate) fn definition(&mut self) -> &'a Definition {
        self.definition
    }

    /// Address of the first element; may be read and written while the view lives. In a body on a queue, by
    /// work on that queue, and by the host only what no pending device work uses.
    pub fn data_mut_ptr(&mut self) -> *mut u8 {
        self.definition.data
    }
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("View").field(&self.definition.layout).finish()
    }
}

impl std::fmt::Debug for ViewMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ViewMut").field(&self.definition.layout).finish()
    }
}
