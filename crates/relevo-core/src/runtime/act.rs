//! One call of `act`: observations into the block, one forward pass a policy, the head, the committed row.
//!
//! Nothing is committed before everything has worked: a call that fails leaves the block, the random streams, the memories and
//! the open steps as they were. (Only where the group had to be leased anew for the call have its open steps ended.)

use std::{
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::MutexGuard;

use super::{
    actor::Actor,
    batch::{NamedTensors, Rows},
    group::{ActorGroup, GroupState, Work, still_waiting},
    handover::Caller,
    memory::Memory,
    placed::Placed,
    results::ActionResults,
    segment::{Failure, SegmentCall},
    shared::AgentShared,
    ticket::{Request, Ticket},
};
use crate::{
    error::{Error, Result},
    policy::PolicySlot,
    spec::{DType, shape_text},
    trajectory::{ColumnSpec, Flags, StepSchema},
};

/// Which rows of a call belong into trajectories.
#[derive(Debug, Clone, Copy, Default)]
pub enum Recording<'a> {
    /// All of them.
    #[default]
    All,
    /// None of them.
    Nothing,
    /// Those that are not 0, in the caller's order.
    Rows(&'a [u8]),
}

impl Recording<'_> {
    /// Whether the caller's row `row` is recorded.
    pub fn keeps(&self, row: usize) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::Rows(rows) => rows[row] != 0,
        }
    }
}

/// What a call of `act` may ask for; by default all rows are recorded, and the heads decide how to act.
#[derive(Debug, Clone, Copy, Default)]
pub struct ActOptions<'a> {
    /// Whether to act without randomness; `None` leaves it to each policy's head.
    pub deterministic: Option<bool>,
    /// Which rows are recorded.
    pub record: Recording<'a>,
}

/// A call of `act` that has begun: it holds the group's lock until it is run or dropped.
///
/// The caller checks what it was given ([`ActCall::schema`], [`ActCall::check_mask`]), prepares the group where that is
/// needed, writes observations and masks into the block's next row, and runs. It is in steps because a caller from Python
/// must hold the interpreter lock while it reads arrays, and must not while it waits or while a policy runs.
#[derive(Debug)]
pub struct ActCall<'a> {
    pub(super) group: &'a Arc<ActorGroup>,
    pub(super) agent: Arc<AgentShared>,
    pub(super) guard: MutexGuard<'a, GroupState>,
    masked: bool,
    pub(super) placed: Option<Placed<'a>>,
    pub(super) extras_given: bool,
}

impl ActorGroup {
    /// Begins a call; `None` while another thread is in a call of this group.
    ///
    /// # Errors
    /// [`Error::State`] where the agent is not running or the only actor's last call still waits for its action, and the
    /// error that stopped a recording, once.
    pub fn try_begin(self: &Arc<Self>) -> Result<Option<ActCall<'_>>> {
        let agent = self.agent()?;
        agent.check_here()?;
        let Some(guard) = self.state.try_lock() else { return Ok(None) };
        // Checked behind the lock: `shutdown` takes it after it has changed the phase.
        agent.check_running()?;
        if self.waiting.load(Ordering::Acquire) {
            return Err(still_waiting(&self.actors[0]));
        }
        Ok(Some(ActCall { group: self, agent, guard, masked: false, placed: None, extras_given: false }))
    }

    /// Whether the only actor's last call still waits for its action.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether the last call of one of its actors, by any handle, still waits for its action.
    pub fn has_waiting(&self) -> bool {
        let waits = |actor: &Arc<Actor>| actor.home.lock().group.as_ref().is_some_and(|(group, _)| group.is_waiting());
        self.is_waiting() || self.actors.iter().any(waits)
    }

    /// Waits until no other thread is in a call of this group.
    pub fn wait(&self) {
        drop(self.state.lock());
    }
}

impl ActorGroup {
    /// One call, from its beginning to its answer: `observations` holds the bytes of each observation column of all actors,
    /// `mask` one byte for each actor and choice. The call of a handle on one actor shares its pass with other callers'.
    ///
    /// # Errors
    /// [`Error::Contract`] for what does not fit the policies, [`Error::Inference`] where a policy fails, [`Error::State`] where
    /// the agent does not run.
    pub fn act(
        self: &Arc<Self>,
        observations: &[&[u8]],
        mask: Option<&[u8]>,
        options: &ActOptions<'_>,
    ) -> Result<Arc<ActionResults>> {
        let ActOptions { deterministic, record } = *options;
        if self.actors.len() == 1 {
            let request = Request { observations, mask, deterministic, record: record.keeps(0), extras: &[] };
            return self.begin(observations, mask)?.submit(&request, Caller::Blocks)?.wait();
        }
        let mut call = self.begin(observations, mask)?;
        for (index, bytes) in observations.iter().enumerate() {
            call.write_observations(index, bytes)?;
        }
        if let Some(mask) = mask {
            call.write_mask(mask)?;
        }
        call.run(options)
    }

