//! An engine's reports about itself, as the plain Python objects of `estafette/_reports.py`.

use estafette::bindings;
use estafette::engine::{ShutdownReport, Stats};
use estafette::exchange::ReleaseStatus;
use estafette::lease::LeaseInfo;
use estafette::wait::{Activity, Diagnosis, Status};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::import_module;
use crate::exchange::unordered;

fn make<'py>(
    py: Python<'py>,
    class: &str,
    fields: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    import_module(py, "estafette._reports")?.getattr(class)?.call1(fields)
}

pub fn diagnosis(py: Python<'_>, diagnosis: &Diagnosis) -> PyResult<Py<PyAny>> {
    let mut operations = Vec::with_capacity(diagnosis.operations.len());
    for op in &diagnosis.operations {
        let blocked = op.blocked_by.iter().map(|blocked| {
            let lease = blocked.lease.as_ref().map(|info| lease(py, info)).transpose()?;
            let hazard = blocked.hazard.to_string();
            make(py, "Blocker", (blocked.id, &blocked.name, blocked.variable, hazard, lease))
        });
        let blocked = PyTuple::new(py, blocked.collect::<PyResult<Vec<_>>>()?)?;
        let status = match op.status {
            Status::Waiting => "waiting",
            Status::Granted => "granted",
            Status::Fenced(_) => "fenced",
            Status::Running => "running",
            Status::Cancelled => "cancelled",
            Status::Held(_) => "held",
            _ => "unknown",
        };
        let age = op.age.as_secs_f64();
        let lease = op.lease.as_ref().map(|info| lease(py, info)).transpose()?;
        let fields = (op.id, &op.name, status, age, blocked, lease, op.to_string());
        operations.push(make(py, "OpStatus", fields)?);
    }
    let operations = PyTuple::new(py, operations)?;
    let releases = diagnosis.releases.iter().map(|release| {
        let status = match release.status {
            ReleaseStatus::Deleting => "deleting",
            ReleaseStatus::Queued => "queued",
            ReleaseStatus::Fenced => "fenced",
            _ => "unknown",
        };
        make(
            py,
            "Release",
            (release.id, &release.what, status, release.age.as_secs_f64(), release.to_string()),
        )
    });
    let releases = PyTuple::new(py, releases.collect::<PyResult<Vec<_>>>()?)?;
    Ok(make(py, "Diagnosis", (operations, releases, diagnosis.unlisted, diagnosis.to_string()))?.unbind())
}

pub fn lease<'py>(py: Python<'py>, lease: &LeaseInfo) -> PyResult<Bound<'py, PyAny>> {
    let site = bindings::lease::owner_site(&lease.owner);
    let fields = (
        lease.access.to_string(),
        &*lease.owner,
        lease.age.as_secs_f64(),
        lease.held,
        bindings::lease::owner_library(&lease.owner),
        lease.object.as_deref(),
        site.map(|site| &*site.file),
        site.map(|site| site.line),
        site.map(|site| &*site.function),
        lease.to_string(),
    );
    make(py, "Lease", fields)
}

pub fn stats(
    py: Python<'_>,
    stats: &Stats,
    live: &Activity,
    imported: u64,
    exported: u64,
) -> PyResult<Py<PyAny>> {
    let Stats {
        in_flight,
        in_flight_limit,
        released,
        deleters,
        leaked,
        releasing,
        handed_back,
        staging_bytes,
        copied_for_processes,
        ..
    } = *stats;
    let unordered = unordered::count();
    let counters =
        (in_flight, in_flight_limit, imported, exported, deleters, released, leaked, releasing, unordered);
    let counters = counters
        .into_pyobject(py)?
        .add((handed_back, staging_bytes, copied_for_processes).into_pyobject(py)?)?;
    let oldest = live.oldest_lease.as_ref().map(|oldest| lease(py, oldest)).transpose()?;
    let now = (live.running, live.ready, live.queued, live.leased, oldest);
    let fields = counters.add(now.into_pyobject(py)?)?.cast_into::<PyTuple>()?;
    Ok(make(py, "Stats", fields)?.unbind())
}

pub fn shutdown(py: Python<'_>, report: &ShutdownReport) -> PyResult<Py<PyAny>> {
    let fields = (
        report.drained,
        PyTuple::new(py, &report.cancelled)?,
        PyTuple::new(py, &report.leases)?,
        PyTuple::new(py, &report.running)?,
        report.unlisted,
    );
    Ok(make(py, "ShutdownReport", fields)?.unbind())
}
