//! The routers of an agent: some for each device, and the actors placed on them evenly.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::{
    actor::Actor,
    batcher::Batcher,
    config::Batching,
    router::{Counters, Router},
};
use crate::{
    error::{Error, Result},
    policy::PolicySlot,
};

/// All routers of an agent.
#[derive(Debug)]
pub(super) struct Routers {
    batching: Batching,
    seed: u64,
    state: Mutex<State>,
    /// Rises when actors are placed anew.
    placement: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Routers for each device.
    count: usize,
    devices: Vec<Device>,
    running: bool,
    /// Routers that were taken away, and that somebody still holds: a caller may be running a batch of theirs.
    leaving: Vec<Arc<Router>>,
    /// What the others of those have counted.
    retired: Counters,
}

#[derive(Debug)]
struct Device {
    name: Arc<str>,
    /// Actors on each router.
    placed: Vec<usize>,
    /// None before the agent starts.
    routers: Vec<Arc<Router>>,
}

/// Where an actor is placed.
#[derive(Debug, Default)]
pub(super) struct Place {
    device: Option<Arc<str>>,
    router: usize,
}

impl Routers {
    pub(super) fn new(count: usize, batching: Batching, seed: u64) -> Self {
        let state =
            State { count, devices: Vec::new(), running: false, leaving: Vec::new(), retired: Counters::default() };
        Self { batching, seed, state: Mutex::new(state), placement: AtomicU64::new(1) }
    }

    /// Rises when actors are placed anew; then each must ask for its batcher again.
    pub(super) fn placement(&self) -> u64 {
        self.placement.load(Ordering::Acquire)
    }

    /// Routers for each device.
    pub(super) fn count(&self) -> usize {
        self.state.lock().count
    }

    /// All of them while the agent runs, each with the number of actors placed there, and what those that were taken away have
    /// counted.
    pub(super) fn all(&self) -> (Vec<(Arc<Router>, usize)>, Counters) {
        let mut state = self.state.lock();
        state.retire();
        let gone = Counters::default();
        gone.add(&state.retired);
        state.leaving.iter().for_each(|router| gone.add(&router.counters));
        let devices = state.devices.iter();
        let routers = devices.flat_map(|device| device.routers.iter().cloned().zip(device.placed.iter().copied()));
        (routers.collect(), gone)
    }

    /// Starts the threads.
    pub(super) fn start(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.running = true;
        state.resize(self.batching, self.seed).map(drop)
    }

    /// Makes the routers of a device, where there are none yet.
    ///
    /// # Errors
    /// [`Error::State`] where a thread cannot be started.
    pub(super) fn open(&self, device: &Arc<str>) -> Result<()> {
        let mut state = self.state.lock();
        state.device(device);
        state.resize(self.batching, self.seed).map(drop)
    }

    /// Places an actor on the router with the fewest, among those of its policy's device, which was opened before.
    pub(super) fn place(&self, actor: &Actor) {
        let mut state = self.state.lock();
        let policy = actor.policy();
        let device = state.device(policy.device());
        let at = (0..device.placed.len()).min_by_key(|router| device.placed[*router]).unwrap_or(0);
        device.placed[at] += 1;
        let name = device.name.clone();
        let old = std::mem::replace(&mut *actor.place.lock(), Place { device: Some(name), router: at });
        state.unplace(&old);
    }

    /// Takes an actor off its router.
    pub(super) fn remove(&self, actor: &Actor) {
        let old = std::mem::take(&mut *actor.place.lock());
        self.state.lock().unplace(&old);
    }

    /// The batcher for an actor of `policy`; `None` where the agent does not run.
    pub(super) fn batcher(&self, actor: &Actor, policy: &Arc<PolicySlot>) -> Option<Arc<Batcher>> {
        let state = self.state.lock();
        let place = actor.place.lock();
        let device = state.devices.iter().find(|device| device.name == *policy.device())?;
        // An actor that was assigned to a policy on another device is placed there before it asks.
        let router = device.routers.get(place.router).or(device.routers.first())?;
        Some(router.batcher(policy))
    }

