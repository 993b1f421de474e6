//! `relevo.Steps`: the steps of a run, as an Arrow stream or as NumPy arrays.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader, ffi_stream::FFI_ArrowArrayStream};
use arrow_schema::{ArrowError, SchemaRef};
use parking_lot::Mutex;
use pyo3::{
    prelude::*,
    types::{PyCapsule, PyDict},
};
use relevo_core::{
    Error,
    spec::DType,
    trajectory::{self, PlainColumn, Selection, acted_rows, plain_columns},
};

use crate::{array, detach::detach, error::to_python};

/// Steps of a run that are wanted. Nothing is read before they are iterated over, or taken as a stream; each time anew.
#[pyclass(frozen, module = "relevo")]
pub(crate) struct Steps {
    pub(crate) run: Arc<trajectory::Run>,
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) selection: Selection,
}

impl Steps {
    fn open(&self, py: Python<'_>) -> PyResult<trajectory::Steps> {
        detach(py, || self.run.steps(self.columns.as_deref(), &self.selection))
    }
}

#[pymethods]
impl Steps {
    #[getter]
    fn columns(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.open(py)?.schema().fields().iter().map(|field| field.name().clone()).collect())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol lets a producer pass over a schema that it cannot give.
        drop(requested_schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(Reader(self.open(py)?)));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<StepBatches> {
        Ok(StepBatches(Mutex::new(self.open(py)?)))
    }
}

/// Batches of steps, one after the other.
#[pyclass(frozen, module = "relevo")]
pub(crate) struct StepBatches(Mutex<trajectory::Steps>);

#[pymethods]
impl StepBatches {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let next = detach(py, || self.0.lock().next().transpose())?;
        next.map(|batch| as_arrays(py, &batch)).transpose()
    }
}

/// What keeps a column's memory alive.
#[pyclass(frozen, module = "relevo._core")]
struct ColumnMemory(#[expect(dead_code, reason = "arrays over it need it alive")] PlainColumn);

fn as_arrays<'py>(py: Python<'py>, batch: &RecordBatch) -> PyResult<Bound<'py, PyDict>> {
    let rows = batch.num_rows();
    let columns = plain_columns(batch).map_err(|reason| to_python(&Error::Contract(reason)))?;
    let arrays = PyDict::new(py);
    for (name, column) in columns {
        let owner = Bound::new(py, ColumnMemory(column.clone()))?.into_any();
        let array = match column {
            PlainColumn::Tensors { dtype, shape, bytes, valid } => {
                let shape: Vec<usize> = std::iter::once(rows).chain(shape).collect();
                let array = array::shared_view(&owner, &bytes, dtype, &shape)?;
                match valid {
                    // A reward that never came, and what a closing row has not.
                    Some(valid) if matches!(dtype, DType::Float32 | DType::Float64) && shape.len() == 1 => {
                        let valid: Vec<bool> = valid.iter().collect();
                        let valid = numpy::PyArray1::from_vec(py, valid);
                        let missing =
                            array::numpy_function(py, "asarray")?.call1((f64::NAN, array.getattr("dtype")?))?;
                        array::numpy_function(py, "where")?.call1((valid, array, missing))?
                    }
                    _ => array,
                }
            }
            PlainColumn::Bytes { width, bytes } => array::shared_view(&owner, &bytes, DType::UInt8, &[rows, width])?,
            PlainColumn::Times(bytes) => {
                array::shared_view(&owner, &bytes, DType::Int64, &[rows])?.call_method1("view", ("datetime64[ns]",))?
            }
            PlainColumn::Texts(texts) => array::numpy_function(py, "array")?.call1((texts, "object"))?,
        };
        arrays.set_item(name, array)?;
    }
    if let Some(acted) = acted_rows(batch) {
        arrays.set_item("acted", numpy::PyArray1::from_vec(py, acted))?;
    }
    Ok(arrays)
}

/// Steps as Arrow's own kind of reader.
struct Reader(trajectory::Steps);

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map_err(|error| ArrowError::ExternalError(Box::new(error))))
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        self.0.schema().clone()
    }
}
