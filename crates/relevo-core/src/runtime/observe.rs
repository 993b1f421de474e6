//! What the last actions earned: rewards, ends of episodes and final observations, written into the row of the action.

use std::sync::Arc;

use super::{
    actor::Actor,
    group::{ActorGroup, Work},
    shared::AgentShared,
};
use crate::{
    error::{Error, Result},
    trajectory::{ColumnSpec, FinalObservation, Flags, LastObservation},
};

/// One value for all actors, or one for each, in the caller's order.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a, T> {
    /// The same for all.
    Same(T),
    /// One for each.
    Each(&'a [T]),
}

impl<T: Copy> Values<'_, T> {
    fn get(&self, row: usize) -> T {
        match self {
            Self::Same(value) => *value,
            Self::Each(values) => values[row],
        }
    }
}

/// Rewards, in the precision in which they came; recorded as float64.
#[derive(Debug, Clone, Copy)]
pub enum Rewards<'a> {
    /// The rewards are not known.
    Unknown,
    /// As float64.
    Float64(Values<'a, f64>),
    /// As float32.
    Float32(&'a [f32]),
}

impl From<f64> for Rewards<'_> {
    fn from(reward: f64) -> Self {
        Self::Float64(Values::Same(reward))
    }
}

impl<'a> From<&'a [f64]> for Rewards<'a> {
    fn from(rewards: &'a [f64]) -> Self {
        Self::Float64(Values::Each(rewards))
    }
}

impl<'a> From<&'a [f32]> for Rewards<'a> {
    fn from(rewards: &'a [f32]) -> Self {
        Self::Float32(rewards)
    }
}

impl Rewards<'_> {
    /// Copies all rewards, in the caller's order; `false` where they are not known.
    fn copy_to(&self, target: &mut [f64]) -> bool {
        match self {
            Self::Unknown => return false,
            Self::Float64(Values::Same(reward)) => target.fill(*reward),
            Self::Float64(Values::Each(rewards)) => target.copy_from_slice(rewards),
            Self::Float32(rewards) => {
                target.iter_mut().zip(*rewards).for_each(|(target, reward)| *target = f64::from(*reward));
            }
        }
        true
    }

    /// The reward in `row`, as float64; `None` where it is not known.
    pub fn get(&self, row: usize) -> Option<f64> {
        match self {
            Self::Unknown => None,
            Self::Float64(values) => Some(values.get(row)),
            Self::Float32(values) => Some(f64::from(values[row])),
        }
    }
}

/// The observations after the last actions of episodes, where they are known.
#[derive(Debug, Clone, Default)]
pub struct FinalObservations {
    /// The caller's rows, ascending.
    pub rows: Vec<u32>,
    /// For each of them, the bytes of all observation columns.
    pub bytes: Vec<u8>,
    /// For each of them, the observed texts, in the order of the agent's extra columns.
    pub texts: Vec<String>,
    /// What they look like.
    pub columns: Vec<ColumnSpec>,
}

impl FinalObservations {
    fn get(&self, row: usize) -> Option<LastObservation<'_>> {
        let at = self.rows.binary_search(&(row as u32)).ok()?;
        let size: usize = self.columns.iter().map(ColumnSpec::row_bytes).sum();
        let texts = self.texts.len() / self.rows.len();
        let bytes = self.bytes.get(at * size..(at + 1) * size)?;
        Some(LastObservation { bytes, texts: self.texts.get(at * texts..(at + 1) * texts)? })
    }

    /// Refuses final observations that are of another kind than those of the block that the step is in.
    fn check(&self, work: &Work) -> Result<()> {
        if self.rows.is_empty()
            || (self.columns == work.layout.schema().observations
                && self.texts.len() == self.rows.len() * work.block.observed_texts())
        {
            return Ok(());
        }
        Err(Error::Contract(
            "the final observations are not of the kind that these actors observed when they acted; give them for the actors \
             of each policy in a call of its own"
                .into(),
        ))
    }
}

/// What the last action of each actor earned.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// Rewards.
    pub rewards: Rewards<'a>,
    /// Which episodes the environment ended: not 0 for those.
    pub terminated: Values<'a, u8>,
    /// Which episodes something outside the environment's rules ended: not 0 for those.
    pub truncated: Values<'a, u8>,
}

impl<'a> Outcome<'a> {
    /// Rewards of steps that ended no episode.
    pub fn new(rewards: impl Into<Rewards<'a>>) -> Self {
        Self { rewards: rewards.into(), terminated: Values::Same(0), truncated: Values::Same(0) }
    }
}

impl Outcome<'_> {
    /// The ends in `row` as bits of [`Flags`].
    fn flags(&self, row: usize) -> u8 {
        (if self.terminated.get(row) == 0 { 0 } else { Flags::TERMINATED })
            | (if self.truncated.get(row) == 0 { 0 } else { Flags::TRUNCATED })
    }
}

