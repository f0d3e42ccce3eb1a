//! A kind of device that only tests know, in the Python package that tests use: streams, fences and arrays of
//! the library `another_kind`. The import of that library loads the driver; before, there is no memory of
//! this kind.
//!
//! | part | what it has |
//! |---|---|
//! | `backend` | the kind in the device table |
//! | `device` | the device |
//! | `driver` | the functions that the library calls |

mod backend;
mod device;
mod driver;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use estafette::devices::{DLDevice, Device, FenceSet, Queue, table};
use estafette::exchange::ManagedTensor;
use estafette::lease::Consumer;
use estafette::{Layout, Tensor};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::exchange::array_interface::{self, Dictionary};
use crate::exchange::peers::{Peer, UNKNOWN};
use crate::exchange::typestr;
use crate::interpreter::kept::Kept;
use crate::kinds::{self, Kind};
use backend::DEVICE;
use device::ID;

pub struct Another;

const INTERFACE: &str = "__another_array_interface__";

static PEERS: &[Peer] = &[Peer { root: "another_kind", source: "tests/kinds/another_kind.py", ..UNKNOWN }];

fn is_loaded() -> bool {
    driver::LOADED.load(Ordering::Relaxed)
}

impl Kind for Another {
    fn covers(&self, device: DLDevice) -> bool {
        is_loaded() && device.device_type == ID.device_type
    }

    fn module(&self) -> Option<&'static str> {
        is_loaded().then_some("another_kind")
    }

    fn peers(&self) -> &'static [Peer] {
        if is_loaded() { PEERS } else { &[] }
    }

    fn prepare(&self, _py: Python<'_>) -> PyResult<()> {
        if is_loaded() {
            table::add(&backend::Another);
        }
        Ok(())
    }

    fn device_names(&self) -> &'static [&'static str] {
        if is_loaded() { &["\"another:0\""] } else { &[] }
    }

    fn parse_device(&self, _py: Python<'_>, text: &str) -> PyResult<Option<DLDevice>> {
        Ok((is_loaded() && text == "another:0").then_some(ID))
    }

    fn queue_name(&self) -> Option<&'static str> {
        is_loaded().then_some("a stream of another_kind")
    }

    fn default_stream(&self, _device: DLDevice) -> Option<usize> {
        Some(DEVICE.default_queue().native())
    }

    fn unnamed_stream(&self) -> Option<usize> {
        Some(DEVICE.default_queue().native())
    }

    fn handle(&self, stream: &Bound<'_, PyAny>) -> PyResult<usize> {
        match stream.getattr_opt("another_stream")? {
            Some(handle) => handle.extract(),
            None => stream.extract().map_err(|_| PyTypeError::new_err("no stream of another_kind")),
        }
    }

    fn consumer(
        &self,
        tensor: &Tensor,
        device: DLDevice,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Consumer>> {
        let handle = self.handle(stream)?;
        let keeper = Arc::new(Kept::new(stream.clone().unbind()));
        kinds::consumer_on(stream.py(), tensor, device, handle, Some(keeper)).map(Some)
    }

    fn queue_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
        if !is_loaded() || !object.hasattr("another_stream")? {
            return Ok(None);
        }
        // SAFETY: the object keeps its stream.
        unsafe { DEVICE.foreign_queue(self.handle(object)?) }.map(Some).or_raise(object.py())
    }

    fn current_stream(&self, queue: &dyn Queue) -> Option<(usize, i32)> {
        Some((queue.handle(), ID.device_id))
    }

    fn import_array(
        &self,
        object: &Bound<'_, PyAny>,
        _peer: &Peer,
    ) -> PyResult<Option<(ManagedTensor, FenceSet)>> {
        let py = object.py();
        if !is_loaded() || !array_interface::is_all_there_is(object, INTERFACE)? {
            return Ok(None);
        }
        let interface = Dictionary::of(object, INTERFACE)?;
        let shape: Vec<i64> = interface.needed("shape")?.extract()?;
        let data = ptr::with_exposed_provenance_mut(interface.needed("data")?.extract()?);
        let dtype = typestr::parse(&interface.needed("typestr")?.extract::<String>()?, INTERFACE)?;
        let layout = Layout::contiguous(dtype, ID, &shape).or_raise(py)?;
        let ready = kinds::fence_of(py, ID, data, interface.needed("stream")?.extract()?)?;
        // SAFETY: the object vouches for its memory as long as it lives.
        Ok(Some((unsafe { array_interface::kept_by(object, &layout, data, false) }, ready)))
    }

    fn acquire(
        &self,
        object: &Bound<'_, PyAny>,
        (device, data): (DLDevice, *mut u8),
        stream: Option<usize>,
    ) -> PyResult<FenceSet> {
        match stream {
            Some(stream) => kinds::fence_of(object.py(), device, data, stream),
            None => Ok(FenceSet::default()),
        }
    }
}
