//! Whether a graph gives a batch of rows what another graph gives the same rows one by one.

use std::fmt;

use relevo_core::{
    policy::random::{Stream, philox},
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, elements},
};

/// By how much each row of the made-up inputs is scaled: a sum over rows, or a threshold on it, shows where they differ.
const SCALES: [f64; 7] = [1.0, 0.1, 30.0, 0.01, 3.0, 1.0, 0.3];

/// How far two numbers may lie apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tolerance {
    /// As a part of the number itself, and absolute.
    pub(crate) number: f64,
    /// As a part of the largest number in the row. Sums of large numbers that nearly cancel out need it.
    pub(crate) row: f64,
}

impl Tolerance {
    /// For what a graph gives to its callers, at the row `row`.
    pub(crate) fn of_outputs(row: usize) -> Self {
        Self { number: 1e-5, row: if SCALES[row] > 1.0 { 1e-5 } else { 0.0 } }
    }

    /// For what its nodes hand to each other. A row that meets another one is off by far more.
    pub(crate) fn of_tensors_inside(_row: usize) -> Self {
        Self { number: 1e-3, row: 1e-3 }
    }
}

/// Made-up inputs: rows of the shapes that `specs` declare, each input of a row a tensor of its own.
pub(crate) fn rows(specs: &[TensorSpec], seed: u64) -> Vec<Vec<Tensor>> {
    let mut draws = Draws { seed, draw: 0 };
    SCALES.iter().map(|scale| specs.iter().map(|spec| draws.tensor(spec, *scale)).collect()).collect()
}

/// The shape of one row: what the file leaves open is 1.
fn row_shape(spec: &TensorSpec) -> Vec<usize> {
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(_) => 1,
    };
    spec.shape.iter().map(size).collect()
}

/// Bytes of such a row.
pub(crate) fn row_bytes(spec: &TensorSpec) -> usize {
    elements(&row_shape(spec)).saturating_mul(spec.dtype.size())
}

/// The inputs of the first `count` rows as one batch; `axes` says which axis of each input counts the rows.
pub(crate) fn stacked(rows: &[Vec<Tensor>], count: usize, axes: &[usize]) -> Vec<Tensor> {
    let stack = |(input, &axis): (usize, &usize)| {
        let first = &rows[0][input];
        let mut shape = first.shape().to_vec();
        shape[axis] *= count;
        let mut batch = Tensor::zeros(first.dtype(), &shape);
        let block = block(first, axis);
        for (row, inputs) in rows[..count].iter().enumerate() {
            for (outer, part) in inputs[input].bytes().chunks_exact(block.max(1)).enumerate() {
                batch.bytes_mut()[(outer * count + row) * block..][..block].copy_from_slice(part);
            }
        }
        batch
    };
    axes.iter().enumerate().map(stack).collect()
}

/// Bytes that lie together when the axis and all behind it are taken as one.
fn block(tensor: &Tensor, axis: usize) -> usize {
    elements(&tensor.shape()[axis..]) * tensor.dtype().size()
}

/// Why a batch does not hold its rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Disagreement {
    /// Its shape does not come from theirs.
    Shape,
    /// It has no axis for rows, yet differs from row to row.
    Mixed,
    /// This row has other numbers.
    Numbers(usize),
}

impl fmt::Display for Disagreement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape => formatter.write_str("its shape does not follow the batch"),
            Self::Mixed => formatter.write_str("it mixes the rows of a batch"),
            Self::Numbers(_) => formatter.write_str("a batch gives it other numbers than its rows get alone"),
        }
    }
}

/// Holds one tensor of a batch against the same tensor of each of its rows, and gives the axis that counts the rows; `None`
/// where the tensor is the same for all rows. Along that axis a row may have more than one element.
pub(crate) fn batch_axis(
    singles: &[&Tensor],
    batch: &Tensor,
    tolerance: fn(usize) -> Tolerance,
) -> Result<Option<usize>, Disagreement> {
    let (count, first) = (singles.len(), singles[0]);
    let alike = |single: &&Tensor| single.shape() == first.shape() && single.dtype() == batch.dtype();
    if first.shape().len() != batch.shape().len() || !singles.iter().all(alike) {
        return Err(Disagreement::Shape);
    }
    let differs = |axis: &usize| first.shape()[*axis] != batch.shape()[*axis];
    let axes: Vec<_> = (0..first.shape().len()).filter(differs).collect();
    match axes[..] {
        [] if count == 1 => {
            let same = close(first.dtype(), first.bytes(), batch.bytes(), tolerance(0));
            if same { Ok(None) } else { Err(Disagreement::Numbers(0)) }
        }
        [] => {
            let same = |row: usize| close(first.dtype(), singles[row].bytes(), batch.bytes(), tolerance(row));
            if (0..count).all(same) { Ok(None) } else { Err(Disagreement::Mixed) }
        }
        [axis] if batch.shape()[axis] == count * first.shape()[axis] => {
            let block = block(first, axis);
            for (row, single) in singles.iter().enumerate() {
                for (outer, part) in single.bytes().chunks_exact(block.max(1)).enumerate() {
                    let of_batch = &batch.bytes()[(outer * count + row) * block..][..block];
                    if !close_in(single, part, of_batch, tolerance(row)) {
                        return Err(Disagreement::Numbers(row));
                    }
                }
            }
            Ok(Some(axis))
        }
        _ => Err(Disagreement::Shape),
    }
}

