//! The devices of the model backends.

use std::collections::BTreeMap;

use pyo3::prelude::*;

use crate::{backends::working, detach::detach};

/// By backend, each device that it might run on with what keeps it from that.
type Devices = BTreeMap<&'static str, Vec<(String, Option<String>)>>;

/// The devices of every backend, by the backend's format.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Devices> {
    let backends = working(py)?;
    detach(py, || {
        let devices = backends.iter().map(|backend| {
            let devices = backend.devices()?.into_iter().map(|device| (device.name, device.fault));
            Ok((backend.format(), devices.collect()))
        });
        devices.collect()
    })
}