    /// Adds routers, or takes some away, and places all actors anew; gives the new number, and the routers that are to be
    /// stopped.
    pub(super) fn scale<'a>(
        &self,
        change: i64,
        actors: impl Iterator<Item = &'a Arc<Actor>>,
    ) -> Result<(usize, Vec<Arc<Router>>)> {
        let mut state = self.state.lock();
        let Some(count) = state.count.checked_add_signed(change as isize).filter(|count| *count > 0) else {
            return Err(Error::Config(format!(
                "scaling {} routers by {change} would leave none; at least one must stay",
                state.count
            )));
        };
        if count > MOST_ROUTERS {
            return Err(Error::Config(format!(
                "{count} routers are too many: each is a thread, and more than there are processors only wait for each other; \
                 at most {MOST_ROUTERS} are possible"
            )));
        }
        let before = std::mem::replace(&mut state.count, count);
        let gone = match state.resize(self.batching, self.seed) {
            Ok(gone) => gone,
            Err(error) => {
                // What could be started goes again.
                state.count = before;
                let started = state.resize(self.batching, self.seed).unwrap_or_default();
                drop(state);
                for router in started {
                    router.stop(None);
                }
                return Err(error);
            }
        };
        state.retire();
        state.leaving.extend(gone.iter().cloned());
        state.spread(actors);
        self.placement.fetch_add(1, Ordering::AcqRel);
        tracing::info!(routers = count, "there are {count} routers for each device from now on");
        Ok((count, gone))
    }

    /// Answers all that wait with `error`, and ends the threads.
    pub(super) fn stop(&self, error: &Error) {
        let mut state = self.state.lock();
        state.running = false;
        let routers: Vec<_> = state.devices.iter_mut().flat_map(|device| std::mem::take(&mut device.routers)).collect();
        state.leaving.extend(routers.iter().cloned());
        drop(state);
        for router in routers {
            router.stop(Some(error));
        }
    }
}

/// More threads than this are a slip of the keyboard.
pub(super) const MOST_ROUTERS: usize = 1024;

impl State {
    fn device(&mut self, name: &Arc<str>) -> &mut Device {
        let at = self.devices.iter().position(|device| device.name == *name).unwrap_or_else(|| {
            self.devices.push(Device { name: name.clone(), placed: vec![0; self.count], routers: Vec::new() });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    /// Takes over what routers have counted that nobody holds any more, and that count no more.
    fn retire(&mut self) {
        for router in self.leaving.extract_if(.., |router| Arc::strong_count(router) == 1) {
            self.retired.add(&router.counters);
        }
    }

    /// Starts the routers that are missing; gives those that are too many.
    fn resize(&mut self, batching: Batching, seed: u64) -> Result<Vec<Arc<Router>>> {
        let mut gone = Vec::new();
        for device in &mut self.devices {
            device.placed.resize(self.count, 0);
            if self.running {
                gone.extend(device.routers.drain(self.count.min(device.routers.len())..));
                for index in device.routers.len()..self.count {
                    device.routers.push(Router::start(device.name.clone(), index, batching, seed)?);
                }
            }
        }
        Ok(gone)
    }

    /// Places all actors anew, in turns.
    fn spread<'a>(&mut self, actors: impl Iterator<Item = &'a Arc<Actor>>) {
        for device in &mut self.devices {
            device.placed.fill(0);
        }
        for actor in actors {
            if actor.is_removed() {
                // Whoever removes it is about to take it off its router, where it is not counted any more.
                *actor.place.lock() = Place::default();
                continue;
            }
            let count = self.count;
            let device = self.device(actor.policy().device());
            let at = device.placed.iter().sum::<usize>() % count;
            device.placed[at] += 1;
            *actor.place.lock() = Place { device: Some(device.name.clone()), router: at };
        }
    }

    fn unplace(&mut self, place: &Place) {
        let Some(name) = &place.device else { return };
        let Some(device) = self.devices.iter_mut().find(|device| device.name == *name) else { return };
        if let Some(placed) = device.placed.get_mut(place.router) {
            *placed = placed.saturating_sub(1);
        }
    }
}
