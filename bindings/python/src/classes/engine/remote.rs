//! Tensors of other processes: `door`, `connect`, `from_ticket`.

use estafette::Error;
use estafette::bindings;
use pyo3::prelude::*;

use super::PyEngine;
use crate::arguments::seconds;
use crate::asyncio::awaiting::Awaiter;
use crate::classes::remote::{PyDoor, PyLink, parse_ticket};
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, Raised};
use crate::interpreter::call_site::traced_line;
use crate::interpreter::guard;

#[pymethods]
impl PyEngine {
    /// Opens a door, where other processes of the same user on this machine make links to this one. What they
    /// send becomes tensors of this engine.
    fn door(&self, py: Python<'_>) -> PyResult<PyDoor> {
        PyDoor::open(py, &self.handle)
    }

    /// Makes a link to the process with a door at `address`, in at most `timeout` seconds.
    #[pyo3(signature = (address, /, timeout = None))]
    fn connect(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<PyLink> {
        PyLink::connect(py, &self.handle, address, timeout)
    }

    /// As `connect`, to be awaited.
    #[pyo3(signature = (address, /))]
    fn connect_async(&self, py: Python<'_>, address: &str) -> PyResult<Awaiter> {
        PyLink::connect_async(py, &self.handle, address)
    }

    /// Returns a promise of the tensor that a ticket of another process names: a `Ticket`, or the bytes of
    /// one. It is read-only and has its memory in that process. Returns at once. The tensor fails if that
    /// process has died, or has revoked the ticket.
    #[pyo3(signature = (ticket, /))]
    #[allow(clippy::wrong_self_convention, reason = "beside `from_dlpack`")]
    fn from_ticket(&self, py: Python<'_>, ticket: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let ticket = parse_ticket(py, ticket)?;
        let engine = self.engine(py)?;
        self.handle.check_room(py)?;
        let site = traced_line(py);
        Ok(self.wrap(
            guard::detach(py, || bindings::remote::from_ticket_at(engine, &ticket, site)).or_raise(py)?,
        ))
    }
}

/// The tensors of tickets. Returns once their processes keep the versions for this one, ready or not, or
/// after `timeout` seconds: then the tickets may be revoked, and the death of this process ends what it has
/// of them.
#[pyfunction(name = "_from_tickets", signature = (engine, tickets, /, timeout = None))]
pub fn from_tickets(
    py: Python<'_>,
    engine: &PyEngine,
    tickets: Vec<Bound<'_, PyAny>>,
    timeout: Option<f64>,
) -> PyResult<Vec<PyTensor>> {
    let timeout = seconds("timeout", timeout)?;
    let mut tensors = Vec::with_capacity(tickets.len());
    let mut held = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        let ticket = parse_ticket(py, &ticket)?;
        let site = traced_line(py);
        let engine = engine.engine(py)?;
        let (tensor, kept) =
            guard::detach(py, || bindings::remote::from_ticket_held(engine, &ticket, site)).or_raise(py)?;
        tensors.push(tensor);
        held.push(kept);
    }
    // The answers come at once, so that no event loop stands still.
    let all = async {
        for kept in &held {
            // A failure is the tensor's.
            let _ = kept.settled().await;
        }
        Ok(())
    };
    let waiting = engine.engine(py)?;
    match guard::detach(py, || bindings::remote::block_on(waiting, all, timeout)) {
        // A process that stands still answers later.
        Err(Error::Timeout(_)) => {}
        waited => waited.or_raise(py)?,
    }
    Ok(tensors.into_iter().map(|tensor| engine.wrap(tensor)).collect())
}

/// The tensor of another process in whose place there is an error. Waits for no room: an event loop of Dask's
/// gets it.
#[pyfunction(name = "_failed", signature = (engine, error, /))]
pub fn failed(py: Python<'_>, engine: &PyEngine, error: Bound<'_, PyAny>) -> PyResult<PyTensor> {
    let why = Raised::foreign(py, PyErr::from_value(error));
    let submitting = engine.engine(py)?;
    let fail = || {
        let op = bindings::operation::beyond_limit(submitting.op("tensor of another process"))?;
        op.receive(|completion| completion.produce(Err(why)))
    };
    Ok(engine.wrap(guard::detach(py, fail).or_raise(py)?))
}
