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

/// Reads `{"inputs": {"obs": {"dtype": "uint8", "row_shape": [3, 64, 64]}}}`.
///
/// # Errors
/// Where the text is something else.
pub(crate) fn read(text: &str) -> Result<BTreeMap<String, Declared>, String> {
    let whole: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let inputs = whole.get("inputs").and_then(Value::as_object).ok_or("it has no `inputs`")?;
    inputs
        .iter()
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
        for broken in ["", "{}", "[]", &whole.replace("uint8", "text"), &whole.replace("3", "-3")] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
