//! Extra columns: how an agent declares them, and the values that a call gives.

use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    spec::DType,
    trajectory::{ColumnSpec, ExtraInput, ExtraKind, ExtraSpec},
};
use smallvec::SmallVec;

use crate::{array::Contiguous, error};

/// What the dtype of a column of texts is called.
const TEXT: &str = "utf8";

/// A column as the builder declares it: name, dtype, shape, and whether it is an observation.
pub(crate) type Declared = (String, String, Vec<usize>, bool);

/// The columns that were declared.
pub(crate) fn specs(declared: Vec<Declared>) -> PyResult<Vec<ExtraSpec>> {
    let spec = |(name, dtype, shape, observed): Declared| {
        let kind = match (&*dtype, DType::from_name(&dtype), &shape[..]) {
            (TEXT, _, []) => ExtraKind::Text,
            (_, Some(dtype), _) => ExtraKind::Tensor(ColumnSpec { key: String::new(), dtype, shape }),
            (TEXT, ..) => return Err(error::config(&format!("the texts of `{name}` have no shape; leave it out"))),
            _ => {
                return Err(error::config(&format!(
                    "the dtype of the extra column `{name}` is \"{dtype}\"; give a NumPy dtype of numbers, such as \"float32\", or \
                     \"{TEXT}\" for texts"
                )));
            }
        };
        Ok(ExtraSpec { name, kind, observed })
    };
    declared.into_iter().map(spec).collect()
}

/// What a call gives for extra columns, in their order.
#[derive(Default)]
pub(crate) struct Extras<'py>(Vec<Extra<'py>>);

enum Extra<'py> {
    Tensor(Contiguous<'py>),
    Text(Vec<String>),
}

impl<'py> Extras<'py> {
    /// Takes the values for `rows` actors out of `extra`, and out of `obs` those that are observed. This may run Python code.
    ///
    /// None, where none at all are given: a call that is not recorded needs none.
    pub(crate) fn new(
        specs: &[ExtraSpec],
        obs: &Bound<'py, PyAny>,
        extra: Option<&Bound<'py, PyDict>>,
        rows: usize,
    ) -> PyResult<Self> {
        if let Some(extra) = extra {
            check_names(specs, extra)?;
        }
        let obs = obs.cast::<PyDict>().ok();
        let given = specs.iter().map(|spec| {
            let from = if spec.observed { obs } else { extra };
            from.map_or(Ok(None), |dict| dict.get_item(&spec.name))
        });
        let given = given.collect::<PyResult<Vec<_>>>()?;
        if given.iter().all(Option::is_none) {
            return Ok(Self::default());
        }
        let values = specs.iter().zip(given).map(|(spec, value)| match value {
            Some(value) => Extra::new(spec, &value, rows),
            None => Err(error::contract(&format!(
                "the call gives no value for the {} `{}`, which the agent records; give one for each actor",
                if spec.observed { "text observation" } else { "extra column" },
                spec.name
            ))),
        });
        values.collect::<PyResult<_>>().map(Self)
    }

    pub(crate) fn inputs(&self) -> SmallVec<[ExtraInput<'_>; 4]> {
        let extras = self.0.iter().map(|extra| match extra {
            Extra::Tensor(array) => ExtraInput::Tensor(array.bytes()),
            Extra::Text(texts) => ExtraInput::Text(texts),
        });
        extras.collect()
    }
}

impl<'py> Extra<'py> {
    fn new(spec: &ExtraSpec, value: &Bound<'py, PyAny>, rows: usize) -> PyResult<Self> {
        match &spec.kind {
            ExtraKind::Tensor(column) => {
                let array = Contiguous::new(value)?;
                array.expect(&format!("extra `{}`", spec.name), column.dtype, rows, &column.shape)?;
                Ok(Self::Tensor(array))
            }
            ExtraKind::Text => texts(&spec.name, value, rows).map(Self::Text),
        }
    }
}

/// One text for each of the actors.
fn texts(name: &str, value: &Bound<'_, PyAny>, rows: usize) -> PyResult<Vec<String>> {
    let no_texts = || {
        let kind = value.get_type().name().map_or_else(|_| "something else".into(), |name| name.to_string());
        error::contract(&format!(
            "`{name}` must be a list of texts, one for each of the {rows} actors, but {kind} came"
        ))
    };
    if value.is_instance_of::<pyo3::types::PyString>() {
        return Err(no_texts());
    }
    let texts = value.try_iter().map_err(|_| no_texts())?.map(|text| text?.extract().map_err(|_| no_texts()));
    let texts = texts.collect::<PyResult<Vec<String>>>()?;
    if texts.len() != rows {
        return Err(error::contract(&format!(
            "`{name}` must be a list of {rows} texts, one for each actor, but {} came",
            texts.len()
        )));
    }
    Ok(texts)
}

/// Refuses names that the agent has not been told of.
fn check_names(specs: &[ExtraSpec], extra: &Bound<'_, PyDict>) -> PyResult<()> {
    for name in extra.keys() {
        let name: String = name.extract()?;
        if !specs.iter().any(|spec| !spec.observed && spec.name == name) {
            return Err(error::contract(&format!(
                "the agent has no extra column `{name}`; declare it on the builder by .extra(\"{name}\", dtype=…, shape=…)"
            )));
        }
    }
    Ok(())
}
