//! The buffer: steps in, transitions out.

use parking_lot::Mutex;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::{
    batch::{Batch, Draw},
    closings::Closings,
    error::{Error, Result},
    ring::{Facts, Next, Place, Ring, Ticket},
    sampler::{Prioritized, Sampler, State, UpdateReport},
    schema::{Schema, WORD},
    streams::Streams,
    transition::{self, After, Horizon, Transition},
};

/// Environments at most; a larger number is a slip.
const MOST_ENVS: u32 = 1 << 24;
/// A draw whose step is written over before it is copied is drawn again, this often.
const TRIES: usize = 100;

/// How a buffer is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Steps that it holds at most.
    pub capacity: usize,
    /// The columns.
    pub schema: Schema,
    /// By what steps are drawn.
    pub sampler: Sampler,
    /// Steps of a transition at most, 1 or more.
    pub n_step: usize,
    /// The discount of a step, 0 to 1.
    pub gamma: f64,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// Steps of some environments, to be added at once.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    /// How many there are.
    pub count: usize,
    /// The bytes of each column of the schema, one step behind the other.
    pub columns: &'a [&'a [u8]],
    /// For each step, not 0 where the environment's rules ended the episode.
    pub terminated: &'a [u8],
    /// For each step, not 0 where something else ended it.
    pub truncated: &'a [u8],
    /// The observations after the steps, one behind the other, of which those of ended episodes are kept.
    pub final_observations: Option<&'a [u8]>,
    /// The environment of each step.
    pub envs: &'a [u32],
}

/// What a sampler needs while it draws.
#[derive(Debug)]
struct Drawing {
    state: State,
    random: Xoshiro256PlusPlus,
    draws: Vec<Draw>,
}

/// The newest steps of many environments. Threads may add, sample and update at a time.
#[derive(Debug)]
pub struct ReplayBuffer {
    schema: Schema,
    horizon: Horizon,
    ring: Ring,
    closings: Closings,
    streams: Streams,
    drawing: Mutex<Drawing>,
}

impl ReplayBuffer {
    /// An empty buffer. All its memory is taken now, but for that of final observations.
    ///
    /// # Errors
    /// [`Error::Config`] where a setting is out of its range, [`Error::Memory`] where the machine has not that much memory, with
    /// what is needed.
    pub fn new(settings: Settings) -> Result<Self> {
        let Settings { capacity, schema, sampler, n_step, gamma, seed } = settings;
        if capacity == 0 || n_step == 0 {
            return Err(Error::Config(format!(
                "capacity and n_step must be 1 or more, but are {capacity} and {n_step}"
            )));
        }
        if !(0.0..=1.0).contains(&gamma) {
            return Err(Error::Config(format!("gamma must be between 0 and 1, but is {gamma}")));
        }
        if n_step > 1 && schema.reward().is_none() {
            return Err(Error::Config("steps over several take a column of rewards; name it".into()));
        }
        crate::memory::check(capacity, &schema, sampler)?;
        let drawing = Drawing {
            state: State::new(sampler, capacity)?,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            draws: Vec::new(),
        };
        Ok(Self {
            horizon: Horizon { steps: n_step, gamma },
            ring: Ring::new(capacity, schema.words()),
            closings: Closings::new(schema.observation_words()),
            streams: Streams::default(),
            drawing: Mutex::new(drawing),
            schema,
        })
    }

    /// The columns.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Steps that it holds at most.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Steps that it holds.
    pub fn len(&self) -> usize {
        (self.ring.cursor() - self.ring.oldest()) as usize
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ring.cursor() == 0
    }

    /// Steps that were ever added.
    pub fn added(&self) -> u64 {
        self.ring.cursor()
    }

    /// Bytes of the steps.
    pub fn bytes(&self) -> usize {
        Ring::words(self.capacity(), self.schema.words()).unwrap_or(usize::MAX).saturating_mul(WORD)
            + self.closings.bytes()
    }

    /// Adds steps. Those of one environment are added by one thread at a time, in their order.
    ///
    /// # Errors
    /// [`Error::Contract`] where something has not the length that it should have; nothing is added then.
    pub fn add(&self, steps: &Steps<'_>) -> Result<()> {
        self.check(steps)?;
        let size = self.schema.columns()[self.schema.observation()].row_bytes();
        let streams = self.streams.open(steps.envs.iter().copied().max().unwrap_or(0));
        let mut place = self.ring.place(self.ring.claim(steps.count));
        for row in 0..steps.count {
            let facts = Facts {
                env: steps.envs[row],
                terminated: steps.terminated[row] != 0,
                truncated: steps.truncated[row] != 0,
            };
            let replaced = self.ring.begin(place);
            for (column, bytes) in steps.columns.iter().enumerate() {
                let size = self.schema.columns()[column].row_bytes();
                self.ring.write(place, self.schema.offset(column), &bytes[row * size..(row + 1) * size]);
            }
            let next = match steps.final_observations {
                Some(finals) if facts.ended() => {
                    Next::Closing(self.closings.put(&finals[row * size..(row + 1) * size]))
                }
                _ => Next::Unknown,
            };
            let previous = streams.advance(facts.env, (!facts.ended()).then_some(place.ticket));
            self.ring.commit(place, previous, next, facts);
            if let Some(previous) = previous {
                self.ring.link(self.ring.place(previous), place.ticket);
            }
            if let Next::Closing(apart) = replaced {
                self.closings.release(apart);
            }
            place = self.ring.behind(place);
        }
        Ok(())
    }

