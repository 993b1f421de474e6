//! The recorder: one thread that cuts episodes out of sealed blocks, numbers them, and hands them to memory and disk.
//!
//! Blocks of one group arrive in order, because the group's lock is held while they are sent, and an actor's steps move
//! from one group to another only after the first has sent its block. So each actor's steps arrive in order.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use crossbeam_queue::ArrayQueue;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use super::{
    block::{Block, Flags},
    builder::{Columns, End, EpisodeBuilder, Finished},
    episode::Episode,
    finals::{Finals, LastObservation},
    index::StreamPlace,
    memory::{Memory, MemoryLimit},
    recorder_stats::RecorderStats,
    run::ModelInfo,
    sink::Sink,
    subscription::{Subscription, WhenFull},
};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
};

/// Bytes of sealed blocks that may wait for the recorder; a caller that would exceed them waits.
const QUEUE_BYTES: usize = 16 << 20;
/// How often gathered episodes are written, and idle groups asked for what they hold.
const TICK: Duration = Duration::from_secs(1);

/// The steps of an open episode that holds this many unwritten bytes go to the disk.
const PART_BYTES: usize = 4 << 20;
/// Those of all open episodes go there where together they hold this many.
const OPEN_BYTES: usize = 16 << 20;

/// Emptied blocks on their way back to the group that fills them.
pub type Spares = Arc<ArrayQueue<Block>>;

/// Something that can send the finished episodes of idle actors to the recorder.
pub trait Sealer: Send + Sync {
    /// Sends what can be sent without waiting.
    fn seal_idle(&self, recorder: &Recorder);
}

/// Where episodes go.
pub struct RecorderConfig {
    /// How much is kept in memory.
    pub memory: MemoryLimit,
    /// The run folder, if there is one.
    pub writer: Option<Sink>,
    /// Number of the first episode.
    pub first_episode: u64,
    /// Whether actors may go on acting after recording has failed. The error reaches one caller in any case.
    pub goes_on: bool,
    /// An episode is truncated when it has so many steps and goes on.
    pub most_steps: Option<NonZeroUsize>,
}

enum Message {
    Block { block: Block, spares: Spares },
    LastBlock(Block),
    Interrupt(u32),
    Model(ModelInfo),
    Flush(Sender<()>),
    Close(Vec<StreamPlace>),
}

#[derive(Debug)]
struct Shared {
    memory: Mutex<Memory>,
    subscriptions: Mutex<Vec<Arc<Subscription>>>,
    stats: RecorderStats,
    /// The error that stopped the recording.
    failure: Mutex<Option<Error>>,
    untold: AtomicBool,
    goes_on: bool,
    /// Bytes of the blocks that wait for the recorder, or are in its hands.
    queued: Mutex<usize>,
    room: Condvar,
    /// Whether the thread is gone. A message that came too late stays in the channel, so nobody may wait for its answer.
    ended: AtomicBool,
}

impl Shared {
    /// Leaves an error for the next caller, and for every flush. The first is the one to tell.
    fn tell(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.untold.store(true, Ordering::Relaxed);
    }

    /// Takes a block's bytes off the queue.
    fn taken(&self, bytes: usize) {
        *self.queued.lock() -= bytes;
        self.room.notify_all();
    }
}

/// The handle on the recorder's thread.
#[derive(Debug)]
pub struct Recorder {
    sender: Sender<Message>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    birthplace: Birthplace,
}

/// The answer to a flush, to be waited for.
#[derive(Debug)]
pub struct Pending {
    answer: Receiver<()>,
    shared: Arc<Shared>,
}

impl Pending {
    /// Waits up to `timeout`; whether the answer has come.
    ///
    /// # Errors
    /// [`Error::State`] where the recorder's thread is gone.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        // Looked at first: an answer that was given before the end must not be missed.
        let ended = self.shared.ended.load(Ordering::Acquire);
        match self.answer.recv_timeout(if ended { Duration::ZERO } else { timeout }) {
            Ok(()) => Ok(true),
            Err(RecvTimeoutError::Timeout) if !ended => Ok(false),
            Err(_) => Err(gone()),
        }
    }
}

