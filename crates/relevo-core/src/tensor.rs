//! Tensors in memory: an owned one that keeps its allocation between calls, and a borrowed view.

use arrow_buffer::MutableBuffer;

use crate::spec::DType;

/// A contiguous, row-major tensor that owns its bytes and reuses them from call to call.
#[derive(Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: MutableBuffer,
}

impl Tensor {
    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Self {
        let mut tensor = Self { dtype, shape: Vec::new(), bytes: MutableBuffer::new(0) };
        tensor.reset(dtype, shape);
        tensor
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, aligned for every element type.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_slice_mut()
    }

    /// The elements as `T`.
    ///
    /// # Panics
    /// Where `T` has another size than the element type: a fault of the caller's code, never of data.
    pub fn values<T: bytemuck::AnyBitPattern>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The elements as `T`, to be written. Panics as [`Tensor::values`] does.
    pub fn values_mut<T: bytemuck::NoUninit + bytemuck::AnyBitPattern>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// Gives the tensor another type or shape. New elements are zero; nothing is allocated when it does not grow.
    pub fn reset(&mut self, dtype: DType, shape: &[usize]) {
        self.dtype = dtype;
        self.shape.clear();
        self.shape.extend_from_slice(shape);
        self.bytes.resize(self.len() * dtype.size(), 0);
    }

    /// A view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, bytes: self.bytes() }
    }
}

/// A contiguous, row-major tensor whose bytes belong to somebody else.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: &'a [usize],
    /// `shape.product() * dtype.size()` bytes, aligned for the element type.
    pub bytes: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_keeps_the_allocation() {
        let mut tensor = Tensor::zeros(DType::Float32, &[4, 2]);
        tensor.values_mut::<f32>().fill(1.0);
        let address = tensor.bytes().as_ptr();
        tensor.reset(DType::Float32, &[2, 2]);
        assert_eq!(tensor.shape(), [2, 2]);
        assert_eq!(tensor.values::<f32>(), [1.0; 4]);
        tensor.reset(DType::Float32, &[4, 2]);
        assert_eq!(tensor.bytes().as_ptr(), address);
        assert_eq!(&tensor.values::<f32>()[4..], [0.0; 4]);
    }
}
