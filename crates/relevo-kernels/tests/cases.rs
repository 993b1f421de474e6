//! The golden cases of `../shared/cases`, in both precisions. Skipped, visibly, where the folder is absent.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![expect(clippy::print_stderr, reason = "a skip is told")]

use std::path::PathBuf;

use relevo_kernels::advantage::{
    DiscountedReturns, Gae, NStep, NStepOutputs, Vtrace, VtraceOutputs, discounted_returns, gae, n_step, vtrace,
};
use relevo_kernels::bandwidth::{
    Efficiency, Priorities, attention_bandwidth_cost, bandwidth_aware_priorities, bandwidth_efficiency,
    effective_bandwidth_cost,
};
use relevo_kernels::plan::{EmaPlanTracker, Surprise, plan_surprise};
use relevo_kernels::prefix::{prefix_match, prefix_match_many};
use relevo_kernels::sampling::{
    Proportional, Softmax, proportional_probabilities, proportional_weights, softmax_probabilities, softmax_weights,
};
use relevo_kernels::{Error, Float, Result};
use serde_json::Value;

/// One case of a file.
struct Case {
    name: String,
    inputs: Value,
    expected: Option<Value>,
    tolerance: Value,
    only: Option<String>,
}

/// What came back, by name: numbers of the precision that the kernel computed in, or whole numbers.
enum Output<F> {
    Floats(Vec<F>),
    Exact(Vec<i64>),
}

type Outputs<F> = Vec<(&'static str, Output<F>)>;

/// Runs all cases of a file, and counts them.
fn check<F: Float>(kernel: &str, run: impl Fn(&Value) -> Result<Outputs<F>>) {
    let precision = std::any::type_name::<F>().replace('f', "float");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../../shared/cases/{kernel}.json"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("SKIPPED {kernel}: there is no {}", path.display());
        return;
    };
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases: Vec<Case> =
        file["cases"].as_array().unwrap().iter().map(|case| read(case, &file["tolerance"])).collect();
    assert!(!cases.is_empty());
    for case in cases {
        if case.only.as_ref().is_some_and(|only| *only != precision) {
            continue;
        }
        let place = format!("{kernel}, {}, {precision}", case.name);
        match (run(&case.inputs), &case.expected) {
            (Err(_), None) => {}
            (Ok(_), None) => panic!("{place}: not refused"),
            (Err(error), Some(_)) => panic!("{place}: {error}"),
            (Ok(outputs), Some(expected)) => compare(&place, outputs, expected, &case.tolerance[&precision]),
        }
    }
}

fn read(case: &Value, tolerance: &Value) -> Case {
    Case {
        name: case["name"].as_str().unwrap().to_owned(),
        inputs: case["inputs"].clone(),
        expected: case.get("expected").cloned(),
        tolerance: case.get("tolerance").unwrap_or(tolerance).clone(),
        only: case.get("only").and_then(Value::as_str).map(str::to_owned),
    }
}

fn compare<F: Float>(place: &str, outputs: Outputs<F>, expected: &Value, tolerance: &Value) {
    assert_eq!(outputs.len(), expected.as_object().unwrap().len(), "{place}");
    for (name, output) in outputs {
        let wanted = numbers(&expected[name]);
        match output {
            Output::Exact(got) => assert_eq!(got.iter().map(|one| *one as f64).collect::<Vec<_>>(), wanted, "{place}"),
            Output::Floats(got) => {
                let (relative, absolute) = (tolerance["rel"].as_f64().unwrap(), tolerance["abs"].as_f64().unwrap());
                assert_eq!(got.len(), wanted.len(), "{place}: {name}");
                for (got, wanted) in got.iter().zip(&wanted) {
                    let close = (got.to_f64() - wanted).abs() <= absolute + relative * wanted.abs();
                    assert!(close, "{place}: {name}: {got} instead of {wanted}");
                }
            }
        }
    }
}

/// The numbers of nested lists, in order; `"NaN"`, `"inf"` and `"-inf"` among them.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(parts) => parts.iter().flat_map(numbers).collect(),
        Value::String(text) => vec![text.parse().unwrap()],
        number => vec![number.as_f64().unwrap()],
    }
}

fn floats<F: Float>(value: &Value) -> Vec<F> {
    numbers(value).into_iter().map(F::from_f64).collect()
}

fn float<F: Float>(value: &Value, default: f64) -> F {
    if value.is_null() { F::from_f64(default) } else { floats(value)[0] }
}

fn flags(value: &Value) -> Vec<u8> {
    numbers(value).into_iter().map(|flag| flag as u8).collect()
}

fn whole(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|one| one as usize).collect()
}

/// N of `[T, N]`.
fn streams(value: &Value) -> usize {
    value[0].as_array().map_or(1, Vec::len)
}

macro_rules! in_both_precisions {
    ($($name:ident),*) => {
        // A module, as the tests are named like the kernels.
        mod golden {
            $(
                #[test]
                fn $name() {
                    super::check::<f64>(stringify!($name), super::kernels::$name);
                    super::check::<f32>(stringify!($name), super::kernels::$name);
                }
            )*
        }
    };
}

