//! A group: actors that act in one call, and the block that holds their newest steps.
//!
//! The group's lock is its own; calls for other groups never touch it. What needs several groups at once (taking an actor
//! over from another group, removing, renaming) happens under the agent's structure lock, which is always taken first.
//! So a call holds either its own lock alone, or the structure lock and then locks one after the other.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use crossbeam_queue::ArrayQueue;
use parking_lot::{Mutex, MutexGuard};

use super::{actor::Actor, memory::Memory, results::ResultsRing, shared::AgentShared, ticket::Lane};
use crate::{
    error::{Error, Result},
    policy::{PolicySlot, random::Stream},
    trajectory::{ActorTag, Block, BlockLayout, ExtraCells, ExtraSpec, Flags, Segment, Spares, StepSchema},
};

/// Emptied blocks that wait to be filled again.
const SPARES: usize = 2;

/// Actors that act in one call.
#[derive(Debug)]
pub struct ActorGroup {
    /// The actors, in the order of the caller's rows.
    pub actors: Vec<Arc<Actor>>,
    pub(super) agent: Weak<AgentShared>,
    pub(super) state: Mutex<GroupState>,
    /// Whether the only actor's single call waits for its answer.
    pub(super) waiting: AtomicBool,
}

#[derive(Debug)]
pub(super) struct GroupState {
    /// Whether every actor of the group is at home here. Another group that acts for one of them takes this away.
    pub(super) leased: bool,
    /// What a leased group works with; stays when the lease goes, because open steps may still be in its block.
    pub(super) work: Option<Work>,
    /// Where a group of one actor batches its calls.
    pub(super) lane: Lane,
}

/// What a group works with between two changes of its make-up.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) layout: Arc<BlockLayout>,
    /// The policy of each segment of the layout.
    pub(super) policies: Vec<Arc<PolicySlot>>,
    /// The caller's row of each column, where columns are not in the caller's order.
    pub(super) order: Option<Vec<u32>>,
    /// Each column's place in its actor's random stream.
    pub(super) streams: Vec<Stream>,
    /// What the policy of each segment remembers of its actors.
    pub(super) memories: Vec<Memory>,
    pub(super) block: Block,
    pub(super) spares: Spares,
    /// The extra columns of the row to come.
    pub(super) extras: Vec<ExtraCells>,
    /// Whether the call under way has given them.
    pub(super) extras_given: bool,
    /// The row that was acted last, while it may still be observed.
    pub(super) open_row: Option<usize>,
    /// Whether an episode ended since the block was last sent.
    pub(super) ended: bool,
    pub(super) results: ResultsRing,
    /// Columns whose episode is not recorded, because recording was off when they acted; empty where there are none.
    muted: Vec<bool>,
}

impl ActorGroup {
    pub(super) fn new(agent: Weak<AgentShared>, actors: Vec<Arc<Actor>>) -> Self {
        let state = GroupState { leased: false, work: None, lane: Lane::default() };
        Self { actors, agent, state: Mutex::new(state), waiting: AtomicBool::new(false) }
    }

    /// The columns that callers fill.
    ///
    /// # Errors
    /// [`Error::State`] where the agent is gone.
    pub fn extras(&self) -> Result<Arc<[ExtraSpec]>> {
        Ok(self.agent()?.extras.clone())
    }

    pub(super) fn agent(&self) -> Result<Arc<AgentShared>> {
        self.agent.upgrade().ok_or_else(|| Error::State("the agent of these actors is gone; keep it alive".into()))
    }

    /// Makes every actor of the group at home here, taking them over from the groups where they were.
    pub(super) fn lease(
        self: &Arc<Self>,
        agent: &AgentShared,
        guard: &mut MutexGuard<'_, GroupState>,
        mask: Option<usize>,
    ) -> Result<()> {
        // Order of locks: the structure's first. While it is awaited, this group's lock is free.
        let _structure = MutexGuard::unlocked(guard, || agent.structure.lock());
        agent.check_running()?;
        // Another thread may have made a call of this group meanwhile.
        if self.waiting.load(Ordering::Acquire) {
            return Err(still_waiting(&self.actors[0]));
        }
        guard.lane.leave();
        if let Some(gone) = self.actors.iter().find(|actor| actor.is_removed()) {
            return Err(Error::ActorNotFound {
                id: gone.id(),
                hint: "it was removed after this handle was made; ask for a new handle by agent.actors()".into(),
            });
        }
        // The open row's steps, if any, are over: their actors are about to act again.
        if let Some(work) = &mut guard.work {
            work.send(agent, |_| false);
            for (column, stream) in work.streams.iter().enumerate() {
                let actor = &self.actors[work.caller_row(column)];
                let mut home = actor.home.lock();
                if matches!(&home.group, Some((group, _)) if Arc::ptr_eq(group, self)) {
                    home.draws = stream.draw;
                    home.muted = work.is_muted(column);
                    home.memory = work.remembered(actor, column);
                }
            }
        }
        for actor in &self.actors {
            let elsewhere = match &actor.home.lock().group {
                Some((group, column)) if !Arc::ptr_eq(group, self) => Some((group.clone(), *column)),
                _ => None,
            };
            if let Some((group, column)) = elsewhere
                && !group.release(agent, actor, column, false)
            {
                return Err(still_waiting(actor));
            }
        }
        let work = Work::new(&self.actors, mask, agent.recorder().is_some(), &agent.extras)?;
        for (column, stream) in work.streams.iter().enumerate() {
            let mut home = self.actors[work.caller_row(column)].home.lock();
            home.draws = stream.draw;
            home.memory = Vec::new();
            home.group = Some((self.clone(), column));
        }
        guard.work = Some(work);
        guard.leased = true;
        Ok(())
    }

