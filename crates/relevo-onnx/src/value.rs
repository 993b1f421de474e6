//! Tensors as ONNX Runtime knows them, and its statuses as results.

#![expect(unsafe_code, reason = "ONNX Runtime's C API is called directly")]

use std::ptr::{self, NonNull};

use ort::{
    AsPointer,
    memory::MemoryInfo,
    sys::{ONNXTensorElementDataType, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue},
};
use relevo_core::{
    spec::{DType, shape_text},
    tensor::{DeviceId, Tensor},
};

use crate::{graph::element_type, message::readable};

/// A status as a result; the error is ONNX Runtime's message.
pub(crate) fn result(status: OrtStatusPtr) -> Result<(), String> {
    // SAFETY: each status comes here once, straight from the call that returned it.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| readable(error.message()))
}

/// Memory that ONNX Runtime reads or writes: `length` bytes at `address`, which must have been exposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: DeviceId,
    pub(crate) address: usize,
    pub(crate) length: usize,
}

/// A buffer as the last call came with it, and ONNX Runtime's wrapper around it.
///
/// The wrapper holds an address alone, and outlives the buffer. That is sound because it is handed out only for a live
/// buffer of the same device, address, length, type and shape, which it describes as well as it did the old one.
#[derive(Default)]
pub(crate) struct Binding {
    value: Option<Value>,
    place: Option<Place>,
    dtype: Option<DType>,
    shape: Vec<i64>,
}

impl Binding {
    /// The wrapper for the buffer at `place`, in `memory`; ONNX Runtime comes back to it in later calls. The wrapper stays the
    /// binding's own, and may be given to `Run` only while the buffer lives.
    pub(crate) fn value(
        &mut self,
        memory: &MemoryInfo<'_>,
        place: Place,
        dtype: DType,
        shape: &[usize],
    ) -> Result<*mut OrtValue, String> {
        if let Some(value) = &self.value
            && self.place == Some(place)
            && self.dtype == Some(dtype)
            && self.shape.len() == shape.len()
            && self.shape.iter().zip(shape).all(|(&known, &size)| known == size as i64)
        {
            return Ok(value.0.as_ptr());
        }
        self.value = None;
        self.shape.clear();
        self.shape.extend(shape.iter().map(|&size| size as i64));
        (self.place, self.dtype) = (Some(place), Some(dtype));
        let mut value = ptr::null_mut();
        // SAFETY: `memory` and `self.shape` are live. The buffer is not touched before `Run`.
        result(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                ptr::with_exposed_provenance_mut(place.address),
                place.length,
                self.shape.as_ptr(),
                self.shape.len(),
                element_type(dtype),
                &raw mut value,
            )
        })?;
        // SAFETY: the value was made for this call to own.
        Ok(self.value.insert(unsafe { Value::owned(value) }?).0.as_ptr())
    }
}

/// A value of ONNX Runtime that is released when dropped.
pub(crate) struct Value(NonNull<OrtValue>);

// SAFETY: a value may be used and released on any thread, one at a time.
unsafe impl Send for Value {}

impl Value {
    /// Takes a value over; null is an error.
    ///
    /// # Safety
    /// `value` is null, or a value that nothing else releases.
    pub(crate) unsafe fn owned(value: *mut OrtValue) -> Result<Self, String> {
        NonNull::new(value).map(Self).ok_or_else(|| "ONNX Runtime gave no tensor".into())
    }

    /// Gives `tensor` the shape and elements of this value, which must have the element type `dtype`. A tensor that has
    /// elements already must have the shape too.
    pub(crate) fn copy_into(&self, dtype: DType, tensor: &mut Tensor) -> Result<(), String> {
        let shape = self.shape(dtype)?;
        if !tensor.is_empty() && tensor.shape() != shape {
            let (came, given) = (shape_text(&shape), shape_text(tensor.shape()));
            return Err(format!("an output came with the shape {came}, but the tensor for it has {given}"));
        }
        tensor.reset(dtype, &shape);
        if tensor.is_empty() {
            return Ok(());
        }
        let mut data = ptr::null_mut();
        // SAFETY: the value is live.
        result(unsafe { (ort::api().GetTensorMutableData)(self.0.as_ptr(), &raw mut data) })?;
        let bytes = tensor.bytes_mut();
        // SAFETY: `data` holds as many elements of this type as the value's shape says, which is what `bytes` was made for.
        // It is the value's own memory, or that of an input, and `tensor` is borrowed apart from both.
        unsafe { ptr::copy_nonoverlapping(data.cast::<u8>(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// The dimensions, once it is certain that the elements are of the type `dtype`.
    fn shape(&self, dtype: DType) -> Result<Vec<usize>, String> {
        let mut info = ptr::null_mut();
        // SAFETY: the value is live; ONNX Runtime fails where it is no tensor.
        result(unsafe { (ort::api().GetTensorTypeAndShape)(self.0.as_ptr(), &raw mut info) })?;
        let info = Info(info);
        let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        let mut rank = 0;
        // SAFETY: `info` is live.
        result(unsafe { (ort::api().GetTensorElementType)(info.0, &raw mut element) })?;
        if element != element_type(dtype) {
            return Err(format!("an output is declared as {dtype}, but came as {element:?}"));
        }
        // SAFETY: `info` is live.
        result(unsafe { (ort::api().GetDimensionsCount)(info.0, &raw mut rank) })?;
        let mut dims = vec![0_i64; rank];
        // SAFETY: `dims` has room for `rank` numbers.
        result(unsafe { (ort::api().GetDimensions)(info.0, dims.as_mut_ptr(), rank) })?;
        Ok(dims.into_iter().map(|size| size as usize).collect())
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the value is owned, and released once.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) }
    }
}

/// Type and shape of a value, released when dropped.
struct Info(*mut OrtTensorTypeAndShapeInfo);

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the info is owned, and released once; null is ignored.
        unsafe { (ort::api().ReleaseTensorTypeAndShapeInfo)(self.0) }
    }
}