in_both_precisions!(
    bandwidth_aware_priorities,
    bandwidth_efficiency,
    plan_surprise,
    ema_plan_tracker,
    priority_sample,
    prioritized_proportional,
    gae,
    discounted_returns,
    n_step,
    vtrace
);

/// The type of a length refuses what is no whole number; the file asks for an error.
fn length(value: &Value) -> Result<u64> {
    value.as_u64().ok_or(Error::Setting { name: "length", expected: "a whole number", came: numbers(value)[0] })
}

#[test]
fn costs() {
    check::<f64>("attention_bandwidth_cost", |inputs| {
        let cost = attention_bandwidth_cost(length(&inputs["seq_len"])?, float(&inputs["scale"], 1.0))?;
        Ok(vec![("result", Output::Floats(vec![cost]))])
    });
    check::<f64>("effective_bandwidth_cost", |inputs| {
        let (seq_len, reuse_len) = (length(&inputs["seq_len"])?, length(&inputs["reuse_len"])?);
        let cost = effective_bandwidth_cost(seq_len, reuse_len, float(&inputs["scale"], 1.0))?;
        Ok(vec![("result", Output::Floats(vec![cost]))])
    });
}

#[test]
fn prefixes() {
    check::<f64>("prefix_match", |inputs| {
        let (a, b) = (whole(&inputs["a"]), whole(&inputs["b"]));
        let length = prefix_match(&a, &b) as i64;
        let mut pairs = [0; 4];
        prefix_match_many(&[&a[..], &b], &[&b[..], &a], &mut pairs)?;
        assert_eq!(pairs, [length, a.len() as i64, b.len() as i64, length]);
        Ok(vec![("result", Output::Exact(vec![length]))])
    });
}

/// One function for each file, which calls the kernel of that name.
mod kernels {
    use super::*;