    /// Lets one actor go: its steps are sent, its random stream and memory go back to it. Gives `false`, with nothing done, where its
    /// call still waits for an answer, unless it must go. The caller holds the structure lock, and not this group's.
    pub(super) fn release(&self, agent: &AgentShared, actor: &Actor, column: usize, must: bool) -> bool {
        let mut state = self.state.lock();
        if self.waiting.load(Ordering::Acquire) {
            if !must {
                return false;
            }
            // Its caller is to be told, and not only when the batch has waited for all others.
            state.lane.hurry();
        }
        state.leased = false;
        state.lane.leave();
        let Some(work) = &mut state.work else { return true };
        work.send(agent, |other| other != column);
        let mut home = actor.home.lock();
        home.draws = work.streams[column].draw;
        home.muted = work.is_muted(column);
        home.memory = work.remembered(actor, column);
        home.group = None;
        true
    }

    /// Has nobody wait for the only actor any more where it batched its calls. While one waits, the answer to that does so.
    pub(super) fn leave_batcher(&self) {
        let mut state = self.state.lock();
        if !self.waiting.load(Ordering::Acquire) {
            state.lane.leave();
        }
    }

    /// The same, if the only actor batches its calls elsewhere now.
    pub(super) fn follow_placement(&self, agent: &AgentShared) {
        let [actor] = &self.actors[..] else { return };
        let GroupState { work: Some(work), lane, .. } = &mut *self.state.lock() else { return };
        if !self.waiting.load(Ordering::Acquire) {
            lane.follow(agent, actor, &work.policies[0]);
        }
    }

    /// Sends all finished steps to the recorder.
    pub(super) fn seal(&self, agent: &AgentShared) {
        if let Some(work) = &mut self.state.lock().work {
            work.send(agent, |_| true);
        }
    }

    /// Sends everything, open steps as well: nothing will be told of them any more.
    pub(super) fn seal_last(&self, agent: &AgentShared) {
        if let Some(work) = &mut self.state.lock().work
            && let Some(block) = work.detach(|_| false)
            && let Some(recorder) = agent.recorder()
        {
            recorder.submit_last(block);
        }
    }

    /// Sends the steps of an idle group in which an episode ended, if that needs no waiting.
    pub(super) fn seal_idle(&self, recorder: &crate::trajectory::Recorder) {
        if let Some(mut state) = self.state.try_lock()
            && let Some(work) = &mut state.work
            && work.ended
            && recorder.has_room(work.block.bytes())
            && let Some(block) = work.detach(|_| true)
        {
            // The recorder's own thread asks, and it cannot wait for itself: there is room, and nobody else takes it while
            // that thread does not work. Should a caller be faster, the block is one too many, not one too long.
            recorder.submit_now(block, work.spares.clone());
        }
    }
}

impl Work {
    fn new(actors: &[Arc<Actor>], mask: Option<usize>, recorded: bool, extras: &Arc<[ExtraSpec]>) -> Result<Self> {
        // Columns of one policy lie side by side, so that its rows are one contiguous batch.
        let mut policies: Vec<Arc<PolicySlot>> = Vec::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        for (row, actor) in actors.iter().enumerate() {
            let policy = actor.policy();
            let index = policies.iter().position(|known| Arc::ptr_eq(known, &policy)).unwrap_or_else(|| {
                policies.push(policy);
                members.push(Vec::new());
                policies.len() - 1
            });
            members[index].push(row as u32);
        }
        let mut segments = Vec::with_capacity(policies.len());
        let mut memories = Vec::with_capacity(policies.len());
        let mut from = 0;
        for (policy, members) in policies.iter().zip(&members) {
            let version = policy.current();
            let mut memory = Memory::new(version.memory.clone(), members.len());
            for (row, member) in members.iter().enumerate() {
                memory.load(row, &actors[*member as usize].home.lock().memory);
            }
            memories.push(memory);
            let mut schema = version.schema.clone();
            if mask.is_some() || !extras.is_empty() {
                schema = Arc::new(StepSchema { mask, extras: extras.to_vec(), ..(*schema).clone() });
            }
            let until = from + members.len();
            segments.push(Segment { from, until, policy: policy.name().clone(), schema });
            from = until;
        }
        check_alike(&segments)?;
        let order = members.concat();
        let columns = || order.iter().map(|row| &actors[*row as usize]);
        let layout = Arc::new(BlockLayout {
            actors: columns().map(|actor| ActorTag { ordinal: actor.ordinal, id: actor.id() }).collect(),
            segments,
            mask,
            extras: extras.clone(),
            recorded,
        });
        let mut muted: Vec<_> = columns().map(|actor| actor.home.lock().muted).collect();
        if !muted.contains(&true) {
            muted.clear();
        }
        Ok(Self {
            policies,
            memories,
            streams: columns().map(|actor| Stream { actor: actor.ordinal, draw: actor.home.lock().draws }).collect(),
            block: Block::new(layout.clone(), layout.capacity_after(0)),
            extras: extras.iter().map(|spec| ExtraCells::new(spec, layout.columns())).collect(),
            extras_given: false,
            spares: Arc::new(ArrayQueue::new(SPARES)),
            muted,
            open_row: None,
            ended: false,
            results: ResultsRing::new(
                layout.schema().actions.clone(),
                layout.columns(),
                layout.log_prob(),
                layout.value(),
            ),
            order: (!order.iter().enumerate().all(|(column, row)| column == *row as usize)).then_some(order),
            layout,
        })
    }