    /// Draws transitions.
    ///
    /// # Errors
    /// [`Error::NotReady`] where no step can be drawn yet.
    pub fn sample(&self, count: usize) -> Result<Batch> {
        let columns = self.schema.columns();
        let mut batch = Batch::new(columns, &columns[self.schema.observation()], count);
        let mut drawing = self.drawing.lock();
        let Drawing { state, random, draws } = &mut *drawing;
        state.draw_unseen(&self.ring, count, random, draws)?;
        let (weighing, drawn) = (Weighing::of(state), std::mem::take(draws));
        drop(drawing);
        self.warm(&drawn);
        for (row, draw) in drawn.iter().enumerate() {
            let mut draw = *draw;
            let mut tries = 0;
            // Others may write over a step between its being drawn and its being copied.
            while !self.copy(draw.ticket, row, &mut batch) {
                tries += 1;
                if tries == TRIES {
                    return Err(Error::NotReady(format!(
                        "steps are written over faster than they can be copied: the capacity of {} is too small for what is \
                         added meanwhile",
                        self.capacity()
                    )));
                }
                let Drawing { state, random, draws } = &mut *self.drawing.lock();
                state.draw(&self.ring, 1, random, draws)?;
                draw = draws[0];
            }
            batch.weights[row] = weighing.weight(draw.probability);
        }
        weighing.normalise(&mut batch.weights);
        self.drawing.lock().draws = drawn;
        Ok(batch)
    }

    /// Tells the priorities of steps that were drawn, by their keys.
    ///
    /// # Errors
    /// [`Error::Contract`] where one is negative or not finite, or the sampler knows no priorities; nothing has changed then.
    pub fn update_priorities(&self, keys: &[u64], priorities: &[f64]) -> Result<UpdateReport> {
        match &mut self.drawing.lock().state {
            State::Prioritized(state) => state.update(&self.ring, keys, priorities),
            State::Uniform => Err(no_priorities()),
        }
    }

    /// The settings of the prioritized sampler, if that is what draws.
    pub fn prioritized(&self) -> Option<Prioritized> {
        match &self.drawing.lock().state {
            State::Prioritized(state) => Some(state.settings()),
            State::Uniform => None,
        }
    }

    /// Anneals α; all masses are made anew.
    ///
    /// # Errors
    /// [`Error::Config`] where it is negative or not finite, or the sampler knows no priorities.
    pub fn set_alpha(&self, alpha: f64) -> Result<()> {
        match &mut self.drawing.lock().state {
            State::Prioritized(state) => state.set_alpha(alpha),
            State::Uniform => Err(no_priorities()),
        }
    }

    /// Anneals β.
    ///
    /// # Errors
    /// As [`set_alpha`](Self::set_alpha).
    pub fn set_beta(&self, beta: f64) -> Result<()> {
        match &mut self.drawing.lock().state {
            State::Prioritized(state) => state.set_beta(beta),
            State::Uniform => Err(no_priorities()),
        }
    }

    /// Fetches the steps that were drawn, and those behind them.
    fn warm(&self, draws: &[Draw]) {
        let first = draws.iter().fold(0, |all, draw| all ^ self.ring.warm(self.ring.place(draw.ticket)));
        let next = draws.iter().fold(first, |all, draw| match self.ring.linked(self.ring.place(draw.ticket)) {
            Next::Step(next) => all ^ self.ring.warm(self.ring.place(next)),
            _ => all,
        });
        std::hint::black_box(next);
    }

