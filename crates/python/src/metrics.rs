//! The metrics of an agent, as dicts.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use transload::transfer::{AgentMetrics, Path, PathBytes, RouteMetrics, TransferMetrics};

pub(crate) fn metrics<'py>(py: Python<'py>, of: &AgentMetrics) -> PyResult<Bound<'py, PyDict>> {
    let leases = PyDict::new(py);
    leases.set_item("opened", of.leases.opened)?;
    leases.set_item("completed", of.leases.completed)?;
    leases.set_item("cancelled", of.leases.cancelled)?;
    leases.set_item("expired", of.leases.expired)?;
    leases.set_item("peer_lost", of.leases.peer_lost)?;
    leases.set_item("device_lost", of.leases.device_lost)?;
    leases.set_item("device_stalled", of.leases.device_stalled)?;
    let all = PyDict::new(py);
    all.set_item("pulls", transfers(py, &of.pulls)?)?;
    all.set_item("pushes", transfers(py, &of.pushes)?)?;
    all.set_item("served", routes(py, &of.served)?)?;
    all.set_item("received", routes(py, &of.received)?)?;
    all.set_item("bytes_out", bytes(py, &of.bytes_out)?)?;
    all.set_item("bytes_in", bytes(py, &of.bytes_in)?)?;
    all.set_item("busy", of.busy.as_secs_f64())?;
    all.set_item("chunks", &of.chunks)?;
    all.set_item("leases", leases)?;
    all.set_item("plans", of.plans)?;
    Ok(all)
}

fn transfers<'py>(py: Python<'py>, of: &TransferMetrics) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("begun", of.begun)?;
    item.set_item("succeeded", of.succeeded)?;
    item.set_item("failed", &of.failed)?;
    item.set_item("seconds", of.took.as_secs_f64())?;
    item.set_item("queued", of.queued.as_secs_f64())?;
    Ok(item)
}

fn routes<'py>(py: Python<'py>, of: &RouteMetrics) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("begun", of.begun)?;
    item.set_item("succeeded", of.succeeded)?;
    item.set_item("failed", of.failed)?;
    item.set_item("seconds", of.took.as_secs_f64())?;
    Ok(item)
}

fn bytes<'py>(py: Python<'py>, of: &PathBytes) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("quic", of.by(Path::QUIC))?;
    item.set_item("ring", of.by(Path::RING))?;
    item.set_item("device", of.by(Path::DEVICE))?;
    Ok(item)
}
