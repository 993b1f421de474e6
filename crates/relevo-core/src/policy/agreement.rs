//! Whether a batch gives its rows what each gets alone: rows are made up, and run together and alone.

use half::f16;

use super::{
    contract::{InputContract, OutputShape, Probe, fill_ones},
    convention::InputRole,
    random::{Stream, philox, unit},
};
use crate::{error::Result, spec::DType, tensor::Tensor};

/// Rows of the sets that are compared.
const SETS: [usize; 3] = [3, 3, 9];

/// Rows of a large batch, made of the last set again and again: a model may go another way from some number of rows on.
const LARGE: usize = 64;

/// A large batch with more bytes than this is not tried: loading should not take long.
const MOST_BYTES: usize = 4 << 20;

/// By how much each row's observations are scaled: a sum over rows, or their largest number, shows where they differ. A set begins
/// with another row than the one before.
const SCALES: [f32; 9] = [1.0, 0.1, 30.0, 0.01, 3.0, 1.0, 0.3, 10.0, 0.5];

/// Floats of a batch and of single rows may differ by this: other sizes are summed in another order. It is a part of the number
/// itself, of the largest one in the row, and of the row's scale where that is above 1.
const TOLERANCE: f64 = 1e-5;

/// The same for half floats, which have 11 bits.
const HALF_TOLERANCE: f64 = 1e-2;

impl Probe<'_> {
    /// Why the rows of a batch cannot be run together; `None` where made-up rows get from a batch what they get alone. Outputs
    /// that are drawn at `random`, and those without a batch axis, have nothing to be compared.
    pub(super) fn disagreement(&mut self, shapes: &[OutputShape], random: &[bool]) -> Result<Option<String>> {
        for (set, rows) in SETS.into_iter().enumerate() {
            let make = |(at, input): (usize, &InputContract)| made_up(input, at, set, rows);
            let batch: Vec<_> = self.inputs.iter().enumerate().map(make).collect();
            let alone: Result<Vec<_>> = (0..rows).map(|row| self.alone(&batch, row)).collect();
            // Rows that the model does not take, as it may look numbers up in a table, show nothing.
            let Ok(alone) = alone else { continue };
            let large: Vec<_> = batch.iter().zip(self.inputs).map(|(tensor, input)| repeated(tensor, input)).collect();
            let size: usize = large.iter().map(|tensor| tensor.bytes().len()).sum();
            let is_tried = set + 1 == SETS.len() && size <= MOST_BYTES;
            for (inputs, count) in [(&batch, rows)].into_iter().chain(is_tried.then_some((&large, LARGE))) {
                let together = match self.run_on(inputs) {
                    Ok(together) => together,
                    Err(error) => {
                        return Ok(Some(format!("batches of 2 and 3 run, but one of {count} fails: {error}")));
                    }
                };
                let alone = Alone { set, batch: &batch, answers: &alone };
                if let Some(reason) = self.difference(&together, count, &alone, shapes, random)? {
                    return Ok(Some(reason));
                }
            }
        }
        Ok(None)
    }

    /// How a batch of `count` rows, those of `alone` again and again, differs from what each of them gets alone.
    fn difference(
        &mut self,
        together: &[Tensor],
        count: usize,
        alone: &Alone<'_>,
        shapes: &[OutputShape],
        random: &[bool],
    ) -> Result<Option<String>> {
        for (output, shape) in shapes.iter().enumerate() {
            let Some(axis) = shape.batch_axis.filter(|_| !random[output]) else { continue };
            let name = &self.model.outputs()[output].name;
            if together[output].shape() != shape.of_rows(count) {
                return Ok(Some(format!("batches run, but the shape of `{name}` does not follow their size")));
            }
            for row in 0..count {
                let of = row % alone.answers.len();
                let (answer, scale) = (&alone.answers[of][output], scale(alone.set, of));
                if !is_close(&together[output].row(axis, row), answer, scale)
                    // What differs from call to call as well is drawn at random, with or without the operators for it.
                    && is_close(&self.alone(alone.batch, of)?[output], answer, scale)
                {
                    return Ok(Some(format!(
                        "batches run, but rows run together give other numbers than alone in `{name}`"
                    )));
                }
            }
        }
        Ok(None)
    }

    fn alone(&mut self, batch: &[Tensor], row: usize) -> Result<Vec<Tensor>> {
        let rows: Vec<_> =
            batch.iter().zip(self.inputs).map(|(tensor, input)| tensor.row(input.batch_axis, row)).collect();
        self.run_on(&rows)
    }
}

/// A set of rows as a batch, and what each of them gets alone.
struct Alone<'a> {
    set: usize,
    batch: &'a [Tensor],
    answers: &'a [Vec<Tensor>],
}

/// The rows of a batch again and again, [`LARGE`] in all.
fn repeated(batch: &Tensor, input: &InputContract) -> Tensor {
    let axis = input.batch_axis;
    let rows = batch.shape()[axis];
    let mut large = Tensor::zeros(batch.dtype(), &input.shape(LARGE));
    let inner = input.row_shape[axis..].iter().product::<usize>() * batch.dtype().size();
    for (at, target) in large.bytes_mut().chunks_exact_mut(inner.max(1)).enumerate() {
        let from = at / LARGE * rows + at % LARGE % rows;
        target.copy_from_slice(&batch.bytes()[from * inner..][..inner]);
    }
    large
}

