//! What an agent's handles share: the table of actors, the locks, and the phase that the agent is in.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use super::{actor::Actor, group::ActorGroup};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
    policy::PolicySlot,
    trajectory::{Recorder, Sealer},
};

/// What an agent's handles share.
#[derive(Debug)]
pub(super) struct AgentShared {
    pub(super) seed: u64,
    pub(super) keep_outputs: bool,
    /// Held while actors move between groups, and by everything that needs several groups at once.
    pub(super) structure: Mutex<()>,
    pub(super) phase: AtomicUsize,
    pub(super) birthplace: Birthplace,
    pub(super) recorder: OnceLock<Arc<Recorder>>,
    pub(super) table: RwLock<Table>,
    pub(super) groups: Mutex<Vec<Weak<ActorGroup>>>,
}

pub(super) const BUILT: usize = 0;
pub(super) const RUNNING: usize = 1;
pub(super) const STOPPED: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) by_id: HashMap<Uuid, Arc<Actor>>,
    /// In the order in which they were made.
    pub(super) by_ordinal: BTreeMap<u32, Arc<Actor>>,
    pub(super) next_ordinal: u32,
    /// In the order in which they were named; the first is the one that new actors follow.
    pub(super) policies: Vec<Arc<PolicySlot>>,
    /// Policies of actors that brought a model of their own. They go with the last of those actors.
    pub(super) own_policies: Vec<Weak<PolicySlot>>,
}

impl Table {
    /// All policies that somebody may follow: the named ones first.
    pub(super) fn all_policies(&self) -> impl Iterator<Item = Arc<PolicySlot>> {
        self.policies.iter().cloned().chain(self.own_policies.iter().filter_map(Weak::upgrade))
    }
}

impl AgentShared {
    /// An error unless the agent runs, in this process; also the error that stopped the recording, once.
    pub(super) fn check_running(&self) -> Result<()> {
        self.check_here()?;
        match self.phase.load(Ordering::Acquire) {
            RUNNING => {}
            BUILT => return Err(Error::State("the agent has not started; call start() or use `with agent:`".into())),
            _ => return Err(Error::State("the agent was shut down; build a new one".into())),
        }
        match self.recorder().and_then(|recorder| recorder.untold_failure()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// An error in a process that was forked off. Checked before any lock is taken: a thread that stayed in the parent may
    /// hold it.
    pub(super) fn check_here(&self) -> Result<()> {
        if self.birthplace.is_elsewhere() {
            return Err(Error::State(
                "this process was forked after the agent was made, and its threads stayed in the parent; build an agent of \
                 its own in the child, or start processes by spawn"
                    .into(),
            ));
        }
        Ok(())
    }

    pub(super) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.get()
    }

    pub(super) fn groups(&self) -> Vec<Arc<ActorGroup>> {
        let mut groups = self.groups.lock();
        groups.retain(|group| group.strong_count() > 0);
        groups.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn find(&self, ids: &[Uuid]) -> Result<Vec<Arc<Actor>>> {
        self.check_here()?;
        let table = self.table.read();
        let mut seen = HashSet::with_capacity(ids.len());
        ids.iter()
            .map(|id| {
                if !seen.insert(id) {
                    return Err(Error::Config(format!("the actor {id} is named twice; name each once")));
                }
                table.by_id.get(id).cloned().ok_or_else(|| Error::ActorNotFound {
                    id: *id,
                    hint: format!("there are {} actors, listed by get_actor_ids()", table.by_id.len()),
                })
            })
            .collect()
    }
}

impl Sealer for AgentShared {
    fn seal_idle(&self, recorder: &Recorder) {
        for group in self.groups() {
            group.seal_idle(recorder);
        }
    }
}

impl Drop for AgentShared {
    fn drop(&mut self) {
        if self.birthplace.is_elsewhere() {
            // A lock may be held for ever by a thread that stayed in the parent; the channel to the recorder has one.
            std::mem::forget(std::mem::take(&mut self.recorder));
            return;
        }
        // Actors and groups hold each other.
        for actor in self.table.get_mut().by_id.values() {
            actor.home.lock().group = None;
        }
    }
}
