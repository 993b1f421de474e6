//! What a call of `act` hands back. The buffers are used again once the caller has let go of them.

use std::sync::Arc;

use crate::{tensor::Tensor, trajectory::ColumnSpec};

/// Actions and what the policy said of them, one row for each actor, in the order of the call.
#[derive(Debug)]
pub struct ActionResults {
    /// The actions, a tensor for each column of the policy's; the first axis counts the actors.
    pub actions: Vec<Tensor>,
    /// The keys of the action columns; empty for the only one.
    pub action_keys: Vec<String>,
    /// Log-probabilities, if a policy tells them; NaN for actors whose policy does not.
    pub log_probs: Option<Vec<f32>>,
    /// Values, if a policy tells them; NaN for actors whose policy does not.
    pub values: Option<Vec<f32>>,
    /// The version of the policy that acted.
    pub policy_versions: Vec<u64>,
    /// Raw outputs by name, if they are kept.
    pub outputs: Option<Vec<(String, Tensor)>>,
}

impl ActionResults {
    fn new(actions: &[ColumnSpec], rows: usize, log_prob: bool, value: bool) -> Self {
        let tensor = |action: &ColumnSpec| {
            let shape: Vec<usize> = std::iter::once(rows).chain(action.shape.iter().copied()).collect();
            Tensor::zeros(action.dtype, &shape)
        };
        Self {
            actions: actions.iter().map(tensor).collect(),
            action_keys: actions.iter().map(|action| action.key.clone()).collect(),
            log_probs: log_prob.then(|| vec![f32::NAN; rows]),
            values: value.then(|| vec![f32::NAN; rows]),
            policy_versions: vec![0; rows],
            outputs: None,
        }
    }
}

/// A caller that keeps the actions of its last few steps, as many loops do, still causes no allocation.
const SLOTS: usize = 4;

/// Results that are used in turn. Made anew where the group's layout changes.
#[derive(Debug)]
pub(super) struct ResultsRing {
    actions: Vec<ColumnSpec>,
    rows: usize,
    log_prob: bool,
    value: bool,
    slots: Vec<Arc<ActionResults>>,
    next: usize,
}

impl ResultsRing {
    pub(super) fn new(actions: Vec<ColumnSpec>, rows: usize, log_prob: bool, value: bool) -> Self {
        Self { actions, rows, log_prob, value, slots: Vec::new(), next: 0 }
    }

    /// Lets `write` fill the next results; those that the caller still holds are replaced first.
    pub(super) fn fill(&mut self, write: impl FnOnce(&mut ActionResults)) -> Arc<ActionResults> {
        self.next = (self.next + 1) % SLOTS;
        let make = || Arc::new(ActionResults::new(&self.actions, self.rows, self.log_prob, self.value));
        if self.slots.len() < SLOTS {
            self.slots.resize_with(SLOTS, make);
        }
        let slot = &mut self.slots[self.next];
        if Arc::get_mut(slot).is_none() {
            *slot = make();
        }
        if let Some(results) = Arc::get_mut(slot) {
            write(results);
        }
        slot.clone()
    }
}
