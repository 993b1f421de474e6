//! Observations of a call that lie on a device, and that the policy reads there.

use std::sync::Arc;

use super::{
    act::{ActCall, Recording, changed_meanwhile, work},
    group::ActorGroup,
};
use crate::{
    error::{Error, Result},
    policy::PolicyVersion,
    tensor::{DeviceId, DeviceMemory},
};

/// Where observations of a call lie, column by column.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    /// The version that reads them there. It is the one that runs, whatever serves by then: another may read elsewhere.
    pub(super) version: Arc<PolicyVersion>,
    /// `None` for columns that lie in the block alone.
    pub(super) columns: Vec<Option<DeviceMemory<'a>>>,
    /// Whether a column is in the block as well.
    copied: Vec<bool>,
}

impl<'a> Placed<'a> {
    pub(super) fn new(version: Arc<PolicyVersion>) -> Self {
        let columns = version.schema.observations.len();
        Self { version, columns: vec![None; columns], copied: vec![true; columns] }
    }

    pub(super) fn place(&mut self, index: usize, memory: DeviceMemory<'a>, copied: bool) {
        (self.columns[index], self.copied[index]) = (Some(memory), copied);
    }

    /// Whether column `index` is not in the block.
    pub(super) fn is_away(&self, index: usize) -> bool {
        !self.copied[index]
    }

    /// Whether any column is not in the block.
    pub(super) fn any_away(&self) -> bool {
        self.copied.contains(&false)
    }

    /// Where row `row` of each column lies.
    pub(super) fn row(&self, row: usize) -> Vec<Option<DeviceMemory<'a>>> {
        let columns = self.columns.iter().zip(&self.version.schema.observations);
        let part = |memory: &DeviceMemory<'a>, size: usize| memory.part(row * size..(row + 1) * size);
        columns.map(|(memory, column)| memory.as_ref().map(|memory| part(memory, column.row_bytes()))).collect()
    }
}

impl ActorGroup {
    /// A device in whose memory [`ActCall::place_observations`] may take observations, beside that of the CPU, as far as can be
    /// said before a call. Calls of one actor share their pass with others, and so their memory.
    pub fn device(&self) -> DeviceId {
        match &self.actors[..] {
            [first, _, ..] => first.policy().current().loaded.model.device(),
            _ => DeviceId::CPU,
        }
    }
}

impl<'a> ActCall<'a> {
    /// Whether the policy reads observations where they lie on `device`: it runs there, it is the only one of these actors, and
    /// nothing is normalised on the way.
    pub fn reads_in_place(&self, device: DeviceId) -> bool {
        self.reader(device).is_some()
    }

    fn reader(&self, device: DeviceId) -> Option<Arc<PolicyVersion>> {
        let [policy] = &self.guard.work.as_ref()?.policies[..] else { return None };
        let version = policy.current();
        (!policy.normalizes() && version.loaded.model.device() == device).then_some(version)
    }

    /// Whether observations go into a recording, so that they must be in the block.
    pub fn keeps_observations(&self, record: Recording<'_>) -> bool {
        let recorded = self.guard.work.as_ref().is_some_and(|work| work.layout.recorded);
        recorded && self.agent.records() && !matches!(record, Recording::Nothing)
    }

    /// Tells where observation column `index` of all actors, in the caller's order, lies on the policy's device, to be read there.
    /// `copy` holds the same bytes, and goes into the block. A column without is not looked through for NaN, and should the
    /// call be recorded after all, its rows are not.
    ///
    /// # Errors
    /// [`Error::State`] where the policy does not read them there; see [`ActCall::reads_in_place`].
    pub fn place_observations(&mut self, index: usize, memory: DeviceMemory<'a>, copy: Option<&[u8]>) -> Result<()> {
        let device = memory.device();
        let version = self.reader(device).ok_or_else(|| {
            Error::State(format!(
                "the policy does not read observations in the memory of {device}; copy them to the host"
            ))
        })?;
        if let Some(bytes) = copy {
            self.write_observations(index, bytes)?;
        }
        let work = work(&mut self.guard)?;
        let rows = work.layout.columns();
        let column = work.layout.schema().observations.get(index);
        if column.is_none_or(|column| column.row_bytes() * rows != memory.len()) {
            return Err(changed_meanwhile());
        }
        let placed = self.placed.get_or_insert_with(|| Placed::new(version));
        placed.place(index, memory, copy.is_some());
        Ok(())
    }
}