fn gone() -> Error {
    Error::State(
        "the recorder's thread has ended before its time, and steps since then are lost; please report this".into(),
    )
}

impl Recorder {
    /// Starts the recorder's thread. `sealer` is asked once a second for what idle actors hold.
    pub fn start(config: RecorderConfig, sealer: Weak<dyn Sealer>) -> Result<Arc<Self>> {
        let (sender, receiver) = unbounded();
        let shared = Arc::new(Shared {
            memory: Mutex::new(Memory::new(config.memory)),
            subscriptions: Mutex::default(),
            stats: RecorderStats::default(),
            failure: Mutex::default(),
            untold: AtomicBool::new(false),
            goes_on: config.goes_on,
            queued: Mutex::new(0),
            room: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        let recorder =
            Arc::new(Self { sender, shared: shared.clone(), thread: Mutex::default(), birthplace: Birthplace::here() });
        let worker = Worker {
            receiver,
            shared,
            sealer,
            recorder: Arc::downgrade(&recorder),
            writer: config.writer,
            disk_failed: false,
            pushed: 0,
            open: FxHashMap::default(),
            open_bytes: 0,
            held_bytes: 0,
            most_steps: config.most_steps,
            memory: config.memory,
            spare_columns: Vec::new(),
            next_episode: config.first_episode,
            last_tick: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("relevo-recorder".into())
            .spawn(move || worker.run())
            .map_err(|error| Error::Config(format!("cannot start the recorder's thread: {error}")))?;
        *recorder.thread.lock() = Some(thread);
        Ok(recorder)
    }

    /// Sends a sealed block; waits while the recorder is behind. It comes back, emptied, through `spares`.
    pub fn submit(&self, block: Block, spares: Spares) {
        self.await_room(&block);
        self.submit_now(block, spares);
    }

    /// Sends the last block of its actors: their open episodes end with it as interrupted ones. Waits while the recorder is
    /// behind.
    pub fn submit_last(&self, block: Block) {
        self.await_room(&block);
        self.send(block, Message::LastBlock);
    }

    fn await_room(&self, block: &Block) {
        let bytes = block.bytes();
        let mut queued = self.shared.queued.lock();
        let mut since = None;
        while *queued > 0 && *queued + bytes > QUEUE_BYTES && !self.shared.ended.load(Ordering::Acquire) {
            since.get_or_insert_with(Instant::now);
            // Woken by the recorder; the time-out is for one that ends without a word.
            self.shared.room.wait_for(&mut queued, Duration::from_millis(50));
        }
        if let Some(since) = since {
            let stats = &self.shared.stats;
            stats.waits.fetch_add(1, Ordering::Relaxed);
            stats.wait_nanoseconds.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Sends a sealed block without waiting.
    pub fn submit_now(&self, block: Block, spares: Spares) {
        self.send(block, |block| Message::Block { block, spares });
    }

    fn send(&self, block: Block, message: impl FnOnce(Block) -> Message) {
        *self.shared.queued.lock() += block.bytes();
        if self.sender.send(message(block)).is_err() {
            self.shared.tell(gone());
        }
    }

    /// Whether [`Recorder::submit`] would find room now for a block of `bytes`.
    pub fn has_room(&self, bytes: usize) -> bool {
        let queued = *self.shared.queued.lock();
        queued == 0 || queued + bytes <= QUEUE_BYTES
    }

    /// Closes the open episode of an actor that is gone as an interrupted one.
    pub fn interrupt(&self, ordinal: u32) {
        drop(self.sender.send(Message::Interrupt(ordinal)));
    }

    /// Adds a model to those that the run names.
    pub fn add_model(&self, model: ModelInfo) {
        drop(self.sender.send(Message::Model(model)));
    }

    /// Asks that all episodes that were sent before be on disk.
    pub fn flush(&self) -> Pending {
        let (answer, pending) = bounded(1);
        drop(self.sender.send(Message::Flush(answer)));
        Pending { answer: pending, shared: self.shared.clone() }
    }

    /// Closes open episodes as interrupted ones, then the run folder, and ends the thread. `streams` is how far the actors'
    /// random streams have been used.
    pub fn close(&self, streams: Vec<StreamPlace>) {
        drop(self.sender.send(Message::Close(streams)));
    }

    /// The trajectories in memory, oldest first.
    pub fn trajectories(&self) -> Vec<Arc<Episode>> {
        self.shared.memory.lock().to_vec()
    }

    /// Trajectories from now on, as they end, for one reader.
    pub fn subscribe(&self, capacity: usize, when_full: WhenFull) -> Arc<Subscription> {
        let subscription = Arc::new(Subscription::new(capacity, when_full));
        self.shared.subscriptions.lock().push(subscription.clone());
        if self.has_ended() {
            subscription.end();
        }
        subscription
    }

    /// Bytes of the blocks that wait for the recorder, or are in its hands.
    pub fn queued(&self) -> usize {
        *self.shared.queued.lock()
    }

    /// What was recorded so far.
    pub fn stats(&self) -> &RecorderStats {
        &self.shared.stats
    }

    /// The error that stopped the recording, if there is one that nobody has seen yet, or nobody may go on after it.
    pub fn untold_failure(&self) -> Option<Error> {
        // The flag spares the hot path the lock.
        if self.shared.untold.load(Ordering::Relaxed)
            && (!self.shared.goes_on || self.shared.untold.swap(false, Ordering::Relaxed))
        {
            return self.shared.failure.lock().clone();
        }
        None
    }

    /// The error that stopped the recording, with what it has cost by now.
    pub fn failure(&self) -> Option<Error> {
        let lost = self.shared.stats.episodes_lost.load(Ordering::Relaxed);
        self.shared.failure.lock().clone().map(|error| match error {
            Error::Trajectory { path, reason } if lost > 0 => {
                Error::Trajectory { path, reason: format!("{reason}; {lost} episodes are not on disk") }
            }
            other => other,
        })
    }

    /// Whether the recorder's thread has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().take();
        if self.birthplace.is_elsewhere() {
            // Not even detached: the system may have given its handle to a thread of this process.
            std::mem::forget(thread);
        } else if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            self.close(Vec::new());
            thread.join().ok();
        }
    }
}

/// The recorder's thread.
struct Worker {
    receiver: Receiver<Message>,
    shared: Arc<Shared>,
    sealer: Weak<dyn Sealer>,
    recorder: Weak<Recorder>,
    writer: Option<Sink>,
    disk_failed: bool,
    /// Episodes that were meant for the disk.
    pushed: u64,
    open: FxHashMap<u32, EpisodeBuilder>,
    /// Bytes that those hold and that have not gone to the disk.
    open_bytes: usize,
    /// Bytes that those hold.
    held_bytes: usize,
    most_steps: Option<NonZeroUsize>,
    memory: MemoryLimit,
    /// Columns of episodes that ended, for those to come.
    spare_columns: Vec<Columns>,
    next_episode: u64,
    last_tick: Instant,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = gone();
            tracing::error!("{error}");
            self.shared.tell(error);
        }
        self.shared.ended.store(true, Ordering::Release);
        for subscription in self.shared.subscriptions.lock().drain(..) {
            subscription.end();
        }
    }
}

impl Worker {
    fn run(mut self) {
        loop {
            match self.receiver.recv_timeout(TICK.saturating_sub(self.last_tick.elapsed())) {
                Ok(Message::Block { mut block, spares }) => {
                    self.cut(&block, false);
                    self.write_parts();
                    self.shared.taken(block.bytes());
                    block.clear();
                    // A spare too many is dropped.
                    drop(spares.push(block));
                }
                Ok(Message::LastBlock(block)) => {
                    self.cut(&block, true);
                    self.shared.taken(block.bytes());
                }
                Ok(Message::Interrupt(ordinal)) => self.interrupt(ordinal),
                Ok(Message::Model(model)) => self.write(|writer| writer.add_model(model)),
                Ok(Message::Flush(answer)) => {
                    self.write(Sink::flush);
                    answer.send(()).ok();
                }
                Ok(Message::Close(streams)) => return self.close(&streams),
                Err(RecvTimeoutError::Disconnected) => return self.close(&[]),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.last_tick.elapsed() >= TICK {
                self.write(Sink::flush);
                if let (Some(sealer), Some(recorder)) = (self.sealer.upgrade(), self.recorder.upgrade()) {
                    sealer.seal_idle(&recorder);
                }
                self.last_tick = Instant::now();
            }
        }
    }

    /// Cuts the block's columns into episodes. Those that are open at the end of the `last` one are interrupted one by one: kept
    /// open until the run closes, those of a million actors would all need memory of their own at a time.
    fn cut(&mut self, block: &Block, last: bool) {
        let columns = block.layout.columns();
        let finals = Finals::new(block);
        for (index, segment) in block.layout.segments.iter().enumerate() {
            for column in segment.from..segment.until {
                let ordinal = block.layout.actors[column].ordinal;
                let (mut from, mut acted) = (None, false);
                for row in 0..=block.rows {
                    let flags = Flags(if row < block.rows { block.flags[row * columns + column] } else { 0 });
                    acted |= flags.has(Flags::ACTED);
                    if flags.has(Flags::RECORDED) {
                        from.get_or_insert(row);
                        if !flags.ended() {
                            continue;
                        }
                    }
                    if let Some(from) = from.take() {
                        let until = if flags.has(Flags::RECORDED) { row + 1 } else { row };
                        self.append(block, column, index, from..until);
                    }
                    if flags.has(Flags::RECORDED) {
                        let last = if flags.has(Flags::FINAL) { finals.get(row, column) } else { None };
                        let end = End {
                            terminated: flags.has(Flags::TERMINATED),
                            truncated: flags.has(Flags::TRUNCATED),
                            complete: true,
                        };
                        self.finish(ordinal, end, last);
                    } else if flags.has(Flags::ACTED) && !flags.has(Flags::OPEN) {
                        // The environment moved on by an unrecorded step: what follows is not a continuation.
                        self.interrupt(ordinal);
                    }
                }
                // The steps of one that has not acted here may be in a later block, of another group.
                if last && acted {
                    self.interrupt(ordinal);
                }
            }
        }
    }

    /// Adds steps to the actor's episode. One that is as long as it may be is truncated before its next step, whose observation
    /// is its final one.
    fn append(&mut self, block: &Block, column: usize, segment: usize, mut rows: std::ops::Range<usize>) {
        let actor = block.layout.actors[column];
        let schema = &block.layout.segments[segment].schema;
        if self.open.get(&actor.ordinal).is_some_and(|builder| !builder.continues(schema)) {
            self.interrupt(actor.ordinal);
        }
        while let Some(most) = self.most_steps {
            let room = most.get().saturating_sub(self.open.get(&actor.ordinal).map_or(0, EpisodeBuilder::steps));
            if rows.len() <= room {
                break;
            }
            let next = rows.start + room;
            if room > 0 {
                self.append_all(block, column, segment, rows.start..next);
            }
            let end = End { terminated: false, truncated: true, complete: true };
            let (bytes, texts) = (block.observation_of(next, column), block.texts_of(next, column));
            self.finish(actor.ordinal, end, Some(LastObservation { bytes: &bytes, texts: &texts }));
            rows.start = next;
        }
        self.append_all(block, column, segment, rows);
    }

    fn append_all(&mut self, block: &Block, column: usize, segment: usize, rows: std::ops::Range<usize>) {
        let actor = block.layout.actors[column];
        let schema = &block.layout.segments[segment].schema;
        let builder = self.open.entry(actor.ordinal).or_insert_with(|| {
            self.next_episode += 1;
            let columns = self.spare_columns.pop().unwrap_or_else(Columns::new);
            EpisodeBuilder::new(self.next_episode - 1, actor, schema.clone(), columns)
        });
        let before = builder.bytes();
        builder.append(block, column, segment, rows);
        self.open_bytes += builder.bytes() - before;
        self.held_bytes += builder.bytes() - before;
        if builder.unwritten_bytes() >= PART_BYTES {
            self.write_part(actor.ordinal);
        }
    }

    /// Writes what an open episode holds, so that one without an end takes no more memory. What is kept in memory as well stays
    /// whole, as long as it may be kept at all.
    fn write_part(&mut self, ordinal: u32) {
        if self.writer.is_none() {
            return;
        }
        let Some(builder) = self.open.get_mut(&ordinal) else { return };
        let (unwritten, held, limit) = (builder.unwritten_bytes(), builder.bytes(), self.memory);
        let keep =
            (limit.trajectories > 0 && self.held_bytes <= limit.bytes) || !self.shared.subscriptions.lock().is_empty();
        let part = builder.part(keep);
        self.open_bytes -= unwritten - builder.unwritten_bytes();
        self.held_bytes -= held - builder.bytes();
        if let Some(part) = part {
            self.write(|writer| writer.push(part));
        }
    }

    /// Writes what all open episodes hold where that is much.
    fn write_parts(&mut self) {
        if self.open_bytes < OPEN_BYTES || self.writer.is_none() {
            return;
        }
        let mut ordinals: Vec<_> = self.open.keys().copied().collect();
        ordinals.sort_unstable();
        for ordinal in ordinals {
            self.write_part(ordinal);
        }
    }

    fn interrupt(&mut self, ordinal: u32) {
        self.finish(ordinal, End { terminated: false, truncated: false, complete: false }, None);
    }

    fn finish(&mut self, ordinal: u32, end: End, last: Option<LastObservation<'_>>) {
        let Some(builder) = self.open.remove(&ordinal) else { return };
        let stats = &self.shared.stats;
        stats.rewards_missing.fetch_add(builder.rewards_missing() as u64, Ordering::Relaxed);
        if end.truncated && last.is_none() {
            stats.final_observations_missing.fetch_add(1, Ordering::Relaxed);
        }
        if !end.complete {
            stats.episodes_interrupted.fetch_add(1, Ordering::Relaxed);
        }
        self.open_bytes -= builder.unwritten_bytes();
        self.held_bytes -= builder.bytes();
        let Finished { steps, whole, piece, spare } = builder.finish(end, last);
        self.spare_columns.extend(spare);
        stats.steps.fetch_add(steps as u64, Ordering::Relaxed);
        stats.episodes.fetch_add(1, Ordering::Relaxed);
        if self.disk_failed {
            stats.episodes_lost.fetch_add(1, Ordering::Relaxed);
        }
        self.pushed += 1;
        self.write(|writer| writer.push(piece));
        if let Some(episode) = whole {
            // Pushed to with the list unlocked: that may wait for a reader.
            let subscriptions = self.shared.subscriptions.lock().clone();
            for subscription in subscriptions {
                if !subscription.push(&episode) {
                    self.shared.subscriptions.lock().retain(|known| !Arc::ptr_eq(known, &subscription));
                }
            }
            self.shared.memory.lock().push(episode);
        }
    }

    /// Runs `operation` on the run folder. A failure stops the recording to disk and reaches the caller at the next call.
    fn write(&mut self, operation: impl FnOnce(&mut Sink) -> Result<()>) {
        let Some(writer) = &mut self.writer else { return };
        let result = operation(writer);
        let stats = &self.shared.stats;
        stats.steps_written.store(writer.steps_written(), Ordering::Relaxed);
        stats.batches_written.store(writer.batches_written(), Ordering::Relaxed);
        stats.bytes_written.store(writer.bytes_written(), Ordering::Relaxed);
        if let Err(error) = result {
            self.fail(error);
        }
    }

    /// Ends the recording to disk: what is written stays readable, what is not is counted as lost.
    fn fail(&mut self, error: Error) {
        if let Some(mut writer) = self.writer.take() {
            // The first error is the one to tell.
            drop(writer.close(&[]));
            self.shared.stats.steps_written.store(writer.steps_written(), Ordering::Relaxed);
            let lost = self.pushed - writer.episodes_written();
            self.shared.stats.episodes_lost.fetch_add(lost, Ordering::Relaxed);
            tracing::error!(lost, "recording to disk has stopped: {error}");
        }
        self.disk_failed = true;
        self.shared.tell(error);
    }

    fn close(&mut self, streams: &[StreamPlace]) {
        let mut ordinals: Vec<_> = self.open.keys().copied().collect();
        ordinals.sort_unstable();
        for ordinal in ordinals {
            self.interrupt(ordinal);
        }
        self.write(|writer| writer.close(streams));
        self.writer = None;
    }
}