    /// Sends the call of a handle on one actor in, and does not wait: the ticket is a future.
    ///
    /// # Errors
    /// As [`ActorGroup::act`], but what the policy says comes with the ticket.
    pub fn request(self: &Arc<Self>, request: &Request<'_>) -> Result<Ticket> {
        self.begin(request.observations, request.mask)?.submit(request, Caller::Polls)
    }

    /// A call that is checked and prepared.
    fn begin(self: &Arc<Self>, observations: &[&[u8]], mask: Option<&[u8]>) -> Result<ActCall<'_>> {
        let mut call = loop {
            match self.try_begin()? {
                Some(call) => break call,
                None => self.wait(),
            }
        };
        let check = |call: &ActCall<'_>| {
            call.check_observations(observations)?;
            mask.map_or(Ok(()), |mask| call.check_mask(mask.len() / self.actors.len(), mask))
        };
        check(&call)?;
        if call.needs_preparation(mask.is_some()) {
            call.prepare(mask.is_some())?;
            // The actors may follow another policy since.
            check(&call)?;
        }
        Ok(call)
    }
}

impl ActCall<'_> {
    fn check_observations(&self, observations: &[&[u8]]) -> Result<()> {
        let (schema, rows) = (self.schema(), self.group.actors.len());
        let wanted: Vec<_> = schema.observations.iter().map(|column| column.row_bytes() * rows).collect();
        let given: Vec<_> = observations.iter().map(|bytes| bytes.len()).collect();
        if wanted == given {
            return Ok(());
        }
        Err(Error::Contract(format!(
            "the observations of {rows} actors must hold {wanted:?} bytes, a number for each observation column, but {given:?} \
             came"
        )))
    }

    /// How many actors act.
    pub fn actors(&self) -> usize {
        self.group.actors.len()
    }

    /// Whether [`ActCall::prepare`] has something to do, which may take a while.
    pub fn needs_preparation(&self, masked: bool) -> bool {
        !self.is_leased(masked) || self.is_full()
    }

    /// Makes the group ready: its actors at home here, room for a row, and for masks if this call has them.
    pub fn prepare(&mut self, masked: bool) -> Result<()> {
        if !self.is_leased(masked) {
            let known = self.guard.work.as_ref().and_then(|work| work.layout.mask);
            // What was known of masks is of the policies that the actors followed then.
            let mask =
                if masked { Some(self.mask_width()?) } else { known.filter(|_| self.mask_width().ok() == known) };
            self.group.lease(&self.agent, &mut self.guard, mask)?;
        }
        if self.is_full()
            && let Some(work) = &mut self.guard.work
        {
            // Steps that are open stay so: should this call fail, they can still be observed.
            work.send(&self.agent, |_| true);
        }
        Ok(())
    }

    /// Whether every actor is at home here, in a block that has room for masks if there are any.
    fn is_leased(&self, masked: bool) -> bool {
        self.guard.leased && self.guard.work.as_ref().is_some_and(|work| !masked || work.layout.mask.is_some())
    }

    /// Whether the block takes no row more.
    fn is_full(&self) -> bool {
        self.guard.work.as_ref().is_some_and(|work| work.block.is_full())
    }

    /// How many choices a mask speaks of.
    fn mask_width(&self) -> Result<usize> {
        let mut widths = self.group.actors.iter().map(|actor| (actor.policy().current().mask_width(), actor));
        let mut found = None;
        for (width, actor) in &mut widths {
            let Some(width) = width else {
                return Err(Error::Contract(format!(
                    "a mask was given, but the policy `{}` can use none: it has no mask input, and its head does not choose \
                     from logits",
                    actor.policy().name()
                )));
            };
            if *found.get_or_insert(width) != width {
                return Err(Error::Contract(
                    "a mask was given, but the policies of these actors choose from different numbers of actions; act for \
                     each policy in a call of its own"
                        .into(),
                ));
            }
        }
        found.ok_or_else(|| Error::Config("there are no actors to act for".into()))
    }

    /// What the group's policies observe and give. Checked against before [`ActCall::prepare`], whose work should not be done
    /// for a call that fails anyway.
    pub fn schema(&self) -> Arc<StepSchema> {
        match &self.guard.work {
            Some(work) if self.guard.leased => work.layout.segments[0].schema.clone(),
            _ => self.group.actors[0].policy().current().schema.clone(),
        }
    }

    /// Checks a mask of all actors, in the caller's order: one byte a choice, 0 where it is not allowed.
    ///
    /// # Errors
    /// [`Error::Contract`] where the policies can use no mask, or not this one, and where an actor may do nothing.
    pub fn check_mask(&self, columns: usize, mask: &[u8]) -> Result<()> {
        let known = match &self.guard.work {
            Some(Work { layout, .. }) if self.guard.leased => layout.mask,
            _ => None,
        };
        let width = known.map_or_else(|| self.mask_width(), Ok)?;
        if columns != width {
            return Err(Error::Contract(format!(
                "mask must have a column for each of the {width} actions that the policy chooses from, but has {columns}"
            )));
        }
        // Mostly every choice is allowed, and nothing has to be looked up.
        if !mask.contains(&0) {
            return Ok(());
        }
        let mut policy: Option<Arc<PolicySlot>> = None;
        let mut branches: Vec<usize> = Vec::new();
        for (row, (choices, actor)) in mask.chunks_exact(width.max(1)).zip(&self.group.actors).enumerate() {
            let follows = actor.policy();
            if !policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, &follows)) {
                branches.clear();
                branches.extend_from_slice(follows.current().mask_branches());
                policy = Some(follows);
            }
            let mut first = 0;
            for (branch, count) in branches.iter().enumerate() {
                let of_branch = choices.get(first..first + count).unwrap_or(&[]);
                first += count;
                if of_branch.iter().all(|allowed| *allowed == 0) {
                    let of = if branches.len() == 1 { String::new() } else { format!(" in branch {branch}") };
                    let id = actor.id();
                    let error = Error::Contract(format!(
                        "the mask of actor {id} (row {row}) allows no action{of}; at least one of the {count} must be allowed"
                    ));
                    return Err(error.of_actor(id));
                }
            }
        }
        Ok(())
    }

    /// Copies observation column `index` of all actors, in the caller's order, into the block.
    pub fn write_observations(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        let work = work(&mut self.guard)?;
        let (row, size) = (work.next_row(), work.block.observation_bytes(index));
        let target = work.block.observation_row_mut(index, row);
        if bytes.len() != target.len() {
            return Err(changed_meanwhile());
        }
        copy_in_order(bytes, target, size, work.order.as_deref());
        Ok(())
    }

    /// Copies a mask that was checked into the block.
    pub fn write_mask(&mut self, mask: &[u8]) -> Result<()> {
        self.masked = true;
        let work = work(&mut self.guard)?;
        let width = work.layout.mask.unwrap_or(0);
        let cells = work.block.cells(work.next_row());
        let target = &mut work.block.masks[cells.start * width..cells.end * width];
        if mask.len() != target.len() {
            return Err(changed_meanwhile());
        }
        copy_in_order(mask, target, width, work.order.as_deref());
        for allowed in target {
            *allowed = u8::from(*allowed != 0);
        }
        Ok(())
    }

    /// Runs the policies and commits the row.
    ///
    /// # Errors
    /// [`Error::Contract`] for an observation with NaN, [`Error::Inference`] where a policy fails or gives NaN.
    pub fn run(mut self, options: &ActOptions<'_>) -> Result<Arc<ActionResults>> {
        let (masked, placed) = (self.masked, self.placed.as_ref());
        let work = work(&mut self.guard)?;
        // Not what a call before it gave, which failed.
        work.extras_given = self.extras_given;
        let row = work.next_row();
        work.require_extras(!matches!(options.record, Recording::Nothing))?;
        work.refuse_nan(row, placed)?;
        if let (Some(width), false) = (work.layout.mask, masked) {
            let cells = work.block.cells(row);
            work.block.masks[cells.start * width..cells.end * width].fill(1);
        }
        let mut raw = None;
        for segment in 0..work.policies.len() {
            let call = SegmentCall {
                row,
                masked,
                placed,
                seed: self.agent.seed,
                deterministic: options.deterministic,
                keep_outputs: self.agent.keep_outputs && work.policies.len() == 1,
            };
            raw = match work.run_segment(segment, &call) {
                Ok(raw) => raw,
                Err(Failure { error, column }) => {
                    let actor = column.map(|column| &self.group.actors[work.caller_row(column)]);
                    // Removing takes this group's lock.
                    drop(self.guard);
                    actor.inspect(|actor| self.agent.drop_actor(actor));
                    return Err(error);
                }
            };
        }
        work.memories.iter_mut().for_each(Memory::advance);
        // Recording may have begun since what it needs was copied.
        let keeps = work.layout.recorded && !matches!(options.record, Recording::Nothing);
        let lacks = keeps && placed.is_some_and(Placed::any_away);
        work.commit(row, options.record, self.agent.records() && !lacks);
        Ok(work.hand_out(row, raw))
    }
}

