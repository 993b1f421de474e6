//! An actor: one stream of experience.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use uuid::Uuid;

use super::{group::ActorGroup, routers::Place};
use crate::{policy::PolicySlot, trajectory::StepSchema};

/// One stream of experience: an id, a policy, a random stream, and the group that holds its steps.
#[derive(Debug)]
pub struct Actor {
    /// Ordinal within the agent; never used twice.
    pub ordinal: u32,
    id: Mutex<Uuid>,
    /// No `ArcSwap`: dropping one visits a record of every thread that ever read any, which adds up over a million actors.
    policy: Mutex<Arc<PolicySlot>>,
    removed: AtomicBool,
    /// The router that batches its single calls.
    pub(super) place: Mutex<Place>,
    /// Changed only under the agent's structure lock.
    pub(super) home: Mutex<Home>,
}

/// Where an actor's steps are.
#[derive(Debug, Default)]
pub(super) struct Home {
    /// Actions drawn so far; while the actor is in a group, the group counts.
    pub(super) draws: u64,
    /// What its policy remembers of it; empty at the start of an episode. While the actor is in a group, the group has it.
    pub(super) memory: Vec<u8>,
    /// Whether the actor is in an episode that is not recorded, because recording was off when it acted.
    pub(super) muted: bool,
    /// The group whose block holds the actor's newest steps, and the column there.
    pub(super) group: Option<(Arc<ActorGroup>, usize)>,
}

impl Actor {
    pub(super) fn new(ordinal: u32, id: Uuid, policy: Arc<PolicySlot>) -> Self {
        Self {
            ordinal,
            id: Mutex::new(id),
            policy: Mutex::new(policy),
            removed: AtomicBool::new(false),
            place: Mutex::default(),
            home: Mutex::default(),
        }
    }

    /// The actor's id now.
    pub fn id(&self) -> Uuid {
        *self.id.lock()
    }

    /// The policy that it follows now.
    pub fn policy(&self) -> Arc<PolicySlot> {
        self.policy.lock().clone()
    }

    /// Whether it was removed.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// What the actor observed when it acted last, or what its policy observes if it has not.
    pub fn observed(&self) -> Arc<StepSchema> {
        let home = self.home.lock().group.clone();
        let acted = home
            .and_then(|(group, _)| group.state.lock().work.as_ref().map(|work| work.layout.segments[0].schema.clone()));
        acted.unwrap_or_else(|| self.policy().current().schema.clone())
    }

    /// Empties what its policy remembers of it. The caller holds the structure lock, and no group's.
    pub(super) fn forget(&self) {
        let mut home = self.home.lock();
        home.memory.clear();
        let group = home.group.clone();
        drop(home);
        if let Some((group, column)) = group
            && let Some(work) = &mut group.state.lock().work
        {
            work.forget(column);
        }
    }

    pub(super) fn set_id(&self, id: Uuid) {
        *self.id.lock() = id;
    }

    pub(super) fn set_policy(&self, policy: Arc<PolicySlot>) {
        *self.policy.lock() = policy;
    }

    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
    }
}
