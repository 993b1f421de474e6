//! A single call: one actor's request, in a batch with those of other callers, and its answer.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    act::{ActCall, Recording, first_nan, unprepared},
    actor::Actor,
    batch::{Batch, Row},
    batcher::{Batcher, Entry},
    baton::Baton,
    group::{ActorGroup, GroupState, still_waiting},
    handover::Caller,
    results::ActionResults,
    seat::{Seat, is_expected},
    shared::{AgentShared, shut_down},
};
use crate::{
    error::{Error, Result},
    policy::PolicySlot,
    trajectory::ExtraInput,
};

/// What a single call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The bytes of each observation column.
    pub observations: &'a [&'a [u8]],
    /// One byte for each choice, 0 where it is not allowed; checked before.
    pub mask: Option<&'a [u8]>,
    /// Whether to act without randomness; `None` leaves it to the policy's head.
    pub deterministic: Option<bool>,
    /// Whether the step is recorded.
    pub record: bool,
    /// The values of the agent's extra columns, where it has some.
    pub extras: &'a [ExtraInput<'a>],
}

impl<'a> Request<'a> {
    /// A request for an action by the policy's head, recorded, without a mask.
    pub fn new(observations: &'a [&'a [u8]]) -> Self {
        Self { observations, mask: None, deterministic: None, record: true, extras: &[] }
    }
}

/// A single call that has been let in. [`Ticket::wait`] blocks until the answer is there; as a future it does not. Dropped, it
/// is cancelled: nothing is recorded, and the actor may call again.
#[derive(Debug)]
pub struct Ticket {
    group: Arc<ActorGroup>,
    agent: Arc<AgentShared>,
    batcher: Arc<Batcher>,
    seat: Arc<Seat>,
    /// `None` once the call has ended.
    batch: Option<Arc<Batch>>,
    row: usize,
    runs: bool,
    record: bool,
    caller: Caller,
    /// Whether the actor's call before came soon after its action.
    soon: bool,
    /// What is woken when the answer is there, where it is awaited as a future.
    waker: Option<Waker>,
}

/// How a group of one actor stands with its batcher.
#[derive(Debug, Default)]
pub(super) struct Lane {
    at: Option<(Arc<Batcher>, Arc<Seat>)>,
    /// The placement of actors that the batcher goes back to.
    placement: u64,
    /// When it had its last answer, in nanoseconds of the router's clock.
    answered: u64,
}

/// Threads that are on their way at a time, beside the one that ran the batch: while one works, the others wake up. Of 1, 2 and 3
/// with 64 Python threads on 2 cores: 140,000, 175,000 and 165,000 calls a second.
const BATONS: usize = 2;

/// How often a caller that waits looks after other things. Short enough for Ctrl-C to feel immediate.
const PAUSE: Duration = Duration::from_millis(50);

/// A call soon after an action comes within this, in nanoseconds.
const SOON: u64 = 100_000;

impl Lane {
    /// The batcher for the actor's next call, and its seat there.
    fn at(
        &mut self,
        agent: &AgentShared,
        actor: &Actor,
        policy: &Arc<PolicySlot>,
    ) -> Result<(Arc<Batcher>, Arc<Seat>)> {
        self.follow(agent, actor, policy);
        if let Some((batcher, seat)) = &self.at {
            return Ok((batcher.clone(), seat.clone()));
        }
        let batcher = agent.routers.batcher(actor, policy).ok_or_else(shut_down)?;
        let seat = Seat::new(&batcher);
        self.at = Some((batcher.clone(), seat.clone()));
        Ok((batcher, seat))
    }

    /// Has the batch that the actor's call waits in go now.
    pub(super) fn hurry(&self) {
        if let Some((batcher, _)) = &self.at {
            batcher.hurry_all();
        }
    }

    /// Leaves the batcher where the actor has been placed elsewhere since it came there.
    pub(super) fn follow(&mut self, agent: &AgentShared, actor: &Actor, policy: &Arc<PolicySlot>) {
        let placement = agent.routers.placement();
        if self.placement == placement {
            return;
        }
        let batcher = agent.routers.batcher(actor, policy);
        let stays = matches!((&self.at, &batcher), (Some((known, _)), Some(batcher)) if Arc::ptr_eq(known, batcher));
        if !stays {
            self.leave();
        }
        self.placement = placement;
    }

    /// Tells the batcher that the actor will not call there again.
    pub(super) fn leave(&mut self) {
        if let Some((_, seat)) = self.at.take() {
            seat.leave();
        }
    }
}