impl ActorGroup {
    /// Records what the last action of each actor of the group earned, if that needs no waiting: gives `false`, with
    /// nothing done, while another thread is in a call of this group, and where an actor's open step is in another one.
    ///
    /// # Errors
    /// [`Error::State`] where an actor has no open step; then nothing is recorded for any of them.
    pub fn try_observe(&self, outcome: &Outcome<'_>, finals: &FinalObservations) -> Result<bool> {
        let agent = self.agent()?;
        agent.check_here()?;
        let Some(mut state) = self.state.try_lock() else { return Ok(false) };
        agent.check_running()?;
        if !state.leased {
            return Ok(false);
        }
        let Some(work) = &mut state.work else { return Ok(false) };
        finals.check(work)?;
        let row = work.open_row.ok_or_else(|| no_open_step(&self.actors[0]))?;
        let cells = work.block.cells(row);
        if let Some(column) = work.block.flags[cells.clone()].iter().position(|flags| !Flags(*flags).has(Flags::OPEN)) {
            return Err(no_open_step(&self.actors[work.caller_row(column)]));
        }
        if work.order.is_none() && outcome.rewards.copy_to(&mut work.block.rewards[cells.clone()]) {
            let mut ended = 0;
            for (caller_row, flags) in work.block.flags[cells].iter_mut().enumerate() {
                let end = outcome.flags(caller_row);
                ended |= end;
                *flags = (*flags & !Flags::OPEN) | Flags::REWARDED | end;
            }
            if ended != 0 {
                // Few of many end in one step: only for those is it worth looking for a final observation.
                for column in (0..work.layout.columns()).filter(|column| outcome.flags(*column) != 0) {
                    work.close(row, column, finals.get(column));
                }
            }
        } else {
            for column in 0..work.layout.columns() {
                work.note(row, column, outcome, finals, work.caller_row(column));
            }
        }
        Ok(true)
    }

    /// The same, waiting where that is needed.
    pub fn observe(&self, outcome: &Outcome<'_>, finals: &FinalObservations) -> Result<()> {
        observe_each(&*self.agent()?, &self.actors, outcome, finals, true)
    }
}

/// Records what the last actions of `actors` earned, wherever their open steps are. Actors without an open step are an
/// error where `strict`, and passed over where not.
pub(super) fn observe_each(
    agent: &AgentShared,
    actors: &[Arc<Actor>],
    outcome: &Outcome<'_>,
    finals: &FinalObservations,
    strict: bool,
) -> Result<()> {
    agent.check_here()?;
    // The structure lock keeps every actor where it is.
    let _structure = agent.structure.lock();
    agent.check_running()?;
    let homes: Vec<_> = actors.iter().map(|actor| actor.home.lock().group.clone()).collect();
    for ((caller_row, actor), home) in actors.iter().enumerate().zip(&homes) {
        let open = match home {
            None => false,
            Some((group, column)) => match &group.state.lock().work {
                Some(work) if work.is_open(*column) => {
                    if finals.get(caller_row).is_some() {
                        finals.check(work)?;
                    }
                    true
                }
                _ => false,
            },
        };
        // An actor that was removed since it acted has kept its step; the others must not lose theirs for it.
        if strict && !open && !actor.is_removed() {
            return Err(no_open_step(actor));
        }
    }
    for (caller_row, home) in homes.into_iter().enumerate() {
        let Some((group, column)) = home else { continue };
        let mut state = group.state.lock();
        let Some(work) = &mut state.work else { continue };
        if let (Some(row), true) = (work.open_row, work.is_open(column)) {
            work.note(row, column, outcome, finals, caller_row);
        }
    }
    Ok(())
}

impl Work {
    fn is_open(&self, column: usize) -> bool {
        self.open_row.is_some_and(|row| Flags(self.block.flags[self.block.cells(row).start + column]).has(Flags::OPEN))
    }

    /// Writes the reward and the end of one step.
    fn note(
        &mut self,
        row: usize,
        column: usize,
        outcome: &Outcome<'_>,
        finals: &FinalObservations,
        caller_row: usize,
    ) {
        let cell = self.block.cells(row).start + column;
        let mut flags = (self.block.flags[cell] & !Flags::OPEN) | outcome.flags(caller_row);
        if let Some(reward) = outcome.rewards.get(caller_row) {
            self.block.rewards[cell] = reward;
            flags |= Flags::REWARDED;
        }
        self.block.flags[cell] = flags;
        self.close(row, column, finals.get(caller_row));
    }

    /// Takes in the final observation, if the episode ended with this step.
    fn close(&mut self, row: usize, column: usize, last: Option<LastObservation<'_>>) {
        let cell = self.block.cells(row).start + column;
        let flags = Flags(self.block.flags[cell]);
        if !flags.ended() {
            return;
        }
        self.ended = true;
        self.unmute(column);
        self.forget(column);
        if let Some(last) = last
            && self.layout.recorded
            && flags.has(Flags::RECORDED)
        {
            self.block.flags[cell] |= Flags::FINAL;
            self.block.finals.push(FinalObservation { row: row as u32, column: column as u32 });
            self.block.final_bytes.extend_from_slice(last.bytes);
            self.block.final_texts.extend_from_slice(last.texts);
        }
    }
}

fn no_open_step(actor: &Actor) -> Error {
    let id = actor.id();
    let error = format!(
        "observe was called for actor {id}, which has no open step; call act first, and observe once after each act"
    );
    Error::State(error).of_actor(id)
}
