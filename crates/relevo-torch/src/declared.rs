//! What `relevo.export` writes into an archive about its inputs, which TorchScript itself does not say.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::scalar::Scalar;

/// The type of an input, and the sizes of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) scalar: Scalar,
    pub(crate) row: Vec<usize>,
}

/// Reads `{"inputs": {"obs": {"dtype": "uint8", "row_shape": [3, 64, 64]}}}`; what else is there is for others to read.
///
/// # Errors
/// Where the text is something else.
pub(crate) fn read(text: &str) -> Result<BTreeMap<String, Declared>, String> {
    let whole: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let whole = whole.as_object().ok_or("it is no object")?;
    let inputs = match whole.get("inputs") {
        Some(inputs) => Some(inputs.as_object().ok_or("its `inputs` are no object")?),
        None => None,
    };
    inputs
        .into_iter()
        .flatten()
        .map(|(name, input)| {
            let scalar = input.get("dtype").and_then(Value::as_str).and_then(Scalar::named);
            let sizes = input.get("row_shape").and_then(Value::as_array);
            let size = |size: &Value| size.as_u64().and_then(|size| usize::try_from(size).ok());
            let row = sizes.and_then(|sizes| sizes.iter().map(size).collect());
            let declared = scalar.zip(row).map(|(scalar, row)| (name.clone(), Declared { scalar, row }));
            declared.ok_or_else(|| format!("`{name}` has no dtype and row_shape that can be read"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let read = |text| read(text).ok().map(|inputs| inputs.into_iter().collect::<Vec<_>>());
        let declared = Declared { scalar: Scalar::BYTE, row: vec![3, 8] };
        let whole = r#"{"inputs": {"obs": {"dtype": "uint8", "row_shape": [3, 8]}}}"#;
        assert_eq!(read(whole), Some(vec![("obs".into(), declared)]));
        assert_eq!(read(r#"{"bounds": null}"#), Some(vec![]));
        for broken in ["", "[]", r#"{"inputs": 1}"#, &whole.replace("uint8", "text"), &whole.replace("3", "-3")] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