impl ActCall<'_> {
    /// Sends the call of a group of one actor into a batch with others. `caller` says how it will wait.
    ///
    /// # Errors
    /// [`Error::Contract`] for an observation with NaN, [`Error::State`] where the agent stops, or the handle has several
    /// actors.
    pub fn submit(self, request: &Request<'_>, caller: Caller) -> Result<Ticket> {
        let ActCall { group, agent, mut guard, .. } = self;
        if group.is_waiting() {
            return Err(still_waiting(&group.actors[0]));
        }
        let GroupState { work: Some(work), lane, .. } = &mut *guard else { return Err(unprepared()) };
        work.extras_given = work.write_extras(request.extras)?;
        work.require_extras(request.record)?;
        let ([policy], [stream], [memory]) = (&work.policies[..], &work.streams[..], &mut work.memories[..]) else {
            return Err(unprepared());
        };
        for (column, bytes) in work.layout.schema().observations.iter().zip(request.observations) {
            if let Some(element) = first_nan(bytes, column.dtype) {
                return Err(work.nan(column, 0, element));
            }
        }
        let (batcher, seat, came, Entry { batch, row, runs }) = loop {
            let (batcher, seat) = lane.at(&agent, &group.actors[0], policy)?;
            let came = batcher.now();
            let row = Row {
                observations: request.observations,
                mask: request.mask,
                deterministic: request.deterministic,
                stream: *stream,
                memory,
                came,
            };
            if caller == Caller::Blocks {
                seat.occupy();
            }
            if let Some(entry) = batcher.push(seat.come_back(), &row, caller) {
                break (batcher, seat, came, entry);
            }
            // The router was taken away since; where the agent stops, there is no other one.
            lane.at = None;
        };
        memory.sent = true;
        group.waiting.store(true, Ordering::Release);
        Ok(Ticket {
            group: group.clone(),
            agent,
            batcher,
            seat,
            batch: Some(batch),
            row,
            runs,
            record: request.record,
            soon: came.saturating_sub(lane.answered) < SOON,
            waker: None,
            caller,
        })
    }
}

impl Ticket {
    /// Blocks until the answer is there, or runs the batch if that is up to this caller.
    ///
    /// # Errors
    /// [`Error::Inference`] where the policy fails, or gives NaN, for this actor; [`Error::ActorNotFound`] where the actor was
    /// removed meanwhile; [`Error::State`] where the agent was shut down.
    pub fn wait(mut self) -> Result<Arc<ActionResults>> {
        if let Some(batch) = &self.batch {
            self.await_answer(batch, None)?;
            // Two by two, all are awake soon.
            batch.latch.wake(2, self.batcher.now());
        }
        self.finish()
    }

    /// The same for threads that need a lock when they go on, as that of the Python interpreter: they are woken one after the
    /// other. The baton is for the caller to keep or drop once it has the lock.
    ///
    /// `keep_waiting`, if there is one, is called now and then while the thread sleeps; an error of its cancels the call.
    ///
    /// # Errors
    /// As [`Ticket::wait`], and that of `keep_waiting`.
    pub fn wait_in_turn(
        mut self,
        keep_waiting: Option<&mut dyn FnMut() -> Result<()>>,
    ) -> (Result<Arc<ActionResults>>, Option<Baton>) {
        let Some(batch) = &self.batch else { return (self.finish(), None) };
        let awaited = self.await_answer(batch, keep_waiting);
        // Also where the call is cancelled: it may have been woken just then.
        let baton = Baton::new(&self.batcher, batch, self.soon);
        (awaited.and_then(|()| self.finish()), baton)
    }

    fn await_answer(&self, batch: &Arc<Batch>, keep_waiting: Option<&mut dyn FnMut() -> Result<()>>) -> Result<()> {
        Baton::pass_on();
        if self.runs {
            self.batcher.run(batch);
            batch.latch.wake(BATONS, self.batcher.now());
            return Ok(());
        }
        let Some(keep_waiting) = keep_waiting else {
            batch.latch.wait();
            return Ok(());
        };
        let mut ended = Ok(());
        batch.latch.wait_while(PAUSE, || {
            ended = keep_waiting();
            ended.is_ok()
        });
        ended
    }

    /// The pass that the call shares with others.
    pub fn pass(&self) -> Option<Pass> {
        let batch = self.batch.clone()?;
        batch.join();
        Some(Pass { batcher: self.batcher.clone(), batch: Some(batch) })
    }