/// Whether a tensor of integers is a shape, or part of one: each number is the row's, or that times the number of rows.
pub(crate) fn counts_rows(single: &Tensor, batch: &Tensor, count: usize) -> bool {
    if single.dtype() != DType::Int64 || batch.dtype() != DType::Int64 || single.shape() != batch.shape() {
        return false;
    }
    let mut pairs = single.values::<i64>().iter().zip(batch.values::<i64>());
    pairs.all(|(&single, &batch)| batch == single || Some(batch) == single.checked_mul(count as i64))
}

fn close(dtype: DType, one: &[u8], other: &[u8], tolerance: Tolerance) -> bool {
    let largest = largest(dtype, one);
    numbers_are_close(dtype, one, other, tolerance, largest)
}

fn close_in(single: &Tensor, one: &[u8], other: &[u8], tolerance: Tolerance) -> bool {
    let largest = if tolerance.row > 0.0 { largest(single.dtype(), single.bytes()) } else { 0.0 };
    numbers_are_close(single.dtype(), one, other, tolerance, largest)
}

fn numbers_are_close(dtype: DType, one: &[u8], other: &[u8], tolerance: Tolerance, largest: f64) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let close = |one: f64, other: f64| {
        let apart = (one - other).abs();
        apart <= tolerance.number * (1.0 + one.abs()) + tolerance.row * largest
            // Infinite numbers are not apart by a number.
            || one.total_cmp(&other).is_eq()
            || (one.is_nan() && other.is_nan())
    };
    match dtype {
        DType::Float32 => floats(one).zip(floats(other)).all(|(one, other)| close(one, other)),
        DType::Float64 => doubles(one).zip(doubles(other)).all(|(one, other)| close(one, other)),
        // Half floats are coarser than any tolerance, and integers have none.
        _ => one == other,
    }
}

/// The largest finite number, by its size.
fn largest(dtype: DType, bytes: &[u8]) -> f64 {
    let largest = |largest: f64, number: f64| if number.is_finite() { largest.max(number.abs()) } else { largest };
    match dtype {
        DType::Float32 => floats(bytes).fold(0.0, largest),
        DType::Float64 => doubles(bytes).fold(0.0, largest),
        _ => 0.0,
    }
}

/// Whether all numbers are finite. A tensor that is NaN whatever comes would agree with everything.
pub(crate) fn is_finite(tensor: &Tensor) -> bool {
    match tensor.dtype() {
        DType::Float32 => floats(tensor.bytes()).all(f64::is_finite),
        DType::Float64 => doubles(tensor.bytes()).all(f64::is_finite),
        _ => true,
    }
}

/// Whether a number is NaN or plus infinity. Minus infinity is what masks make.
pub(crate) fn is_spoilt(tensor: &Tensor) -> bool {
    let is_spoilt = |number: f64| number.is_nan() || number == f64::INFINITY;
    match tensor.dtype() {
        DType::Float16 => tensor.values::<u16>().iter().any(|bits| (bits & 0x7FFF) > 0x7C00 || *bits == 0x7C00),
        DType::Float32 => floats(tensor.bytes()).any(is_spoilt),
        DType::Float64 => doubles(tensor.bytes()).any(is_spoilt),
        _ => false,
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_ne_bytes(*bytes)))
}

fn doubles(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_ne_bytes(*bytes))
}

/// Random numbers, the same for the same seed.
struct Draws {
    seed: u64,
    draw: u64,
}

impl Draws {
    fn number(&mut self) -> u32 {
        self.draw += 1;
        philox(self.seed, Stream { actor: 0, draw: self.draw }, 0)[0]
    }

