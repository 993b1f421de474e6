//! Whether a batch gives its rows what each gets alone: rows are made up, and run together and alone.

use half::f16;

use super::{
    contract::InputContract,
    convention::InputRole,
    probe::{OutputShape, Probe, fill_ones},
    random::{Stream, philox, unit},
};
use crate::{
    error::Result,
    spec::DType,
    tensor::{Tensor, elements},
};

/// A set of rows that is compared.
#[derive(Debug, Clone, Copy)]
struct Set {
    rows: usize,
    /// By how much all observations are scaled, on top of each row's own scale.
    scale: f32,
    /// Observations of whole numbers go from 0 to this.
    most: f32,
}

/// The sets: first numbers that most models are made for. Then ever larger ones, as a model may take another way where one row of
/// a batch has a large number (pixels from 0 to 255 among them). What a model does not take shows nothing.
const SETS: [Set; 6] = [
    Set { rows: 3, scale: 1.0, most: 1.0 },
    Set { rows: 3, scale: 1.0, most: 1.0 },
    Set { rows: 9, scale: 1.0, most: 1.0 },
    Set { rows: 5, scale: 16.0, most: 3.0 },
    Set { rows: 5, scale: 300.0, most: 255.0 },
    Set { rows: 5, scale: 5_000.0, most: 30_000.0 },
];

/// The set of which a large batch is made, again and again.
const REPEATED: usize = 2;

/// Rows of a large batch: a model may go another way from some number of rows on.
const LARGE: usize = 97;

/// From this on, whole numbers are sizes rather than places in a table: rows have other parts of the range.
const LEAST_SIZE: f32 = 255.0;

