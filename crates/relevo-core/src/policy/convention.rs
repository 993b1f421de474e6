//! What exporters call things: the roles that inputs and outputs play, and the names that give them away.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// What an input of a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputRole {
    /// What the environment shows.
    Observation,
    /// Which actions are allowed, 1 for yes.
    ActionMask,
    /// Memory that the model handed out in the step before.
    State,
    /// Whether an episode goes on: 0 at its first step, 1 after.
    EpisodeMask,
    /// Whether an episode begins: 1 at its first step, 0 after.
    EpisodeStart,
}

impl InputRole {
    /// What the input is at the first step of an episode and what it is after, for those that tell of no more than that.
    pub(crate) const fn first_and_next(self) -> Option<(bool, bool)> {
        match self {
            Self::EpisodeMask => Some((false, true)),
            Self::EpisodeStart => Some((true, false)),
            Self::Observation | Self::ActionMask | Self::State => None,
        }
    }
}

/// What an output of a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputRole {
    /// The action, as it goes to the environment; random if the graph draws it.
    Action,
    /// The action without randomness.
    DeterministicAction,
    /// Unnormalised log-probabilities of discrete actions.
    Logits,
    /// Probabilities of discrete actions.
    Probabilities,
    /// The value of each discrete action, of which the largest is the best.
    ActionValues,
    /// Mean of a Gaussian.
    Mean,
    /// Logarithm of a Gaussian's standard deviation.
    LogStd,
    /// A Gaussian's standard deviation.
    Std,
    /// Mean and log standard deviation in one tensor, the means first.
    MeanAndLogStd,
    /// Estimated value of the observation.
    Value,
    /// Log-probability of the action.
    LogProb,
    /// Memory for the next step.
    State,
    /// A constant of the file, without a batch axis.
    Constant,
    /// Something that no head reads.
    Other,
}

impl OutputRole {
    /// Whether an action can be made of it.
    pub(crate) const fn is_action(self) -> bool {
        matches!(
            self,
            Self::Action
                | Self::DeterministicAction
                | Self::Logits
                | Self::Probabilities
                | Self::ActionValues
                | Self::Mean
                | Self::MeanAndLogStd
        )
    }
}

/// Names that say something only where they stand alone, without a scope.
const VAGUE: [&str; 2] = ["output", "act"];

const INPUT_ROLES: [(InputRole, &str); 5] = [
    (InputRole::Observation, "observation"),
    (InputRole::ActionMask, "action_mask"),
    (InputRole::State, "state"),
    (InputRole::EpisodeMask, "episode_mask"),
    (InputRole::EpisodeStart, "episode_start"),
];

const OUTPUT_ROLES: [(OutputRole, &str); 14] = [
    (OutputRole::Action, "action"),
    (OutputRole::DeterministicAction, "deterministic_action"),
    (OutputRole::Logits, "logits"),
    (OutputRole::Probabilities, "probabilities"),
    (OutputRole::ActionValues, "action_values"),
    (OutputRole::Mean, "mean"),
    (OutputRole::LogStd, "log_std"),
    (OutputRole::Std, "std"),
    (OutputRole::MeanAndLogStd, "mean_and_log_std"),
    (OutputRole::Value, "value"),
    (OutputRole::LogProb, "log_prob"),
    (OutputRole::State, "state"),
    (OutputRole::Constant, "constant"),
    (OutputRole::Other, "other"),
];

fn parse<R: Copy>(roles: &[(R, &str)], kind: &str, text: &str) -> Result<R> {
    roles.iter().find(|(_, name)| *name == text).map(|(role, _)| *role).ok_or_else(|| {
        let known = roles.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        Error::Config(format!("`{text}` is no role of an {kind}; the roles are {known}"))
    })
}

