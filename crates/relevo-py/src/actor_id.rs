//! Ids of actors, as Python gives them.

use pyo3::{prelude::*, types::PyString};
use uuid::Uuid;

use crate::error;

/// One id, given as `uuid.UUID`.
pub(crate) struct ActorId(pub(crate) Uuid);

/// Several of them, in a list.
pub(crate) struct ActorIds(pub(crate) Vec<Uuid>);

impl<'py> FromPyObject<'_, 'py> for ActorId {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|_: PyErr| refused("an actor's id must be a uuid.UUID", &given))
    }
}

impl<'py> FromPyObject<'_, 'py> for ActorIds {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|_: PyErr| {
            let expected = "ids must be a list of uuid.UUID";
            let items = if given.is_instance_of::<PyString>() { None } else { given.try_iter().ok() };
            let is_none = |item: &Bound<'_, PyAny>| item.extract::<Uuid>().is_err();
            match items.and_then(|items| items.flatten().find(is_none)) {
                Some(item) => refused(expected, &item),
                None => refused(expected, &given),
            }
        })
    }
}

fn refused(expected: &str, came: &Bound<'_, PyAny>) -> PyErr {
    let came = came.repr().map_or_else(|_| "something else".into(), |text| text.to_string());
    error::config(&format!(
        "{expected}, as agent.get_actor_ids() gives them, but {came} came; of a text, make one by uuid.UUID(text)"
    ))
}