/// The part of the range that each row of a set has.
const PARTS: [f32; 5] = [1.0, 0.3, 0.03, 0.5, 0.1];

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
    /// that are drawn at `random`, and those without a batch axis, have nothing to be compared. Beyond a table of a model on
    /// another device than the CPU, whole numbers may end the device's work for good: `wide` says whether they may be large.
    pub(super) fn disagreement(
        &mut self,
        shapes: &[OutputShape],
        random: &[bool],
        wide: bool,
    ) -> Result<Option<String>> {
        let wide = wide || !self.inputs.iter().any(is_whole);
        let row_bytes = self.inputs.iter().fold(0_usize, |bytes, input| bytes.saturating_add(input.row_bytes()));
        for (set, Set { rows, .. }) in SETS.into_iter().enumerate().filter(|(set, _)| wide || *set <= REPEATED) {
            let make = |(at, input): (usize, &InputContract)| made_up(input, at, set, rows);
            let batch: Vec<_> = self.inputs.iter().enumerate().map(make).collect();
            let alone: Result<Vec<_>> = (0..rows).map(|row| self.alone(&batch, row)).collect();
            // Rows that the model does not take, as it may look numbers up in a table, show nothing.
            let Ok(alone) = alone else { continue };
            let is_tried = set == REPEATED && row_bytes.saturating_mul(LARGE) <= MOST_BYTES;
            let large: Option<Vec<_>> = is_tried
                .then(|| batch.iter().zip(self.inputs).map(|(tensor, input)| repeated(tensor, input)).collect());
            for (inputs, count) in [(&batch, rows)].into_iter().chain(large.as_ref().map(|large| (large, LARGE))) {
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
                let answer_together = together[output].row(axis, row);
                // At the end of what floats can hold, rounding alone makes infinite of finite.
                let shows = alone.set <= REPEATED || (is_finite(answer) && is_finite(&answer_together));
                if shows
                    && !is_close(&answer_together, answer, scale)
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
    let inner = elements(&input.row_shape[axis..]) * batch.dtype().size();
    for (at, target) in large.bytes_mut().chunks_exact_mut(inner.max(1)).enumerate() {
        let from = at / LARGE * rows + at % LARGE % rows;
        target.copy_from_slice(&batch.bytes()[from * inner..][..inner]);
    }
    large
}

fn scale(set: usize, row: usize) -> f32 {
    SCALES[(set * SETS[0].rows + row) % SCALES.len()] * SETS[set].scale
}

/// Whether an input is an observation of whole numbers.
fn is_whole(input: &InputContract) -> bool {
    input.role == InputRole::Observation && !input.spec.dtype.is_float() && input.spec.dtype != DType::Bool
}

/// A whole number of a row, from 0 to what the set and the element type have room for; `part` is from 0 to 1.
fn whole(dtype: DType, set: usize, row: usize, part: f32) -> u16 {
    let most = match dtype {
        DType::Bool => 1.0,
        DType::Int8 => SETS[set].most.min(127.0),
        DType::UInt8 => SETS[set].most.min(255.0),
        _ => SETS[set].most,
    };
    let most = if SETS[set].most < LEAST_SIZE { most } else { (most * PARTS[row % PARTS.len()]).round() };
    // At most 30,000, as the sets say.
    (part * (most + 1.0)).min(most) as u16
}

/// Rows of one input, all of them different. Integers may be indices, so at first they are 0 and 1, except for bytes of images;
/// masks allow something.
pub(super) fn made_up(input: &InputContract, at: usize, set: usize, rows: usize) -> Tensor {
    let mut tensor = Tensor::zeros(input.spec.dtype, &input.shape(rows));
    let dtype = tensor.dtype();
    if input.role == InputRole::ActionMask && set == 0 {
        fill_ones(&mut tensor, dtype);
        return tensor;
    }
    let mut one = Tensor::zeros(dtype, &[1]);
    fill_ones(&mut one, dtype);
    let inner: usize = elements(&input.row_shape[input.batch_axis..]);
    let choices = input.row_shape.last().copied().unwrap_or(1);
    let is_image = dtype == DType::UInt8 && input.row_shape.len() > 1;
    for (index, element) in tensor.bytes_mut().chunks_exact_mut(dtype.size()).enumerate() {
        let word = philox(set as u64, Stream { actor: at as u32, draw: index as u64 }, 0)[0];
        let is_allowed = word >> 31 == 1 || (index + 1).is_multiple_of(choices.max(1));
        let row = index / inner.max(1) % rows;
        let number = match input.role {
            InputRole::Observation => (unit(word) * 2.0 - 1.0) * scale(set, row),
            _ => unit(word) - 0.5,
        };
        match dtype {
            _ if input.role == InputRole::ActionMask && !is_allowed => {}
            _ if input.role == InputRole::ActionMask => element.copy_from_slice(one.bytes()),
            _ if input.role.first_and_next().is_some() && word >> 31 == 0 => {}
            _ if input.role.first_and_next().is_some() => element.copy_from_slice(one.bytes()),
            DType::Float16 => element.copy_from_slice(&f16::from_f32(number.clamp(-6e4, 6e4)).to_ne_bytes()),
            DType::Float32 => element.copy_from_slice(&number.to_ne_bytes()),
            DType::Float64 => element.copy_from_slice(&f64::from(number).to_ne_bytes()),
            _ if is_image && set <= REPEATED => element[0] = (word >> 24) as u8,
            _ if is_whole(input) => {
                let number = u64::from(whole(dtype, set, row, unit(word)));
                element.copy_from_slice(&number.to_le_bytes()[..dtype.size()]);
            }
            _ if word >> 31 == 1 => element.copy_from_slice(one.bytes()),
            _ => {}
        }
    }
    tensor
}

/// Whether all numbers of a tensor are finite.
fn is_finite(tensor: &Tensor) -> bool {
    match tensor.dtype() {
        DType::Float16 => tensor.values::<u16>().iter().all(|bits| f16::from_bits(*bits).is_finite()),
        DType::Float32 => tensor.values::<f32>().iter().all(|number| number.is_finite()),
        DType::Float64 => tensor.values::<f64>().iter().all(|number| number.is_finite()),
        _ => true,
    }
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
    fn whole_numbers_fill_the_range_of_their_set() {
        let all = |dtype, set| (0..5).map(|row| whole(dtype, set, row, 0.999_999)).collect::<Vec<_>>();
        assert_eq!(all(DType::Int64, 0), [1; 5]);
        assert_eq!(all(DType::Int64, 3), [3; 5]);
        assert_eq!(all(DType::UInt8, 4), [255, 77, 8, 128, 26]);
        assert_eq!(all(DType::UInt8, 5)[0], 255);
        assert_eq!(all(DType::Int8, 5)[0], 127);
        assert_eq!(all(DType::Bool, 5)[0], 1);
        assert_eq!(all(DType::Int32, 5), [30_000, 9_000, 900, 15_000, 3_000]);
        assert_eq!(whole(DType::Int64, 5, 0, 0.0), 0);
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
