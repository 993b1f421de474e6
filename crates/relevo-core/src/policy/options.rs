//! What a policy does with its model.

use std::collections::BTreeMap;

use super::{ActionBounds, HeadKind, Normalizer};

/// What a policy does with its model beyond running it. By default the model's contract decides.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyOptions {
    /// How actions come from outputs.
    pub head: Option<HeadKind>,
    /// Numbers of choices of a multi-discrete action's branches, whose logits lie one behind the other.
    /// Empty where the contract knows them, there is one branch, or the outputs' shapes say them.
    pub branches: Vec<usize>,
    /// How continuous actions become the environment's.
    pub bounds: Option<ActionBounds>,
    /// Running statistics of observation inputs, by name.
    pub normalizers: BTreeMap<String, Normalizer>,
    /// Whether the model computes every output, and callers get them.
    pub keep_outputs: bool,
}

impl PolicyOptions {
    /// The options that name a head and leave the rest.
    pub fn with_head(head: HeadKind) -> Self {
        Self { head: Some(head), ..Self::default() }
    }
}
