//! Tensors in memory: an owned one that keeps its allocation between calls, and a borrowed view, which may lie on a device.

use std::{marker::PhantomData, ops::Range};

use arrow_buffer::MutableBuffer;
/// A device in DLPack's terms.
pub use relevo_abi::Device as DeviceId;

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
        elements(&self.shape)
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
        self.bytes.resize(self.len().saturating_mul(dtype.size()), 0);
    }

    /// A copy with an allocation of its own.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut copy = Self::zeros(self.dtype, &self.shape);
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }

    /// Row `row` along `axis`, which stays, with one element.
    #[must_use]
    pub fn row(&self, axis: usize, row: usize) -> Self {
        let mut shape = self.shape.clone();
        let rows = std::mem::replace(&mut shape[axis], 1);
        let mut copy = Self::zeros(self.dtype, &shape);
        let inner = elements(&shape[axis + 1..]) * self.dtype.size();
        for (outer, target) in copy.bytes_mut().chunks_exact_mut(inner.max(1)).enumerate() {
            target.copy_from_slice(&self.bytes()[(outer * rows + row) * inner..][..inner]);
        }
        copy
    }

    /// A view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, bytes: self.bytes(), device: None }
    }
}

/// How many elements a shape has; the largest number where there are more, as in a shape that has no size yet.
pub fn elements(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |count, size| count.saturating_mul(*size)) }
}

/// Numbers as the bytes that calls take: `as_bytes(&[0.5_f32, 1.0])`.
pub fn as_bytes<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// A contiguous, row-major tensor whose bytes belong to somebody else.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: &'a [usize],
    /// `shape.product() * dtype.size()` bytes, aligned for the element type. None at all where the values lie on a device alone.
    pub bytes: &'a [u8],
    /// The same values on a device. Who runs there reads them there.
    pub device: Option<DeviceMemory<'a>>,
}

impl<'a> TensorView<'a> {
    /// Where who runs on `device` finds the values: there if they lie there, otherwise in the CPU's memory, which is empty for
    /// values that lie on another device alone.
    pub fn memory(&self, device: DeviceId) -> DeviceMemory<'a> {
        match self.device {
            Some(memory) if memory.device == device || memory.device == DeviceId::CPU => memory,
            _ => DeviceMemory::of_bytes(self.bytes),
        }
    }
}

/// Bytes in the memory of a device, which belong to somebody else. They are whole: nothing that is still on its way to the
/// device writes to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory<'a> {
    device: DeviceId,
    /// Exposed: it goes to libraries in C.
    address: usize,
    len: usize,
    owner: PhantomData<&'a [u8]>,
}

impl<'a> DeviceMemory<'a> {
    /// `len` bytes at `address` of the device.
    ///
    /// # Safety
    /// They must be there and written, and stay as they are for `'a`.
    #[expect(unsafe_code, reason = "nothing tells whether an address of a device is good")]
    pub unsafe fn new(device: DeviceId, address: *const u8, len: usize) -> Self {
        Self { device, address: address.expose_provenance(), len, owner: PhantomData }
    }

    /// Bytes in the CPU's memory.
    pub fn of_bytes(bytes: &'a [u8]) -> Self {
        Self {
            device: DeviceId::CPU,
            address: bytes.as_ptr().expose_provenance(),
            len: bytes.len(),
            owner: PhantomData,
        }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The first byte's address, which the device knows.
    pub fn address(&self) -> usize {
        self.address
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// Where there are fewer: a fault of the caller's code, never of data.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        Self { address: self.address + range.start, len: range.len(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_along_any_axis() {
        let mut tensor = Tensor::zeros(DType::Float32, &[2, 3, 2]);
        tensor.values_mut::<f32>().iter_mut().enumerate().for_each(|(index, value)| *value = index as f32);
        let row = tensor.row(1, 2);
        assert_eq!((row.shape(), row.values::<f32>()), (&[2, 1, 2][..], &[4.0, 5.0, 10.0, 11.0][..]));
        assert_eq!(tensor.row(0, 1).values::<f32>(), &tensor.values::<f32>()[6..]);
        assert_eq!(tensor.row(2, 0).values::<f32>(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn values_are_found_where_they_are_read() {
        let (host, there) = ([1.0_f32, 2.0], [3.0_f32, 4.0]);
        let there = DeviceMemory { device: DeviceId::cuda(1), ..DeviceMemory::of_bytes(as_bytes(&there)) };
        let view =
            TensorView { dtype: DType::Float32, shape: &[2], bytes: as_bytes(&host), device: Some(there.part(4..8)) };
        let on_host = DeviceMemory::of_bytes(view.bytes);
        assert_eq!(view.memory(DeviceId::cuda(1)), there.part(4..8));
        assert_eq!((there.part(4..8).address(), there.part(4..8).len()), (there.address() + 4, 4));
        assert_eq!([view.memory(DeviceId::CPU), view.memory(DeviceId::cuda(0))], [on_host, on_host]);
        assert!(TensorView { bytes: &[], ..view }.memory(DeviceId::CPU).is_empty());
    }

    #[test]
    fn elements_are_counted_without_overflow() {
        assert_eq!((elements(&[]), elements(&[2, 3])), (1, 6));
        assert_eq!((elements(&[1 << 40, 1 << 40]), elements(&[1 << 40, 1 << 40, 0])), (usize::MAX, 0));
    }

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