fn name<R: PartialEq>(roles: &[(R, &'static str)], role: &R) -> &'static str {
    roles.iter().find(|(known, _)| known == role).map_or("other", |(_, name)| name)
}

impl FromStr for InputRole {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(&INPUT_ROLES, "input", text)
    }
}

impl FromStr for OutputRole {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(&OUTPUT_ROLES, "output", text)
    }
}

impl fmt::Display for InputRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(name(&INPUT_ROLES, self))
    }
}

impl fmt::Display for OutputRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(name(&OUTPUT_ROLES, self))
    }
}

/// A name in the parts that it may be known by: `actor/mean:0` is `mean`, then `actor`, then all of it without the number. Some
/// exporters write scopes before names, and places behind them.
fn parts(name: &str) -> Vec<String> {
    let name = name.to_ascii_lowercase();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = name.rsplit_once(':').filter(|(_, place)| is_number(place)).map_or(&*name, |(before, _)| before);
    let scoped = name.split(['/', '.']).rev().filter(|part| *part != name && !VAGUE.contains(part));
    scoped.chain([name]).map(str::to_owned).collect()
}

/// The role that an input's name gives away, and the reason in words.
pub(crate) fn input_role(name: &str) -> (InputRole, &'static str) {
    let mut found = parts(name).into_iter().map(|part| input_role_of(&part));
    found
        .find(|(role, _)| *role != InputRole::Observation)
        .unwrap_or((InputRole::Observation, "every other input is an observation"))
}

fn input_role_of(name: &str) -> (InputRole, &'static str) {
    let states = ["recurrent_in", "state_ins", "state_in", "h_in", "c_in", "rnn_states", "rnn_hxs", "hxs", "h0", "c0"];
    if name.contains("mask") {
        (InputRole::ActionMask, "the name holds `mask`")
    } else if states.contains(&name) || name.starts_with("hidden_state") || name.starts_with("cell_state") {
        (InputRole::State, "a known name of a recurrent state")
    } else {
        (InputRole::Observation, "every other input is an observation")
    }
}

/// The role of an input with one number a row beside recurrent states, and the reason: whether the episode goes on. `None` where
/// the name says something else.
pub(crate) fn episode_role(name: &str) -> Option<(InputRole, &'static str)> {
    parts(name).into_iter().find_map(|part| episode_role_of(&part))
}

fn episode_role_of(name: &str) -> Option<(InputRole, &'static str)> {
    let is = |names: &[&str]| names.contains(&name);
    if is(&["mask", "masks", "episode_mask", "episode_masks", "not_done", "not_dones", "nonterminal", "nonterminals"]) {
        return Some((InputRole::EpisodeMask, "one number a row beside states: whether the episode goes on"));
    }
    is(&["episode_start", "episode_starts", "is_first", "done", "dones"])
        .then_some((InputRole::EpisodeStart, "one number a row beside states: whether an episode begins"))
}

/// Whether an output's name says that it is an action. `output` is called so by some exporters, and holds logits with others.
pub(crate) fn names_an_action(name: &str) -> bool {
    name.to_ascii_lowercase().contains("act")
}

/// The role that an output's name gives away, and the reason in words; `None` where the name says nothing.
pub(crate) fn output_role(name: &str) -> Option<(OutputRole, &'static str)> {
    parts(name).into_iter().find_map(|part| output_role_of(&part))
}

