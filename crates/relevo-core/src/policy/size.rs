//! How large a row may be. What a file or a caller says of sizes is checked before any memory is asked for by it: where that
//! fails, the process ends.

use std::{collections::BTreeMap, path::Path};

use crate::{
    error::{Error, Result},
    spec::{Dim, TensorSpec, shape_text},
};

/// Bytes that a row of all inputs, or of all outputs, may have: two 4K images of float32 fit.
pub const MOST_ROW_BYTES: usize = 256 << 20;

/// Bytes of a number in a shape whose element type is not known yet: float32's, which most have.
const LIKELY_BYTES: usize = 4;

/// Fails where a row of a model's inputs, or of its outputs, is larger than [`MOST_ROW_BYTES`]; a size that is left open counts
/// as 1. Backends call it before they run anything.
///
/// # Errors
/// [`Error::ModelLoad`] that names the tensor with the largest row.
pub fn check_rows(path: &Path, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Result<()> {
    for (kind, specs) in [("input", inputs), ("output", outputs)] {
        let total = specs.iter().fold(0_usize, |total, spec| total.saturating_add(row_bytes(spec)));
        let Some(largest) = specs.iter().max_by_key(|spec| row_bytes(spec)).filter(|_| total > MOST_ROW_BYTES) else {
            continue;
        };
        let declared = largest.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(Error::model_load(
            path,
            format!(
                "its {kind} `{}` is {} of shape [{declared}], {} a row, and a row of all {kind}s may have {} at most; export the \
                 model with the sizes that it has in truth",
                largest.name,
                largest.dtype,
                bytes_text(row_bytes(largest)),
                bytes_text(MOST_ROW_BYTES)
            ),
        ));
    }
    Ok(())
}

/// Fails where the shape of one row that a caller gives is larger than [`MOST_ROW_BYTES`], taken as float32.
///
/// # Errors
/// [`Error::Config`] that names the input.
pub(super) fn check_shapes(shapes: &BTreeMap<String, Vec<usize>>) -> Result<()> {
    for (name, shape) in shapes {
        let size = product(shape.iter().copied(), LIKELY_BYTES);
        if size > MOST_ROW_BYTES {
            let input = if name.is_empty() { "the observation".to_owned() } else { format!("`{name}`") };
            return Err(Error::Config(format!(
                "shapes gives {} for a row of {input}, {} as float32, and a row may have {} at most; give the shape of one row",
                shape_text(shape),
                bytes_text(size),
                bytes_text(MOST_ROW_BYTES)
            )));
        }
    }
    Ok(())
}

/// Bytes of one row; the largest number where there are more.
fn row_bytes(spec: &TensorSpec) -> usize {
    let sizes = spec.shape.iter().map(|dim| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(_) => 1,
    });
    product(sizes, spec.dtype.size())
}

fn product(mut sizes: impl Iterator<Item = usize>, first: usize) -> usize {
    sizes.try_fold(first, usize::checked_mul).unwrap_or(usize::MAX)
}

/// `256 MiB`, and `over 16 EiB` for what no computer has.
fn bytes_text(bytes: usize) -> String {
    match bytes {
        usize::MAX => "over 16 EiB".into(),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DType;

    fn spec(sizes: &[usize]) -> TensorSpec {
        let rest = sizes.iter().map(|size| Dim::Fixed(*size));
        let shape = std::iter::once(Dim::Dynamic("b".into())).chain(rest).collect();
        TensorSpec { name: format!("x{}", sizes.len()), dtype: DType::Float32, shape }
    }

    fn checked(inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Option<String> {
        check_rows(Path::new("a.onnx"), inputs, outputs).err().map(|error| error.to_string())
    }

    #[test]
    fn rows_beyond_the_limit_are_named() {
        let most = MOST_ROW_BYTES / 4;
        assert_eq!(checked(&[spec(&[most])], &[spec(&[3])]), None);
        let told = checked(&[spec(&[3]), spec(&[1, most]), spec(&[3])], &[]).unwrap();
        assert!(told.contains("its input `x2` is float32 of shape [b, 1, 67108864], 256 MiB a row"), "{told}");
        let told = checked(&[], &[spec(&[1 << 33, 1 << 33])]).unwrap();
        assert!(told.contains("its output `x2`") && told.contains("over 16 EiB a row"), "{told}");
        // A size of nothing makes nothing of the others.
        assert!(checked(&[spec(&[1 << 33, 1 << 33, 0])], &[]).is_some());
    }

    #[test]
    fn given_shapes_beyond_the_limit_are_named() {
        let checked = |name: &str, shape: &[usize]| check_shapes(&BTreeMap::from([(name.into(), shape.to_vec())]));
        assert_eq!(checked("x", &[MOST_ROW_BYTES / 4]), Ok(()));
        let told = checked("x", &[1 << 40]).unwrap_err().to_string();
        assert!(told.contains("(1099511627776,) for a row of `x`, 4194304 MiB"), "{told}");
        assert!(checked("", &[1 << 33, 1 << 33]).unwrap_err().to_string().contains("the observation, over 16 EiB"));
    }
}
