//! What an agent's handles share: the table of actors, the locks, and the phase that the agent is in.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use uuid::Uuid;

use super::{actor::Actor, config::OnError, group::ActorGroup, routers::Routers};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
    policy::PolicySlot,
    trajectory::{ExtraSpec, Recorder, Sealer},
};

/// What an agent's handles share.
#[derive(Debug)]
pub(super) struct AgentShared {
    pub(super) seed: u64,
    pub(super) keep_outputs: bool,
    /// The columns that callers fill.
    pub(super) extras: Arc<[ExtraSpec]>,
    /// Held while actors move between groups, and by everything that needs several groups at once.
    pub(super) structure: Mutex<()>,
    pub(super) phase: AtomicUsize,
    pub(super) birthplace: Birthplace,
    pub(super) recorder: OnceLock<Arc<Recorder>>,
    pub(super) routers: Routers,
    pub(super) on_error: OnError,
    /// Whether actions are recorded now.
    pub(super) recording: AtomicBool,
    /// Actors that were removed because their policy failed for them.
    pub(super) dropped: AtomicU64,
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
    /// By ordinal: how far random streams had been used when the run was gone on with.
    pub(super) draws: FxHashMap<u32, u64>,
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
        self.check_phase()?;
        match self.recorder().and_then(|recorder| recorder.untold_failure()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// An error unless the agent runs.
    pub(super) fn check_phase(&self) -> Result<()> {
        match self.phase.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            BUILT => Err(Error::State("the agent has not started; call start() or use `with agent:`".into())),
            _ => Err(shut_down()),
        }
    }

    /// An error in another process, and where the agent has ended. One that has not started may be changed.
    pub(super) fn check_changeable(&self) -> Result<()> {
        self.check_here()?;
        if self.phase.load(Ordering::Acquire) == STOPPED { Err(shut_down()) } else { Ok(()) }
    }

    /// Removes an actor; its open episode is kept as an interrupted one.
    pub(super) fn remove_actor(&self, id: Uuid) -> Result<()> {
        self.check_here()?;
        let _structure = self.structure.lock();
        self.check_changeable()?;
        let actor = self.one(id)?;
        actor.remove();
        let home = actor.home.lock().group.clone();
        if let Some((group, column)) = home {
            group.release(self, &actor, column, true);
        }
        self.routers.remove(&actor);
        let mut table = self.table.write();
        table.by_id.remove(&id);
        table.by_ordinal.remove(&actor.ordinal);
        drop(table);
        if let Some(recorder) = self.recorder() {
            recorder.interrupt(actor.ordinal);
        }
        Ok(())
    }

    /// Removes an actor whose policy failed for it, if the agent was told to.
    pub(super) fn drop_actor(&self, actor: &Actor) {
        // Where somebody else removed it before, there is nothing left to do.
        if self.on_error == OnError::DropActor && self.remove_actor(actor.id()).is_ok() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            let id = actor.id();
            tracing::warn!(actor = %id, "the actor {id} was removed because its policy failed for it");
        }
    }

    /// The actor with this id.
    pub(super) fn one(&self, id: Uuid) -> Result<Arc<Actor>> {
        let mut found = self.find(&[id])?;
        found.pop().ok_or_else(|| Error::State("an actor vanished while it was looked up".into()))
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

    /// Whether actions are recorded now.
    pub(super) fn records(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
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

/// The error for calls of an agent that has ended.
pub(super) fn shut_down() -> Error {
    Error::State("the agent was shut down; build a new one".into())
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
        // Actors and groups hold each other. In the order in which they were made: what lies side by side is freed faster.
        for actor in self.table.get_mut().by_ordinal.values() {
            actor.home.lock().group = None;
        }
    }
}