    /// Copies a transition into a row; `false` where a step of it was written over meanwhile.
    fn copy(&self, first: Ticket, row: usize, batch: &mut Batch) -> bool {
        let first = self.ring.place(first);
        let Some(Transition { steps, after, end }) = transition::find(&self.ring, first, self.horizon.steps) else {
            return false;
        };
        for (index, column) in self.schema.columns().iter().enumerate() {
            let size = column.row_bytes();
            let target = &mut batch.columns[index].bytes_mut()[row * size..(row + 1) * size];
            self.ring.read(first, self.schema.offset(index), target);
        }
        let size = self.schema.columns()[self.schema.observation()].row_bytes();
        let target = &mut batch.next_observations.bytes_mut()[row * size..(row + 1) * size];
        match after {
            After::Step(next) => self.ring.read(next, self.schema.offset(self.schema.observation()), target),
            After::Closing(place) => self.closings.read(place, target),
        }
        let mut discount = self.horizon.gamma;
        if let Some(reward) = self.schema.reward()
            && steps.len() > 1
        {
            discount = self.add_up(&steps, reward, row, batch);
        }
        if !steps.iter().all(|step| self.ring.still_holds(*step)) {
            return false;
        }
        if let After::Step(next) = after
            && !self.ring.still_holds(next)
        {
            return false;
        }
        batch.terminated[row] = u8::from(end.terminated);
        batch.truncated[row] = u8::from(end.truncated);
        batch.steps[row] = steps.len() as u32;
        batch.discounts[row] = discount as f32;
        batch.envs[row] = self.ring.facts(first).env;
        batch.indices[row] = first.slot as i64;
        batch.keys[row] = first.ticket;
        true
    }

    /// Puts the return of several steps in the place of the first one's reward; gives the discount behind them.
    fn add_up(&self, steps: &[Place], reward: usize, row: usize, batch: &mut Batch) -> f64 {
        let size = self.schema.columns()[reward].row_bytes();
        let (mut sum, mut discount) = (0.0, 1.0);
        for step in steps {
            let mut bytes = [0; WORD];
            self.ring.read(*step, self.schema.offset(reward), &mut bytes[..size]);
            let earned = match size {
                4 => f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
                _ => f64::from_ne_bytes(bytes),
            };
            sum += discount * earned;
            discount *= self.horizon.gamma;
        }
        let target = &mut batch.columns[reward].bytes_mut()[row * size..(row + 1) * size];
        match size {
            4 => target.copy_from_slice(&(sum as f32).to_ne_bytes()),
            _ => target.copy_from_slice(&sum.to_ne_bytes()),
        }
        discount
    }

    fn check(&self, steps: &Steps<'_>) -> Result<()> {
        let columns = self.schema.columns();
        if steps.columns.len() != columns.len() {
            return Err(Error::Contract(format!(
                "a step has {} columns, but {} came",
                columns.len(),
                steps.columns.len()
            )));
        }
        let values = columns
            .iter()
            .zip(steps.columns)
            .map(|(column, bytes)| (column.key.as_str(), column.row_bytes() * steps.count, bytes.len()));
        let observed = columns[self.schema.observation()].row_bytes() * steps.count;
        let finals = steps.final_observations.map(|finals| ("final observation", observed, finals.len()));
        let flags = [
            ("terminated", steps.count, steps.terminated.len()),
            ("truncated", steps.count, steps.truncated.len()),
            ("env", steps.count, steps.envs.len()),
        ];
        let mut lengths = values.chain(finals).chain(flags);
        if let Some((name, expected, came)) = lengths.find(|(_, expected, came)| expected != came) {
            return Err(Error::Contract(format!(
                "`{name}` of {} steps takes {expected} bytes or numbers, but {came} came",
                steps.count
            )));
        }
        if let Some(env) = steps.envs.iter().find(|env| **env >= MOST_ENVS) {
            return Err(Error::Contract(format!("environments are numbered below {MOST_ENVS}, but {env} came")));
        }
        if steps.count > self.capacity() {
            return Err(Error::Contract(format!(
                "{} steps at once are more than the capacity of {}",
                steps.count,
                self.capacity()
            )));
        }
        Ok(())
    }
}

/// How importance weights come from chances: (N·P)^−β over the largest such weight.
#[derive(Debug, Clone, Copy)]
enum Weighing {
    /// All are 1.
    Even,
    ByBatch {
        beta: f64,
    },
    ByBuffer {
        beta: f64,
        least: f64,
    },
}

impl Weighing {
    fn of(state: &State) -> Self {
        let State::Prioritized(state) = state else { return Self::Even };
        let beta = state.settings().beta;
        match state.least_probability() {
            None => Self::ByBatch { beta },
            Some(least) => Self::ByBuffer { beta, least },
        }
    }

    fn weight(self, probability: f64) -> f32 {
        match self {
            Self::Even => 1.0,
            // To be divided by the largest of the batch: N is in both.
            Self::ByBatch { beta } => probability.powf(-beta) as f32,
            Self::ByBuffer { beta, least } => (least / probability).powf(beta).min(1.0) as f32,
        }
    }

    fn normalise(self, weights: &mut [f32]) {
        if let Self::ByBatch { .. } = self {
            let largest = weights.iter().copied().fold(0.0, f32::max);
            for weight in weights {
                *weight /= largest;
            }
        }
    }
}

fn no_priorities() -> Error {
    Error::Contract(
        "this buffer draws each step alike; make it with a Prioritized sampler to give it priorities".into(),
    )
}
