//! What `relevo.export` writes into a file about its policy: the bounds of its actions, and the statistics by which the
//! graph normalises its observations.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ActionBounds, Normalizer};

/// What a file says of its policy, beside the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Declared {
    /// What its continuous actions are to be brought into.
    pub bounds: Option<ActionBounds>,
    /// Statistics by which the model itself normalises observations, by the names of its inputs.
    pub normalization: BTreeMap<String, Statistics>,
}

/// Running statistics as they were given.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    /// Means.
    pub mean: Vec<f64>,
    /// Variances, as many.
    pub variance: Vec<f64>,
    /// Added to the variance.
    pub epsilon: f64,
    /// What normalised elements are limited to; may be infinite.
    pub clip: f64,
}

impl Declared {
    /// Reads `{"bounds": {"low": [-2.0], "high": [2.0], "how": "tanh"}, "normalization": {"obs": {"mean": [0.0], "variance":
    /// [1.0], "epsilon": 1e-8, "clip": 10.0}}}`; both may be missing, and an empty text says nothing. Infinite numbers are
    /// texts.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let whole: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let bounds = whole.get("bounds").filter(|bounds| !bounds.is_null()).map(read_bounds).transpose()?;
        let given = whole.get("normalization").and_then(Value::as_object);
        let normalization =
            given.into_iter().flatten().map(|(name, own)| Ok((name.clone(), read_statistics(name, own)?)));
        Ok(Self { bounds, normalization: normalization.collect::<Result<_, String>>()? })
    }
}

fn read_bounds(given: &Value) -> Result<ActionBounds, String> {
    let numbers = |key| numbers(given, key).ok_or_else(|| format!("its bounds have no `{key}` that can be read"));
    let narrow = |numbers: Vec<f64>| numbers.into_iter().map(|number| number as f32).collect();
    let how = given.get("how").and_then(Value::as_str).ok_or("its bounds do not say `how`")?;
    let kind = how.parse().map_err(|error: crate::Error| error.to_string())?;
    ActionBounds::new(kind, narrow(numbers("low")?), narrow(numbers("high")?)).map_err(|error| error.to_string())
}

fn read_statistics(name: &str, given: &Value) -> Result<Statistics, String> {
    let found = || {
        let one = |key| given.get(key).and_then(number);
        let (mean, variance) = (numbers(given, "mean")?, numbers(given, "variance")?);
        Some(Statistics { mean, variance, epsilon: one("epsilon")?, clip: one("clip")? })
    };
    let statistics = found().ok_or_else(|| format!("its normalisation of `{name}` cannot be read"))?;
    let Statistics { mean, variance, epsilon, clip } = &statistics;
    Normalizer::new(mean, variance, *epsilon, *clip)
        .map_err(|error| format!("its normalisation of `{name}`: {error}"))?;
    Ok(statistics)
}

fn numbers(given: &Value, key: &str) -> Option<Vec<f64>> {
    given.get(key)?.as_array()?.iter().map(number).collect()
}

/// A number, or an infinite one as a text.
fn number(given: &Value) -> Option<f64> {
    given.as_f64().or_else(|| given.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::BoundsKind;

    #[test]
    fn texts() {
        let whole = r#"{"inputs": {}, "bounds": {"low": ["-inf", -1.5], "high": [2, "inf"], "how": "clip"}, "normalization":
            {"obs": {"mean": [0.5], "variance": [2], "epsilon": 1e-8, "clip": "inf"}}}"#;
        let declared = Declared::read(whole).unwrap();
        let bounds =
            ActionBounds::new(BoundsKind::Clip, vec![f32::NEG_INFINITY, -1.5], vec![2.0, f32::INFINITY]).unwrap();
        assert_eq!(declared.bounds, Some(bounds));
        let statistics = Statistics { mean: vec![0.5], variance: vec![2.0], epsilon: 1e-8, clip: f64::INFINITY };
        assert_eq!(declared.normalization, BTreeMap::from([("obs".to_owned(), statistics)]));
        for nothing in ["", "{}", r#"{"inputs": {}, "bounds": null}"#] {
            assert_eq!(Declared::read(nothing), Ok(Declared::default()), "{nothing}");
        }
        for broken in
            ["[", &whole.replace("clip\"}", "bend\"}"), &whole.replace("-1.5", "3e9999"), &whole.replace("[2]", "[-2]")]
        {
            assert!(Declared::read(broken).is_err(), "{broken}");
        }
    }
}