impl Work {
    /// The row that the next call fills.
    fn next_row(&self) -> usize {
        if self.layout.recorded { self.block.rows } else { 0 }
    }

    fn refuse_nan(&self, row: usize, placed: Option<&Placed<'_>>) -> Result<()> {
        let cells = self.block.cells(row);
        for (index, column) in self.layout.schema().observations.iter().enumerate() {
            if placed.is_some_and(|placed| placed.is_away(index)) {
                continue;
            }
            let size = column.row_bytes();
            let bytes = &self.block.observations[index].as_slice()[cells.start * size..cells.end * size];
            if let Some(element) = first_nan(bytes, column.dtype) {
                let elements = (size / column.dtype.size()).max(1);
                return Err(self.nan(column, element / elements, element % elements));
            }
        }
        Ok(())
    }

    /// The error for NaN in `element` of what the actor in `at` observes.
    pub(super) fn nan(&self, column: &ColumnSpec, at: usize, element: usize) -> Error {
        let actor = self.layout.actors[at].id;
        let error = Error::Contract(format!(
            "the {} of actor {actor} (row {}) holds NaN at element {element} of its {}; check the environment",
            if column.key.is_empty() { "observation" } else { &column.key },
            self.caller_row(at),
            shape_text(&column.shape)
        ));
        error.of_actor(actor)
    }