    /// Records the step and hands out its action, once the answer is there.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    pub fn finish(&mut self) -> Result<Arc<ActionResults>> {
        let batch = self.batch.take_if(|batch| batch.latch.is_open());
        let batch = batch.ok_or_else(|| Error::State("the call has ended, or has no answer yet".into()))?;
        let result = self.commit(&batch);
        self.batcher.take_back(batch);
        let Err(Failure { error, of_policy }) = result else { return result.map_err(|failure| failure.error) };
        if of_policy {
            self.agent.drop_actor(&self.group.actors[0]);
        }
        Err(error)
    }

    fn commit(&self, batch: &Batch) -> Result<Arc<ActionResults>, Failure> {
        let actor = &self.group.actors[0];
        let mut state = self.group.state.lock();
        self.group.waiting.store(false, Ordering::Release);
        let GroupState { work: Some(work), lane, leased } = &mut *state else { return Err(unprepared().into()) };
        lane.answered = self.batcher.now();
        if is_expected(self.caller) {
            self.seat.go_out(batch.epoch());
        }
        if *leased {
            lane.follow(&self.agent, actor, &self.batcher.slot);
        } else {
            // It was removed, or assigned to another policy, while this call waited.
            self.seat.leave();
        }
        let rows = &*batch.rows();
        if actor.is_removed() {
            return Err(Error::ActorNotFound {
                id: actor.id(),
                hint: "it was removed while its call waited, and nothing was recorded".into(),
            }
            .into());
        }
        self.agent.check_phase()?;
        if let Some(error) = rows.failure(self.row) {
            return Err(match error {
                Error::Inference(reason) => {
                    let id = actor.id();
                    let error = Error::Inference(format!("actor {id}: {reason}; nothing was recorded")).of_actor(id);
                    Failure { error, of_policy: rows.policy_failed }
                }
                other => other.clone().into(),
            });
        }
        if work.block.rows == work.block.capacity {
            work.send(&self.agent, |_| true);
        }
        let record = if self.record { Recording::All } else { Recording::Nothing };
        Ok(work.take_answer(rows, self.row, record, self.agent.records()))
    }
}

impl Future for Ticket {
    type Output = Result<Arc<ActionResults>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(batch) = &self.batch {
            let known = self.waker.as_ref().is_some_and(|known| known.will_wake(context.waker()));
            if known && !batch.latch.is_open() {
                return Poll::Pending;
            }
            if !batch.latch.poll(context.waker()) {
                self.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(self.finish())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        if self.batcher.is_elsewhere() {
            return std::mem::forget(batch);
        }
        if self.runs && !batch.latch.is_open() {
            // Others wait for it. (It is open where running it has just panicked.)
            self.batcher.run(&batch);
            batch.latch.wake(BATONS, self.batcher.now());
        }
        if is_expected(self.caller)
            && let Some(epoch) = batch.abandon()
        {
            self.batcher.leave(epoch);
        }
        self.batcher.take_back(batch);
        self.group.waiting.store(false, Ordering::Release);
    }
}

/// The forward pass that some calls share, for an event loop that waits for all of them at once.
#[derive(Debug)]
pub struct Pass {
    batcher: Arc<Batcher>,
    /// Always there; taken out only at the end.
    batch: Option<Arc<Batch>>,
}

impl Pass {
    /// The same pass once more.
    #[must_use]
    pub fn again(&self) -> Self {
        if let Some(batch) = &self.batch {
            batch.join();
        }
        Self { batcher: self.batcher.clone(), batch: self.batch.clone() }
    }

    /// Whether `ticket` is one of those calls.
    pub fn serves(&self, ticket: &Ticket) -> bool {
        matches!((&self.batch, &ticket.batch), (Some(left), Some(right)) if Arc::ptr_eq(left, right))
    }

    /// Whether the answers are there; if not, `waker` is woken then.
    pub fn poll_ready(&self, waker: &Waker) -> bool {
        self.batch.as_ref().is_none_or(|batch| batch.latch.poll(waker))
    }

    /// Whether the answers are there.
    pub fn is_ready(&self) -> bool {
        self.batch.as_ref().is_none_or(|batch| batch.latch.is_open())
    }

    /// Lets it wait for no other calls. A short one runs here and now, a longer one on the router's thread.
    pub fn hurry(&self) {
        if let Some(batch) = &self.batch {
            self.batcher.hurry(batch);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let batch = self.batch.take();
        if self.batcher.is_elsewhere() {
            return std::mem::forget(batch);
        }
        if let Some(batch) = batch {
            self.batcher.take_back(batch);
        }
    }
}

/// Why a call has no action, and whether that was the policy's fault.
struct Failure {
    error: Error,
    of_policy: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, of_policy: false }
    }
}
