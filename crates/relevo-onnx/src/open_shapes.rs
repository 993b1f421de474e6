//! Sizes that a file leaves open, as the caller gives them.

use std::collections::BTreeMap;

use relevo_core::{
    error::{Error, Result},
    spec::{Dim, TensorSpec, shape_text},
};

/// Fills the open dimensions of `inputs`, but for the first, which counts the rows, with the shapes of one row that were given.
/// What a file declares stays. The empty name stands for the first input, and may contradict that. Gives sentences that tell of it.
///
/// # Errors
/// [`Error::Config`] for a name that no input has, or a shape that contradicts what is declared.
pub(crate) fn fill(inputs: &mut [TensorSpec], shapes: &BTreeMap<String, Vec<usize>>) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for (name, shape) in shapes {
        let known = inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>().join(", ");
        let found =
            inputs.iter_mut().enumerate().find(|(at, input)| input.name == *name || (name.is_empty() && *at == 0));
        let Some((_, input)) = found else {
            return Err(Error::Config(format!(
                "shapes names `{name}`, but the model has no such input; it has {known}"
            )));
        };
        // Where rows do not come first, the open size is theirs.
        let is_across = matches!(input.shape[..], [Dim::Fixed(2..), Dim::Dynamic(_)]);
        if is_across {
            continue;
        }
        let is_open = |dim: &Dim| matches!(dim, Dim::Dynamic(_));
        if !input.shape.iter().skip(1).any(is_open) && !input.shape.is_empty() {
            let given: Vec<_> = shape.iter().copied().map(Dim::Fixed).collect();
            // What a folder says of its first input is held against the contract.
            if name.is_empty() || given == input.shape[1..] || given == input.shape {
                continue;
            }
        }
        if input.shape.is_empty() {
            input.shape = vec![Dim::Dynamic(String::new()); shape.len() + 1];
        }
        let declared = &input.shape[1..];
        let fits = |(dim, size): (&Dim, &usize)| match dim {
            Dim::Fixed(declared) => declared == size,
            Dim::Dynamic(_) => true,
        };
        if declared.len() != shape.len() || !declared.iter().zip(shape).all(fits) {
            let declared = declared.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::Config(format!(
                "shapes gives {} for a row of `{}`, but the file declares [{declared}]; give as many sizes, and the declared ones",
                shape_text(shape),
                input.name
            )));
        }
        for (dim, size) in input.shape[1..].iter_mut().zip(shape) {
            *dim = Dim::Fixed(*size);
        }
        notes.push(format!(
            "the file leaves sizes of `{}` open: a row of shape {} was given",
            input.name,
            shape_text(shape)
        ));
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use relevo_core::spec::DType;

    use super::*;

    fn input(shape: &[i64]) -> TensorSpec {
        let dim = |size: &i64| usize::try_from(*size).map_or_else(|_| Dim::Dynamic("n".into()), Dim::Fixed);
        TensorSpec { name: "obs".into(), dtype: DType::Float32, shape: shape.iter().map(dim).collect() }
    }

    fn filled(declared: &[i64], name: &str, given: &[usize]) -> Result<Vec<Dim>> {
        let mut inputs = [input(declared)];
        fill(&mut inputs, &BTreeMap::from([(name.to_owned(), given.to_vec())])).map(|_| inputs[0].shape.clone())
    }

    #[test]
    fn open_sizes_are_filled_and_declared_ones_stay() {
        let shape = |sizes: &[i64]| input(sizes).shape;
        assert_eq!(filled(&[-1, -1], "obs", &[6]), Ok(shape(&[-1, 6])));
        assert_eq!(filled(&[-1, -1, 6], "", &[3, 6]), Ok(shape(&[-1, 3, 6])));
        assert_eq!(filled(&[-1, 4], "", &[9]), Ok(shape(&[-1, 4])));
        assert_eq!(filled(&[-1, 4], "obs", &[4]), Ok(shape(&[-1, 4])));
        assert_eq!(filled(&[4], "obs", &[4]), Ok(shape(&[4])));
        assert_eq!(filled(&[], "obs", &[2]), Ok(vec![Dim::Dynamic(String::new()), Dim::Fixed(2)]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let text =
            |declared: &[i64], name: &str, given: &[usize]| filled(declared, name, given).unwrap_err().to_string();
        assert!(text(&[-1, -1], "x", &[6]).contains("no such input; it has obs"));
        assert!(text(&[-1, -1, 6], "obs", &[3, 7]).contains("declares [n, 6]"));
        assert!(text(&[-1, 4], "obs", &[9]).contains("declares [4]"));
        assert!(text(&[-1, -1], "obs", &[3, 7]).contains("(3, 7)"));
    }
}