    /// Takes the answer to a single call over into the next row, whose block has room, and commits it.
    pub(super) fn take_answer(
        &mut self,
        rows: &Rows,
        from: usize,
        record: Recording<'_>,
        recording: bool,
    ) -> Arc<ActionResults> {
        let row = self.next_row();
        for (index, bytes) in rows.observations.iter().enumerate() {
            let target = self.block.observation_row_mut(index, row);
            let size = target.len();
            target.copy_from_slice(&bytes.as_slice()[from * size..][..size]);
        }
        if let Some(width) = self.layout.mask {
            self.block.masks[row * width..][..width].copy_from_slice(&rows.masks[from * width..][..width]);
        }
        let sizes = self.layout.segments[0].schema.actions.iter().map(ColumnSpec::row_bytes);
        for (size, (target, answer)) in sizes.zip(self.block.actions.iter_mut().zip(&rows.answers.actions)) {
            target.as_slice_mut()[row * size..][..size].copy_from_slice(&answer.as_slice()[from * size..][..size]);
        }
        if let Some(log_prob) = rows.answers.log_probs.get(from) {
            self.block.log_probs[row] = *log_prob;
        }
        if let Some(value) = rows.answers.values.get(from) {
            self.block.values[row] = *value;
        }
        self.block.versions[row] = rows.version;
        for memory in &mut self.memories {
            memory.take_answer(rows, from);
        }
        self.commit(row, record, recording);
        self.hand_out(row, rows.outputs(from))
    }

