//! Running statistics beside a model: what it was trained to observe is (observation − mean) / deviation.

use crate::error::{Error, Result};

/// Normalises one observation input: clip((x − mean) / √(variance + ε), −limit, limit), element by element.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalizer {
    mean: Vec<f32>,
    /// 1 / √(variance + ε).
    scale: Vec<f32>,
    limit: f32,
}

impl Normalizer {
    /// From running statistics, as Stable-Baselines3's `VecNormalize` keeps them; `limit` may be infinite.
    ///
    /// # Errors
    /// [`Error::Config`] where the numbers are no statistics: of different lengths, not finite, a variance below 0.
    pub fn new(mean: &[f64], variance: &[f64], epsilon: f64, limit: f64) -> Result<Self> {
        if mean.len() != variance.len() || mean.is_empty() {
            return Err(Error::Config(format!(
                "a normalisation needs a mean and a variance for each element, but there are {} means and {} variances",
                mean.len(),
                variance.len()
            )));
        }
        if let Some(at) = mean.iter().position(|mean| !mean.is_finite()) {
            return Err(Error::Config(format!("the mean of element {at} must be finite, but is {}", mean[at])));
        }
        let scale: Vec<f32> = variance.iter().map(|variance| (1.0 / (variance + epsilon).sqrt()) as f32).collect();
        if let Some(at) = scale.iter().zip(variance).position(|(scale, variance)| !scale.is_finite() || *variance < 0.0)
        {
            return Err(Error::Config(format!(
                "the variance of element {at} must be at least 0, and above 0 together with epsilon, but they are {} and \
                 {epsilon}",
                variance[at]
            )));
        }
        if limit.is_nan() || limit <= 0.0 {
            return Err(Error::Config(format!(
                "observations must be clipped at a number above 0, but clip is {limit}"
            )));
        }
        Ok(Self { mean: mean.iter().map(|mean| *mean as f32).collect(), scale, limit: limit as f32 })
    }

    /// Elements of an observation.
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// Writes the normalised rows of `observations` into `target`, which is as long.
    pub fn apply(&self, observations: &[f32], target: &mut [f32]) {
        let rows = observations.chunks_exact(self.width()).zip(target.chunks_exact_mut(self.width()));
        for (row, target) in rows {
            let numbers = row.iter().zip(&self.mean).zip(&self.scale);
            for (target, ((value, mean), scale)) in target.iter_mut().zip(numbers) {
                *target = ((value - mean) * scale).clamp(-self.limit, self.limit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_normalised_and_clipped() {
        let normalizer = Normalizer::new(&[1.0, -2.0], &[4.0, 0.25], 0.0, 3.0).unwrap();
        let mut target = [0.0; 4];
        normalizer.apply(&[2.0, -2.5, 100.0, -2.0], &mut target);
        assert_eq!(target.to_vec(), [0.5, -1.0, 3.0, 0.0]);
    }

    #[test]
    fn numbers_that_are_no_statistics_are_refused() {
        let refused = |mean: &[f64], variance: &[f64], limit| {
            Normalizer::new(mean, variance, 0.0, limit).map_err(|error| error.to_string()).unwrap_err()
        };
        assert!(refused(&[0.0], &[1.0, 1.0], 1.0).contains("1 means and 2 variances"));
        assert!(refused(&[f64::NAN], &[1.0], 1.0).contains("mean of element 0"));
        assert!(refused(&[0.0], &[-1.0], 1.0).contains("variance of element 0"));
        assert!(refused(&[0.0], &[0.0], 1.0).contains("variance of element 0"));
        assert!(refused(&[0.0], &[1.0], 0.0).contains("above 0"));
    }
}