    pub(super) fn bandwidth_aware_priorities<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let (rewards, b_eff) = (floats::<F>(&inputs["rewards"]), floats(&inputs["b_eff"]));
        let queue_times = floats(&inputs["queue_times"]);
        let given = Priorities {
            rewards: &rewards,
            b_eff: &b_eff,
            queue_times: &queue_times,
            bandwidth_weight: float(&inputs["bandwidth_weight"], 1.0),
            eps: float(&inputs["eps"], 1e-6),
        };
        let mut result = vec![F::ZERO; rewards.len()];
        super::bandwidth_aware_priorities(&given, &mut result)?;
        Ok(vec![("result", Output::Floats(result))])
    }

    pub(super) fn bandwidth_efficiency<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let [episode_rewards, episode_b_eff, weights, pg_losses] =
            ["episode_rewards", "episode_b_eff", "weights", "pg_losses"].map(|name| floats::<F>(&inputs[name]));
        let given = Efficiency {
            episode_rewards: &episode_rewards,
            episode_b_eff: &episode_b_eff,
            weights: &weights,
            pg_losses: &pg_losses,
        };
        Ok(vec![("result", Output::Floats(vec![super::bandwidth_efficiency(&given)?]))])
    }

    pub(super) fn plan_surprise<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let [plans, mean_plan, rewards] = ["plans", "mean_plan", "rewards"].map(|name| floats::<F>(&inputs[name]));
        let mut result = vec![F::ZERO; rewards.len()];
        let alpha = float(&inputs["alpha"], 0.0);
        let given = Surprise { plans: &plans, mean_plan: &mean_plan, rewards: &rewards, alpha };
        super::plan_surprise(&given, &mut result)?;
        Ok(vec![("result", Output::Floats(result))])
    }

    pub(super) fn ema_plan_tracker<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let dim = inputs["dim"].as_u64().unwrap() as usize;
        let mut tracker = EmaPlanTracker::new(dim, float::<F>(&inputs["decay"], 0.0))?;
        let (mut means, mut rejected) = (Vec::new(), Vec::new());
        for (index, update) in inputs["updates"].as_array().unwrap().iter().enumerate() {
            if tracker.update(&floats(update)).is_err() {
                rejected.push(index as i64);
            }
            means.extend(tracker.mean().into_iter().flatten());
        }
        let count = Output::Exact(vec![tracker.count() as i64]);
        Ok(vec![("means", Output::Floats(means)), ("rejected", Output::Exact(rejected)), ("count", count)])
    }

    pub(super) fn priority_sample<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let (scores, indices) = (floats::<F>(&inputs["scores"]), whole(&inputs["indices"]));
        let given = Softmax { scores: &scores, temperature: float(&inputs["temperature"], 1.0) };
        let (mut probabilities, mut weights) = (vec![F::ZERO; scores.len()], vec![F::ZERO; indices.len()]);
        softmax_probabilities(&given, &mut probabilities)?;
        softmax_weights(&given, float(&inputs["beta"], 1.0), &indices, &mut weights)?;
        Ok(vec![("probabilities", Output::Floats(probabilities)), ("weights", Output::Floats(weights))])
    }

    pub(super) fn prioritized_proportional<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let (priorities, indices) = (floats::<F>(&inputs["priorities"]), whole(&inputs["indices"]));
        let given = Proportional { priorities: &priorities, alpha: float(&inputs["alpha"], 1.0) };
        let mut probabilities = vec![F::ZERO; priorities.len()];
        let (mut weights, mut global) = (vec![F::ZERO; indices.len()], vec![F::ZERO; indices.len()]);
        proportional_probabilities(&given, &mut probabilities)?;
        proportional_weights(&given, float(&inputs["beta"], 1.0), &indices, &mut weights, &mut global)?;
        Ok(vec![
            ("probabilities", Output::Floats(probabilities)),
            ("weights", Output::Floats(weights)),
            ("weights_global_max", Output::Floats(global)),
        ])
    }

    pub(super) fn gae<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let [rewards, values, next_values] =
            ["rewards", "values", "next_values"].map(|name| floats::<F>(&inputs[name]));
        let [terminated, truncated] = ["terminated", "truncated"].map(|name| flags(&inputs[name]));
        let given = Gae {
            streams: streams(&inputs["rewards"]),
            rewards: &rewards,
            values: &values,
            next_values: &next_values,
            terminated: &terminated,
            truncated: &truncated,
            gamma: float(&inputs["gamma"], 0.0),
            lam: float(&inputs["lam"], 0.0),
        };
        let (mut advantages, mut returns) = (vec![F::ZERO; rewards.len()], vec![F::ZERO; rewards.len()]);
        super::gae(&given, &mut advantages, &mut returns)?;
        Ok(vec![("advantages", Output::Floats(advantages)), ("returns", Output::Floats(returns))])
    }

    pub(super) fn discounted_returns<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let rewards = floats::<F>(&inputs["rewards"]);
        let next_values = inputs.get("next_values").map(floats);
        let [terminated, truncated] = ["terminated", "truncated"].map(|name| flags(&inputs[name]));
        let given = DiscountedReturns {
            streams: streams(&inputs["rewards"]),
            rewards: &rewards,
            next_values: next_values.as_deref(),
            terminated: &terminated,
            truncated: &truncated,
            gamma: float(&inputs["gamma"], 0.0),
        };
        let mut result = vec![F::ZERO; rewards.len()];
        super::discounted_returns(&given, &mut result)?;
        Ok(vec![("result", Output::Floats(result))])
    }

    pub(super) fn n_step<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let rewards = floats::<F>(&inputs["rewards"]);
        let [terminated, truncated] = ["terminated", "truncated"].map(|name| flags(&inputs[name]));
        let given = NStep {
            streams: streams(&inputs["rewards"]),
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            gamma: float(&inputs["gamma"], 0.0),
            n: inputs["n"].as_u64().unwrap() as usize,
        };
        let (mut returns, mut discounts) = (vec![F::ZERO; rewards.len()], vec![F::ZERO; rewards.len()]);
        let (mut bootstrap_index, mut steps) = (vec![0; rewards.len()], vec![0; rewards.len()]);
        let outputs = NStepOutputs {
            returns: &mut returns,
            discounts: &mut discounts,
            bootstrap_index: &mut bootstrap_index,
            steps: &mut steps,
        };
        super::n_step(&given, outputs)?;
        Ok(vec![
            ("returns", Output::Floats(returns)),
            ("discounts", Output::Floats(discounts)),
            ("bootstrap_index", Output::Exact(bootstrap_index)),
            ("steps", Output::Exact(steps)),
        ])
    }

    pub(super) fn vtrace<F: Float>(inputs: &Value) -> Result<Outputs<F>> {
        let [behaviour_log_probs, target_log_probs, rewards, values, next_values] =
            ["behaviour_log_probs", "target_log_probs", "rewards", "values", "next_values"]
                .map(|name| floats::<F>(&inputs[name]));
        let [terminated, truncated] = ["terminated", "truncated"].map(|name| flags(&inputs[name]));
        let given = Vtrace {
            streams: streams(&inputs["rewards"]),
            behaviour_log_probs: &behaviour_log_probs,
            target_log_probs: &target_log_probs,
            rewards: &rewards,
            values: &values,
            next_values: &next_values,
            terminated: &terminated,
            truncated: &truncated,
            gamma: float(&inputs["gamma"], 0.0),
            rho_bar: float(&inputs["rho_bar"], 1.0),
            c_bar: float(&inputs["c_bar"], 1.0),
            lam: float(&inputs["lam"], 1.0),
        };
        let (mut vs, mut pg_advantages) = (vec![F::ZERO; rewards.len()], vec![F::ZERO; rewards.len()]);
        super::vtrace(&given, VtraceOutputs { vs: &mut vs, pg_advantages: &mut pg_advantages })?;
        Ok(vec![("vs", Output::Floats(vs)), ("pg_advantages", Output::Floats(pg_advantages))])
    }
}
