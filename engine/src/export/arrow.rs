//! Arrow arrays as tensors, and tensors as Arrow arrays, with `sync_event` as a fence.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::{Device, Fence, FenceSet, Queue};
use estafette_sync::sync::Mutex;

use crate::core::error::Error;
use crate::core::operation::{Name, Op};
use crate::engine::Engine;
use crate::exchange::arrow::{ArrowDeviceArray, ArrowSchema, Imported};
use crate::export::ExportOptions;
use crate::lease::Access;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::import::ImportOptions;
use crate::tensor::handle::Tensor;

/// An exported array and its type.
type Handed = (ArrowSchema, ArrowDeviceArray);

impl Engine {
    /// Adopts an array of Arrow's C device interface, without a copy; `format` is the format of its schema.
    /// On an error the array has been released.
    ///
    /// The tensor has one dimension and is read-only, as Arrow's memory never changes. The tensor is ready
    /// when the array's `sync_event` is.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] names what a tensor cannot have (nulls, a type that is not primitive, ...);
    /// [`Error::Invalid`] for a device that the engine does not have; [`Error::Device`] for a device without
    /// such events.
    ///
    /// # Safety
    /// The array's fields must be true until it is released, and its memory is not written meanwhile. Its
    /// `sync_event` is NULL, or an event of its device's kind that was recorded after the last write.
    pub unsafe fn import_arrow(&self, format: &CStr, array: ArrowDeviceArray) -> Result<Tensor, Error> {
        let Imported { tensor, sync_event } = array.into_tensor(format)?;
        let ready = match sync_event {
            None => FenceSet::default(),
            Some(event) => {
                let id = tensor.device();
                let device = self.core().device(id).ok_or_else(|| {
                    Error::invalid(format!(
                        "sync_event is set, but this engine has no device {id} whose queues could wait for that event"
                    ))
                })?;
                // SAFETY: the caller says what the event is. It lives until the array is released, and the
                // reaper does that after all fences of the memory, of which this becomes one, have settled.
                unsafe { device.fence_of_event(event) }?.into()
            }
        };
        // SAFETY: as the caller says, once the fence is done.
        unsafe {
            self.import_with(tensor, ImportOptions { ready, read_only: true, ..ImportOptions::default() })
        }
    }
}

impl Tensor {
    /// Hands the tensor to a consumer of Arrow's C device interface, without a copy, under a read lease that
    /// ends when the consumer releases the array.
    ///
    /// Memory of a device with events is exported as soon as the work on it has been *issued*: the array's
    /// `sync_event` marks the end of that work. All other memory is exported when it is ready.
    ///
    /// # Errors
    /// The root cause of a failed version; [`Error::InvalidTensor`] for a tensor that no Arrow array can
    /// describe: an array has one dimension, no gaps, and a primitive element type.
    pub async fn export_arrow(&self) -> Result<Handed, Error> {
        if !self.is_defined() {
            self.ready().await?;
        }
        match self.device_with_events()? {
            None => {
                let lent = self.export(options()).await?;
                Ok(ArrowDeviceArray::from_tensor(lent, None)?)
            }
            Some(device) => {
                let export = self.arrow_export(&device).permit().await?;
                let (op, handed) = self.issue_export(export, device)?;
                op.await?;
                take(&handed)
            }
        }
    }

    /// As [`export_arrow`](Self::export_arrow), blocking for at most `timeout`; `None` waits as long as it
    /// takes.
    ///
    /// # Errors
    /// As [`export_arrow`](Self::export_arrow), and those of [`Tensor::wait`].
    pub fn export_arrow_wait(&self, timeout: Option<Duration>) -> Result<Handed, Error> {
        if !self.is_defined() {
            crate::wait::blocking::block_on_tensor(self, timeout)?;
        }
        match self.device_with_events()? {
            None => {
                let lent = self.export_wait(&ExportOptions { timeout, ..options() })?;
                Ok(ArrowDeviceArray::from_tensor(lent, None)?)
            }
            Some(device) => {
                let (op, handed) = self.issue_export(self.arrow_export(&device), device)?;
                op.wait_timeout(timeout)?;
                take(&handed)
            }
        }
    }

    /// The device of this memory, where one of the engine's has events to give away.
    fn device_with_events(&self) -> Result<Option<Arc<dyn Device>>, Error> {
        let id = self.device()?;
        Ok(self.inner.core.device(id).filter(|device| device.has_events()))
    }

    /// The export as a reader on a queue of the device: when it is granted, the queue has been made to wait
    /// for whatever is unfinished, and a fence of the queue stands for all of it.
    fn arrow_export(&self, device: &Arc<dyn Device>) -> OpBuilder<'_, [Self; 1]> {
        OpBuilder::new(&self.inner.core, Name::Static("export to arrow"))
            .reads([self])
            .on(&device.default_queue())
    }

    fn issue_export(
        &self,
        export: OpBuilder<'_, [Self; 1]>,
        device: Arc<dyn Device>,
    ) -> Result<(Op, Arc<ArraySlot>), Error> {
        let slot = Arc::new(ArraySlot::default());
        let (queue, tensor, place) = (device.default_queue(), self.clone(), Arc::clone(&slot));
        let op = export.run_external(move |completion| {
            let outcome = hand_over(&completion, &tensor, device.as_ref(), queue.as_ref());
            let fence = outcome.as_ref().ok().map(|(_, fence)| fence.clone());
            // Before the operation ends, as its end is what the caller waits for.
            *place.lock() = Some(outcome.map(|(handed, _)| handed));
            match fence {
                Some(fence) => completion.complete_after(&fence, Ok(())),
                None => completion.complete(Ok(())),
            }
        })?;
        Ok((op, slot))
    }
}

/// The slot in which the operation leaves the array for the caller.
type ArraySlot = Mutex<Option<Result<Handed, Error>>>;

fn take(slot: &ArraySlot) -> Result<Handed, Error> {
    slot.lock().take().unwrap_or_else(|| Err(Error::invalid("the export ended without an array")))
}

fn hand_over(
    completion: &Completion,
    tensor: &Tensor,
    device: &dyn Device,
    queue: &dyn Queue,
) -> Result<(Handed, Fence), Error> {
    let lent = completion.scope().export(tensor, &options())?;
    let fence = queue.record()?;
    let event = if fence.is_done() { None } else { Some(device.event_of_fence(&fence)?) };
    Ok((ArrowDeviceArray::from_tensor(lent, event)?, fence))
}

fn options() -> ExportOptions {
    ExportOptions { owner: Some("a consumer of Arrow arrays".into()), ..ExportOptions::from(Access::Read) }
}