    /// Between -1 and 1.
    fn fraction(&mut self) -> f64 {
        f64::from(self.number()) / f64::from(u32::MAX) * 2.0 - 1.0
    }

    fn bit(&mut self) -> bool {
        self.number() >> 31 == 1
    }

    /// One row of an input. Masks allow something; integers may be indices, so they are 0 and 1, except for bytes of images.
    fn tensor(&mut self, spec: &TensorSpec, scale: f64) -> Tensor {
        let mut tensor = Tensor::zeros(spec.dtype, &row_shape(spec));
        let mask = spec.name.to_ascii_lowercase().contains("mask");
        let one: &[u8] = match spec.dtype {
            DType::Float16 => &0x3C00_u16.to_ne_bytes(),
            DType::Float32 => &1_f32.to_ne_bytes(),
            DType::Float64 => &1_f64.to_ne_bytes(),
            dtype => &1_u64.to_le_bytes()[..dtype.size()],
        };
        let size = spec.dtype.size();
        for element in tensor.bytes_mut().chunks_exact_mut(size) {
            match spec.dtype {
                DType::Float32 if !mask => element.copy_from_slice(&((self.fraction() * scale) as f32).to_ne_bytes()),
                DType::Float64 if !mask => element.copy_from_slice(&(self.fraction() * scale).to_ne_bytes()),
                DType::UInt8 if !mask => element[0] = self.number() as u8,
                _ if self.bit() => element.copy_from_slice(one),
                _ => {}
            }
        }
        if mask && let Some(last) = tensor.bytes_mut().chunks_exact_mut(size).last() {
            last.copy_from_slice(one);
        }
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
        let mut tensor = Tensor::zeros(DType::Float32, shape);
        tensor.values_mut().copy_from_slice(values);
        tensor
    }

    fn axis(singles: &[Tensor], batch: &Tensor) -> Result<Option<usize>, Disagreement> {
        batch_axis(&singles.iter().collect::<Vec<_>>(), batch, Tolerance::of_outputs)
    }

    #[test]
    fn rows_are_found_along_any_axis() {
        let rows = [tensor(&[1, 1, 2], &[1.0, 2.0]), tensor(&[1, 1, 2], &[3.0, 4.0])];
        let numbers = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(axis(&rows, &tensor(&[2, 1, 2], &numbers)), Ok(Some(0)));
        assert_eq!(axis(&rows, &tensor(&[1, 2, 2], &numbers)), Ok(Some(1)));
        assert_eq!(axis(&rows, &tensor(&[1, 1, 4], &numbers)), Ok(Some(2)));
        assert_eq!(axis(&rows, &tensor(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.1])), Err(Disagreement::Numbers(1)));
        assert_eq!(axis(&rows, &tensor(&[2, 2], &numbers)), Err(Disagreement::Shape));
        assert_eq!(axis(&rows, &tensor(&[2, 2, 2], &[0.0; 8])), Err(Disagreement::Shape));
        assert_eq!(axis(&rows, &tensor(&[1, 1, 2], &numbers[..2])), Err(Disagreement::Mixed));
    }

    #[test]
    fn constants_have_no_axis() {
        let rows = [tensor(&[1], &[3.0]), tensor(&[1], &[3.0])];
        assert_eq!(axis(&rows, &tensor(&[1], &[3.0])), Ok(None));
        assert_eq!(axis(&rows[..1], &tensor(&[1], &[3.1])), Err(Disagreement::Numbers(0)));
    }

    #[test]
    fn inner_axes_are_taken_apart() {
        // Two layers of one row: [layers, batch, width].
        let rows = [tensor(&[2, 1, 1], &[1.0, 10.0]), tensor(&[2, 1, 1], &[2.0, 20.0])];
        assert_eq!(axis(&rows, &tensor(&[2, 2, 1], &[1.0, 2.0, 10.0, 20.0])), Ok(Some(1)));
        let inputs: Vec<_> = rows.into_iter().map(|row| vec![row]).collect();
        assert_eq!(stacked(&inputs, 2, &[1])[0].values::<f32>(), [1.0, 2.0, 10.0, 20.0]);
    }

    #[test]
    fn shapes_may_count_the_rows() {
        let numbers = |values: &[i64]| {
            let mut tensor = Tensor::zeros(DType::Int64, &[values.len()]);
            tensor.values_mut().copy_from_slice(values);
            tensor
        };
        assert!(counts_rows(&numbers(&[1, 48]), &numbers(&[3, 48]), 3));
        assert!(!counts_rows(&numbers(&[1, 48]), &numbers(&[4, 48]), 3));
    }
}
