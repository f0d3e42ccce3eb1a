//! cudarc: slices of device memory become tensors, and leases of tensors become slices, in the order of
//! cudarc's streams.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtrMut};
use estafette_devices::{DLDevice, DeviceType};

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::{Abi, Element, ExportFlags, ManagedTensor, ReleaseStream, export};
use crate::export::ExportOptions;
use crate::export::stream::device_with_streams;
use crate::lease::Access;
use crate::operation::import::{ImportOptions, filled};
use crate::tensor::handle::Tensor;

impl Engine {
    /// A tensor of this shape in the memory of `slice`, which is ready when the slice's stream has done what
    /// is on it now. The slice's stream waits for the tensor's last use, and the slice is dropped.
    ///
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    /// use estafette::{Access, Engine};
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let engine = Engine::new()?;
    /// let x = engine.from_cudarc(stream.clone_htod(&[1.0_f32, 2.0])?, &[2])?;
    /// let lease = futures::executor::block_on(x.lease_cudarc::<f32>(Access::Read, &stream))?;
    /// assert_eq!(stream.clone_dtoh(&lease.view())?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] when the slice has another number of elements than the shape, is of another context
    /// than the device's primary one, or is on a device that the engine does not have; [`Error::Device`] when
    /// the driver refuses.
    pub fn from_cudarc<T: Element>(&self, mut slice: CudaSlice<T>, shape: &[i64]) -> Result<Tensor, Error> {
        let stream = Arc::clone(slice.stream());
        let (id, handle) = place(&stream)?;
        let layout = filled::<T>(slice.len(), id, shape)?;
        let device = device_with_streams(self.core(), id)?;
        // The slice's stream comes after what uses the slice on other streams.
        let data = slice.device_ptr_mut(&stream).0;
        // SAFETY: the stream is alive here.
        let ready = unsafe { device.foreign_queue(handle) }?.record()?;
        // SAFETY: cudarc frees the memory in the order of the slice's stream, which the keeper keeps.
        let release = unsafe { ReleaseStream::new(device, handle, Some(Box::new(Arc::clone(&stream)))) }?;
        let owner = move || {
            // Without a current context the driver frees nothing; cudarc keeps the error for `check_err`.
            stream.context().record_err(stream.context().bind_to_thread());
            drop(slice);
        };
        let data = ptr::with_exposed_provenance_mut(data as usize);
        // SAFETY: the slice owns as many elements as the layout has, and lives in the owner.
        let managed = unsafe { export(&layout, data, ExportFlags::default(), Abi::Versioned, owner) };
        // SAFETY: no other code has the slice, and its content is ready with the fence.
        unsafe {
            self.import_with(
                managed,
                ImportOptions {
                    ready: ready.into(),
                    release_stream: Some(release),
                    ..ImportOptions::default()
                },
            )
        }
    }
}

impl Tensor {
    /// The tensor as memory for work that is put on `stream` from now on: the stream waits for earlier work
    /// on devices, and the lease ends with what is on the stream when the [`CudarcLease`] is dropped.
    ///
    /// # Errors
    /// Errors of [`export`](Self::export); [`Error::Invalid`] for [`Access::Alias`], when the tensor is not
    /// contiguous, of the element type, and on the stream's device, for `bool`, whose bytes nothing can check
    /// there, and for a stream of another context than the device's primary one, or a handle that means
    /// another stream on other threads.
    ///
    /// # Panics
    /// As cudarc, when the driver makes no event.
    pub async fn lease_cudarc<T: Element>(
        &self,
        access: Access,
        stream: &Arc<CudaStream>,
    ) -> Result<CudarcLease<T>, Error> {
        if T::DTYPE == <bool as Element>::DTYPE {
            return Err(Error::invalid("the bytes of a bool on a device may be neither true nor false"));
        }
        if access == Access::Alias {
            return Err(Error::invalid(
                "an alias orders nothing: lease the tensor for reading or for writing",
            ));
        }
        let (device, handle) = place(stream)?;
        // SAFETY: the stream is alive as long as the keeper.
        let consumer = unsafe { self.consumer_on_kept(device, handle, Arc::clone(stream) as _) }?;
        let lent = self.export(ExportOptions { consumer, ..ExportOptions::from(access) }).await?;
        let layout = lent.describe()?;
        if layout.device() != device {
            return Err(Error::invalid(format!("the memory is on {}, not on {device}", layout.device())));
        }
        let len = layout.check_slice::<T>(lent.data())?;
        // SAFETY: `check_slice` has found `len` elements of an initialized tensor there. They stay until
        // `lent` is dropped, and the slice never frees them.
        let mut slice = unsafe { stream.upgrade_device_ptr(lent.data().expose_provenance() as u64, len) };
        // Other streams wait for what this one waits for: here cudarc records the event of the last write.
        drop(slice.device_ptr_mut(stream));
        Ok(CudarcLease { slice: ManuallyDrop::new(slice), access, _lent: lent })
    }
}

/// A lease of a tensor, as memory for cudarc; see [`Tensor::lease_cudarc`].
pub struct CudarcLease<T> {
    /// Never dropped, as cudarc would free the memory.
    slice: ManuallyDrop<CudaSlice<T>>,
    access: Access,
    /// Dropped last: the end of the lease.
    _lent: ManagedTensor,
}

impl<T> CudarcLease<T> {
    /// The elements, for commands and kernels that read them.
    pub fn view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }

    /// The elements, for commands and kernels that write them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a read lease.
    pub fn view_mut(&mut self) -> Result<CudaViewMut<'_, T>, Error> {
        match self.access {
            Access::Write => Ok(self.slice.as_view_mut()),
            _ => Err(Error::invalid("a read lease must not be written")),
        }
    }
}

impl<T> Drop for CudarcLease<T> {
    fn drop(&mut self) {
        // SAFETY: nothing uses the slice any more.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // The slice's stream comes after what uses the slice on other streams.
        slice.leak();
    }
}

impl<T> fmt::Debug for CudarcLease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slice, access, .. } = self;
        f.debug_struct("CudarcLease")
            .field("len", &slice.len())
            .field("access", access)
            .finish_non_exhaustive()
    }
}

/// The device of a stream, and the stream's handle. The driver's 0 is the legacy default stream, which has
/// the number 1 as well.
fn place(stream: &CudaStream) -> Result<(DLDevice, usize), Error> {
    let context = stream.context();
    if !context.is_primary() {
        return Err(Error::invalid("the stream is of another context than the device's primary one"));
    }
    let ordinal = i32::try_from(context.ordinal()).expect("an ordinal of the driver, which is an int");
    let handle = stream.cu_stream().expose_provenance();
    Ok((DLDevice::new(DeviceType::CUDA, ordinal), if handle == 0 { 1 } else { handle }))
}