    /// Makes the row count. `recording` says whether the agent records at all now.
    fn commit(&mut self, row: usize, record: Recording<'_>, recording: bool) {
        let cells = self.block.cells(row);
        let recorded = Flags::ACTED | Flags::OPEN | Flags::RECORDED;
        let unrecorded = Flags::ACTED | Flags::OPEN;
        let flags = &mut self.block.flags[cells];
        match record {
            Recording::All => flags.fill(recorded),
            Recording::Nothing => flags.fill(unrecorded),
            Recording::Rows(rows) => match &self.order {
                None => flags
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(flag, row)| *flag = if *row == 0 { unrecorded } else { recorded }),
                Some(order) => {
                    for (flag, row) in flags.iter_mut().zip(order) {
                        *flag = if rows[*row as usize] == 0 { unrecorded } else { recorded };
                    }
                }
            },
        }
        if !recording || self.has_muted() {
            self.mute(self.block.cells(row), recording);
        }
        self.commit_extras(row);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos());
        self.block.timestamps[row] = now as i64;
        for stream in &mut self.streams {
            stream.draw += 1;
        }
        if self.layout.recorded {
            self.block.rows = row + 1;
        }
        self.open_row = Some(row);
    }

    /// Copies what the caller gets out of the block, in the caller's order.
    fn hand_out(&mut self, row: usize, raw: Option<NamedTensors>) -> Arc<ActionResults> {
        let (block, layout, policies, order) = (&self.block, &self.layout, &self.policies, self.order.as_deref());
        let cells = block.cells(row);
        let sizes = layout.schema().actions.iter().map(ColumnSpec::row_bytes);
        let actions = sizes.zip(&block.actions);
        let actions = actions.map(|(size, column)| (size, &column.as_slice()[cells.start * size..cells.end * size]));
        let log_probs = if block.log_probs.is_empty() { &[] } else { &block.log_probs[cells.clone()] };
        let values = if block.values.is_empty() { &[] } else { &block.values[cells.clone()] };
        self.results.fill(|results: &mut ActionResults| {
            for ((size, actions), target) in actions.zip(&mut results.actions) {
                copy_out_of_order(actions, target.bytes_mut(), size, order);
            }
            for (segment, policy) in layout.segments.iter().zip(policies) {
                let Some((index, bounds)) = policy.bounds() else { continue };
                let (width, actions) = (bounds.width(), results.actions[*index].values_mut::<f32>());
                match order {
                    None => bounds.apply(&mut actions[segment.from * width..segment.until * width]),
                    Some(order) => order[segment.from..segment.until].iter().for_each(|row| {
                        bounds.apply(&mut actions[*row as usize * width..(*row as usize + 1) * width]);
                    }),
                }
            }
            for (index, segment) in layout.segments.iter().enumerate() {
                let version = block.versions[row * layout.segments.len() + index];
                let columns = segment.from..segment.until;
                let Some(order) = order else {
                    results.policy_versions[columns.clone()].fill(version);
                    if let (Some(target), true) = (&mut results.log_probs, segment.schema.log_prob) {
                        target[columns.clone()].copy_from_slice(&log_probs[columns.clone()]);
                    }
                    if let (Some(target), true) = (&mut results.values, segment.schema.value) {
                        target[columns.clone()].copy_from_slice(&values[columns]);
                    }
                    continue;
                };
                for column in columns {
                    let target = order[column] as usize;
                    results.policy_versions[target] = version;
                    if let (Some(target_log_probs), true) = (&mut results.log_probs, segment.schema.log_prob) {
                        target_log_probs[target] = log_probs[column];
                    }
                    if let (Some(target_values), true) = (&mut results.values, segment.schema.value) {
                        target_values[target] = values[column];
                    }
                }
            }
            results.outputs = raw;
        })
    }
}

pub(super) fn work<'a>(guard: &'a mut MutexGuard<'_, GroupState>) -> Result<&'a mut Work> {
    guard.work.as_mut().ok_or_else(unprepared)
}

/// The error for arguments that were checked against another policy than the one that the actors follow now.
pub(super) fn changed_meanwhile() -> Error {
    Error::Contract(
        "the actors were assigned to a policy that observes or chooses something else while the call began; call again with \
         what that one takes"
            .into(),
    )
}

pub(super) fn unprepared() -> Error {
    Error::State("a call must be prepared before it is filled and run".into())
}

/// Column c of `target` gets row order[c] of `source`.
fn copy_in_order(source: &[u8], target: &mut [u8], size: usize, order: Option<&[u32]>) {
    match order {
        None => target.copy_from_slice(source),
        Some(order) => {
            for (target, row) in target.chunks_exact_mut(size.max(1)).zip(order) {
                target.copy_from_slice(&source[*row as usize * size..(*row as usize + 1) * size]);
            }
        }
    }
}

/// Row order[c] of `target` gets column c of `source`.
fn copy_out_of_order(source: &[u8], target: &mut [u8], size: usize, order: Option<&[u32]>) {
    match order {
        None => target.copy_from_slice(source),
        Some(order) => {
            for (source, row) in source.chunks_exact(size.max(1)).zip(order) {
                target[*row as usize * size..(*row as usize + 1) * size].copy_from_slice(source);
            }
        }
    }
}

/// Position of the first NaN element of `bytes`, which need not be aligned.
pub fn first_nan(bytes: &[u8], dtype: DType) -> Option<usize> {
    let position = |size: usize, is_nan: fn(&[u8]) -> bool| bytes.chunks_exact(size).position(is_nan);
    match dtype {
        DType::Float32 => match bytemuck::try_cast_slice(bytes) {
            Ok(values) => crate::policy::first_nan_row(values, 1),
            Err(_) => position(4, |bytes| bytemuck::pod_read_unaligned::<f32>(bytes).is_nan()),
        },
        DType::Float64 => position(8, |bytes| bytemuck::pod_read_unaligned::<f64>(bytes).is_nan()),
        DType::Float16 => {
            position(2, |bytes| half::f16::from_bits(bytemuck::pod_read_unaligned::<u16>(bytes)).is_nan())
        }
        _ => None,
    }
}