fn output_role_of(name: &str) -> Option<(OutputRole, &'static str)> {
    let is = |names: &[&str]| names.contains(&name);
    if is(&["version_number", "memory_size", "is_continuous_control"]) || name.ends_with("_output_shape") {
        return Some((OutputRole::Constant, "a known name of an ML-Agents constant"));
    }
    if is(&["recurrent_out", "state_outs", "state_out", "h_out", "c_out", "output_rnn_states", "hn", "cn"]) {
        return Some((OutputRole::State, "a known name of a recurrent state"));
    }
    if name.contains("log_prob") || name.contains("logp") {
        return Some((OutputRole::LogProb, "the name says log-probability"));
    }
    if name.contains("log_std") || name.contains("logstd") || name.contains("log_sigma") {
        return Some((OutputRole::LogStd, "the name says log standard deviation"));
    }
    if is(&["std", "stds", "sigma", "scale", "stddev"]) || name.ends_with("_std") {
        return Some((OutputRole::Std, "the name says standard deviation"));
    }
    if is(&["probs", "probabilities", "probability"]) || name.ends_with("_probs") || name.ends_with("_probabilities") {
        return Some((OutputRole::Probabilities, "the name says probabilities, and those of each row add up to 1"));
    }
    if is(&["mu", "mean", "means", "action_mean", "loc"]) {
        return Some((OutputRole::Mean, "a known name of a Gaussian's mean"));
    }
    if name.contains("logit") {
        return Some((OutputRole::Logits, "the name says logits"));
    }
    if is(&["q", "q_value", "q_values", "qvalues", "action_values"]) {
        return Some((OutputRole::ActionValues, "a known name of the values of actions"));
    }
    if is(&["value", "values", "value_estimate", "state_value", "vf", "v"]) {
        return Some((OutputRole::Value, "a known name of a value"));
    }
    if name.starts_with("deterministic_") {
        return Some((OutputRole::DeterministicAction, "the name begins with `deterministic_`"));
    }
    if is(&["label", "output_label"]) {
        return Some((OutputRole::DeterministicAction, "the class that a classifier predicts"));
    }
    if name.contains("action") || is(&["act"]) {
        return Some((OutputRole::Action, "a known name of an action"));
    }
    if is(&["output"]) {
        return Some((OutputRole::Action, "some exporters call the action so, and others the logits"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_round_trip_through_their_names() {
        for (role, name) in INPUT_ROLES {
            assert_eq!(name.parse::<InputRole>().ok(), Some(role));
        }
        for (role, name) in OUTPUT_ROLES {
            assert_eq!(name.parse::<OutputRole>().ok(), Some(role));
            assert_eq!(role.to_string(), name);
        }
        let message = "mask".parse::<InputRole>().map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| message.contains("observation, action_mask, state")));
    }

    #[test]
    fn names_of_known_exporters() {
        let cases = [
            ("deterministic_continuous_actions", OutputRole::DeterministicAction),
            ("continuous_actions", OutputRole::Action),
            ("continuous_action_output_shape", OutputRole::Constant),
            ("recurrent_out", OutputRole::State),
            ("output_actions", OutputRole::Action),
            ("output", OutputRole::Action),
            ("mu", OutputRole::Mean),
            ("log_std", OutputRole::LogStd),
            ("log_prob", OutputRole::LogProb),
            ("logits", OutputRole::Logits),
            ("value", OutputRole::Value),
            ("output_label", OutputRole::DeterministicAction),
            ("mu:0", OutputRole::Mean),
            ("policy/mean", OutputRole::Mean),
            ("policy/log_std:0", OutputRole::LogStd),
            ("vf/value", OutputRole::Value),
            ("q_values:0", OutputRole::ActionValues),
            ("policy/logits/BiasAdd:0", OutputRole::Logits),
            ("actor.output_probs", OutputRole::Probabilities),
            ("action_log_probs", OutputRole::LogProb),
            ("sigma", OutputRole::Std),
            ("action_std", OutputRole::Std),
        ];
        for (name, role) in cases {
            assert_eq!(output_role(name).map(|found| found.0), Some(role), "{name}");
        }
        for name in ["27", "value_net/output", "Identity:0", "output_1.0"] {
            assert_eq!(output_role(name), None, "{name}");
        }
        for (name, role) in [
            ("obs_0", InputRole::Observation),
            ("visual_observation_0", InputRole::Observation),
            ("action_masks", InputRole::ActionMask),
            ("state_ins", InputRole::State),
            ("h_in", InputRole::State),
            ("policy/h_in:0", InputRole::State),
            ("obs:0", InputRole::Observation),
        ] {
            assert_eq!(input_role(name).0, role, "{name}");
        }
    }
}