    /// Whether any column's episode is not recorded.
    pub(super) fn has_muted(&self) -> bool {
        !self.muted.is_empty()
    }

    fn is_muted(&self, column: usize) -> bool {
        self.muted.get(column).is_some_and(|muted| *muted)
    }

    /// Says which of the steps in `flags` are not recorded, because recording is off, or was off in the same episode.
    pub(super) fn mute(&mut self, cells: std::ops::Range<usize>, recording: bool) {
        if !recording {
            self.muted.clear();
            self.muted.resize(self.layout.columns(), true);
        }
        for (flags, _) in self.block.flags[cells].iter_mut().zip(&self.muted).filter(|(_, muted)| **muted) {
            *flags &= !Flags::RECORDED;
        }
    }

    /// The next step of `column` begins an episode.
    pub(super) fn unmute(&mut self, column: usize) {
        if let Some(muted) = self.muted.get_mut(column) {
            *muted = false;
            if !self.muted.contains(&true) {
                self.muted.clear();
            }
        }
    }

    /// The caller's row of `column`.
    pub(super) fn caller_row(&self, column: usize) -> usize {
        self.order.as_ref().map_or(column, |order| order[column] as usize)
    }

    /// Sends the block to the recorder, waiting while that is behind. Open steps of the columns that `keep` names stay
    /// open in the next block.
    pub(super) fn send(&mut self, agent: &AgentShared, keep: impl Fn(usize) -> bool) {
        if let Some(block) = self.detach(keep)
            && let Some(recorder) = agent.recorder()
        {
            recorder.submit(block, self.spares.clone());
        }
    }

    /// Takes the filled block out and puts an empty one in its place.
    fn detach(&mut self, keep: impl Fn(usize) -> bool) -> Option<Block> {
        if self.block.rows == 0 || !self.layout.recorded {
            return None;
        }
        let full = self.block.rows == self.block.capacity;
        let capacity = if full { self.layout.capacity_after(self.block.capacity) } else { self.block.capacity };
        let fresh = match self.spares.pop() {
            Some(spare) if spare.capacity >= capacity => spare,
            _ => Block::new(self.layout.clone(), capacity),
        };
        let mut block = std::mem::replace(&mut self.block, fresh);
        block.draws.extend(self.streams.iter().map(|stream| stream.draw));
        self.ended = false;
        if let Some(row) = self.open_row.take() {
            let cells = block.cells(row);
            let stays = |column: usize, flags: u8| Flags(flags).has(Flags::OPEN) && keep(column);
            if block.flags[cells.clone()].iter().enumerate().any(|(column, flags)| stays(column, *flags)) {
                let new_row = self.block.copy_row(&block, row);
                let new_cells = self.block.cells(new_row);
                for (column, (old, new)) in
                    block.flags[cells].iter_mut().zip(&mut self.block.flags[new_cells]).enumerate()
                {
                    *new = if stays(column, *old) { std::mem::take(old) } else { 0 };
                }
                self.open_row = Some(new_row);
            }
        }
        Some(block)
    }
}

/// The error for a second call of an actor.
pub(super) fn still_waiting(actor: &Actor) -> Error {
    let id = actor.id();
    let error =
        format!("actor {id} still waits for the action of another call; make one call at a time for each actor");
    Error::State(error).of_actor(id)
}

/// One call takes one array of observations and gives one array of actions, whatever the policies.
fn check_alike(segments: &[Segment]) -> Result<()> {
    for pair in segments.windows(2) {
        let (left, right) = (&pair[0], &pair[1]);
        if left.schema.observations != right.schema.observations || left.schema.actions != right.schema.actions {
            return Err(Error::Contract(format!(
                "the policies `{}` and `{}` take or give different tensors, so their actors cannot act in one call; make a \
                 handle for the actors of each by agent.actors(ids)",
                left.policy, right.policy
            )));
        }
    }
    Ok(())
}