fn scale(set: usize, row: usize) -> f32 {
    SCALES[(set * SETS[0] + row) % SCALES.len()]
}

/// Rows of one input, all of them different. Integers may be indices, so they are 0 and 1, except for bytes of images; masks
/// allow something.
pub(super) fn made_up(input: &InputContract, at: usize, set: usize, rows: usize) -> Tensor {
    let mut tensor = Tensor::zeros(input.spec.dtype, &input.shape(rows));
    let dtype = tensor.dtype();
    if input.role == InputRole::ActionMask && set == 0 {
        fill_ones(&mut tensor, dtype);
        return tensor;
    }
    let mut one = Tensor::zeros(dtype, &[1]);
    fill_ones(&mut one, dtype);
    let inner: usize = input.row_shape[input.batch_axis..].iter().product();
    let choices = input.row_shape.last().copied().unwrap_or(1);
    let is_image = dtype == DType::UInt8 && input.row_shape.len() > 1;
    for (index, element) in tensor.bytes_mut().chunks_exact_mut(dtype.size()).enumerate() {
        let word = philox(set as u64, Stream { actor: at as u32, draw: index as u64 }, 0)[0];
        let is_allowed = word >> 31 == 1 || (index + 1).is_multiple_of(choices.max(1));
        let number = match input.role {
            InputRole::Observation => (unit(word) * 2.0 - 1.0) * scale(set, index / inner.max(1) % rows),
            _ => unit(word) - 0.5,
        };
        match dtype {
            _ if input.role == InputRole::ActionMask && !is_allowed => {}
            _ if input.role == InputRole::ActionMask => element.copy_from_slice(one.bytes()),
            DType::Float16 => element.copy_from_slice(&f16::from_f32(number).to_ne_bytes()),
            DType::Float32 => element.copy_from_slice(&number.to_ne_bytes()),
            DType::Float64 => element.copy_from_slice(&f64::from(number).to_ne_bytes()),
            _ if is_image => element[0] = (word >> 24) as u8,
            _ if word >> 31 == 1 => element.copy_from_slice(one.bytes()),
            _ => {}
        }
    }
    tensor
}

/// Whether two tensors of one row hold nearly the same floats, or the same integers.
fn is_close(left: &Tensor, right: &Tensor, scale: f32) -> bool {
    if left.bytes().len() != right.bytes().len() {
        return false;
    }
    let floats = |tensor: &Tensor| -> Option<Vec<f64>> {
        match tensor.dtype() {
            DType::Float16 => Some(tensor.values::<u16>().iter().map(|bits| f16::from_bits(*bits).to_f64()).collect()),
            DType::Float32 => Some(tensor.values::<f32>().iter().map(|number| f64::from(*number)).collect()),
            DType::Float64 => Some(tensor.values::<f64>().to_vec()),
            _ => None,
        }
    };
    let (Some(left_floats), Some(right_floats)) = (floats(left), floats(right)) else {
        return left.bytes() == right.bytes();
    };
    let tolerance = if left.dtype() == DType::Float16 { HALF_TOLERANCE } else { TOLERANCE };
    let finite = right_floats.iter().filter(|number| number.is_finite());
    let largest = finite.fold(f64::from(scale).max(1.0), |largest, number| largest.max(number.abs()));
    left_floats.iter().zip(&right_floats).all(|(left, right)| match left - right {
        apart if apart.is_finite() => apart.abs() <= tolerance * (largest + right.abs()),
        // Numbers that are not finite are not apart by a number.
        _ => left.total_cmp(right).is_eq() || (left.is_nan() && right.is_nan()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Tensor {
        let mut tensor = Tensor::zeros(DType::Float32, &[values.len()]);
        tensor.values_mut().copy_from_slice(values);
        tensor
    }

    #[test]
    fn rounding_is_no_difference() {
        let close = |left: f32, right: f32, scale: f32| is_close(&floats(&[left]), &floats(&[right]), scale);
        assert!(close(1.0, 1.000_009, 1.0));
        assert!(!close(1.0, 1.000_05, 1.0));
        assert!(close(0.0, 2e-4, 30.0) && !close(0.0, 2e-4, 1.0));
        assert!(close(f32::NAN, f32::NAN, 1.0) && close(f32::INFINITY, f32::INFINITY, 1.0));
        assert!(!close(f32::NAN, 0.0, 1.0) && !close(f32::INFINITY, 0.0, 1.0) && !close(0.0, f32::INFINITY, 1.0));
        assert!(!is_close(&floats(&[1.0]), &floats(&[1.0, 1.0]), 1.0));
        // A number beside a large one is as coarse as that.
        assert!(is_close(&floats(&[100.0, 0.0]), &floats(&[100.0, 5e-4]), 1.0));
    }

    #[test]
    fn whole_numbers_are_compared_as_they_are() {
        let whole = |value: i64| {
            let mut tensor = Tensor::zeros(DType::Int64, &[1]);
            tensor.values_mut().fill(value);
            tensor
        };
        assert!(is_close(&whole(3), &whole(3), 1.0) && !is_close(&whole(3), &whole(4), 30.0));
    }
}
