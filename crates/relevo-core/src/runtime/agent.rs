//! The agent: the actors, the policies that they follow, and the recorder behind them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use super::{
    actor::Actor,
    config::{AgentConfig, drawn_seed},
    group::ActorGroup,
    observe::{FinalObservations, Outcome, observe_each},
    routers::Routers,
    shared::{AgentShared, BUILT, RUNNING, STOPPED, Table, shut_down},
};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
    policy::{LoadedModel, Normalizer, PolicySlot},
    trajectory::{
        Episode, ModelInfo, Pending, Recorder, RecorderConfig, Resumed, RunInfo, RunWriter, Sealer, Sink, StepSchema,
        StreamPlace, Subscription, WhenFull, check_extras,
    },
};

/// An actor takes some 300 bytes; more of them than this are a slip of the keyboard.
const MOST_ACTORS: usize = 1 << 24;

/// What the policy that new actors follow is called.
const DEFAULT_POLICY: &str = "default";

/// The runtime that serves actors.
#[derive(Debug)]
pub struct Agent {
    pub(super) shared: Arc<AgentShared>,
    config: AgentConfig,
    /// The folder of a run that is gone on with, until the agent starts.
    resumed: Mutex<Option<(RunWriter, u64)>>,
}

impl Agent {
    /// An agent with its actors, not yet started.
    pub fn new(config: AgentConfig) -> Result<Self> {
        config.validate()?;
        let (writer, before) = resume(&config)?.unzip();
        let seed = before.as_ref().map(|before| before.seed).or(config.seed).unwrap_or_else(drawn_seed);
        let first_episode = before.as_ref().map_or(0, |before| before.next_episode);
        let draws = before.map(|before| before.draws).unwrap_or_default();
        let table = Table { policies: config.policies.clone(), draws, ..Table::default() };
        let agent = Self {
            shared: Arc::new(AgentShared {
                seed,
                keep_outputs: config.keep_outputs,
                extras: config.extras.as_slice().into(),
                structure: Mutex::default(),
                phase: AtomicUsize::new(BUILT),
                birthplace: Birthplace::here(),
                recorder: OnceLock::new(),
                routers: Routers::new(config.routers, config.batching, seed),
                on_error: config.on_error,
                recording: AtomicBool::new(true),
                dropped: AtomicU64::new(0),
                table: RwLock::new(table),
                groups: Mutex::default(),
            }),
            resumed: Mutex::new(writer.map(|writer| (writer, first_episode))),
            config,
        };
        agent.add_actors(agent.config.actor_count, None)?;
        Ok(agent)
    }

    /// Opens the run folder and starts the recorder. From now on actors may act.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where the folder cannot be written or holds a run, [`Error::State`] at a second call.
    pub fn start(&self) -> Result<()> {
        self.shared.check_here()?;
        let _structure = self.shared.structure.lock();
        self.shared.check_changeable()?;
        if self.shared.phase.load(Ordering::Acquire) != BUILT {
            return Err(Error::State("the agent was started before; build a new one for another run".into()));
        }
        if self.config.record.is_some() || self.config.memory.trajectories > 0 {
            let (writer, first_episode) = self.open_folder()?;
            // Weak::<AgentShared> to Weak<dyn Sealer>.
            let sealer: Weak<dyn Sealer> = Arc::downgrade(&self.shared) as Weak<dyn Sealer>;
            let goes_on = self.config.record.as_ref().is_none_or(|record| record.goes_on);
            let config = RecorderConfig {
                memory: self.config.memory,
                writer,
                first_episode,
                goes_on,
                most_steps: self.config.most_steps,
            };
            let recorder = Recorder::start(config, sealer)?;
            drop(self.shared.recorder.set(recorder));
        }
        self.shared.routers.start()?;
        self.shared.phase.store(RUNNING, Ordering::Release);
        let actors = self.shared.table.read().by_id.len();
        tracing::info!(actors, seed = self.shared.seed, "the agent has started (actors: {actors})");
        Ok(())
    }

    /// The writer of the run folder, if there is one, and the number of the first episode.
    fn open_folder(&self) -> Result<(Option<Sink>, u64)> {
        let Some(record) = &self.config.record else { return Ok((None, 0)) };
        let models = self.shared.table.read().policies.iter().map(|policy| model_info(policy)).collect();
        if let Some((mut writer, first_episode)) = self.resumed.lock().take() {
            for model in models {
                writer.add_model(model)?;
            }
            return Ok((Some(Sink::Arrow(writer)), first_episode));
        }
        let info = RunInfo::new(self.shared.seed, self.config.description.clone(), models);
        Ok((Some(Sink::create(&record.folder, &info, record.format, record.options)?), 0))
    }

    /// How far the actors' random streams have been used.
    fn stream_places(&self) -> Vec<StreamPlace> {
        let actors: Vec<_> = self.shared.table.read().by_ordinal.values().cloned().collect();
        let place = |actor: Arc<Actor>| {
            let home = actor.home.lock();
            let (draws, group) = (home.draws, home.group.clone());
            drop(home);
            let draws = match group {
                Some((group, column)) => {
                    group.state.lock().work.as_ref().map_or(draws, |work| work.streams[column].draw)
                }
                None => draws,
            };
            StreamPlace::new(actor.ordinal, draws)
        };
        actors.into_iter().map(place).collect()
    }

    /// Whether the agent runs.
    pub fn is_running(&self) -> bool {
        self.shared.phase.load(Ordering::Acquire) == RUNNING
    }

    /// Adds `count` actors that follow `policy`, or the first policy; gives their ids.
    pub fn add_actors(&self, count: usize, policy: Option<Arc<PolicySlot>>) -> Result<Vec<Uuid>> {
        self.shared.check_changeable()?;
        let mut table = self.shared.table.write();
        let left = MOST_ACTORS.saturating_sub(table.by_id.len()).min((u32::MAX - table.next_ordinal) as usize);
        if count > left {
            return Err(Error::Config(format!(
                "{count} actors are too many: an agent serves at most {MOST_ACTORS}, and {left} more are possible"
            )));
        }
        let policy = policy.unwrap_or_else(|| table.policies[0].clone());
        self.shared.routers.open(policy.device())?;
        table.by_id.reserve(count);
        let ids = (0..count)
            .map(|_| {
                let actor = Arc::new(Actor::new(table.next_ordinal, Uuid::new_v4(), policy.clone()));
                if let Some(draws) = table.draws.get(&table.next_ordinal) {
                    actor.home.lock().draws = *draws;
                }
                self.shared.routers.place(&actor);
                table.next_ordinal += 1;
                table.by_id.insert(actor.id(), actor.clone());
                table.by_ordinal.insert(actor.ordinal, actor.clone());
                actor.id()
            })
            .collect();
        Ok(ids)
    }

    /// Ids of all actors, in the order in which they were made.
    pub fn actor_ids(&self) -> Result<Vec<Uuid>> {
        self.shared.check_here()?;
        Ok(self.shared.table.read().by_ordinal.values().map(|actor| actor.id()).collect())
    }

    /// Removes an actor; its open episode is kept as an interrupted one.
    pub fn remove_actor(&self, id: Uuid) -> Result<()> {
        self.shared.remove_actor(id)
    }

    /// Gives an actor another id. An open episode keeps the old one, later episodes carry the new one.
    pub fn rename_actor(&self, old: Uuid, new: Uuid) -> Result<()> {
        self.shared.check_here()?;
        let _structure = self.shared.structure.lock();
        self.shared.check_changeable()?;
        let actor = self.shared.one(old)?;
        if old == new {
            return Ok(());
        }
        if self.shared.table.read().by_id.contains_key(&new) {
            return Err(Error::Config(format!("another actor has the id {new}; ids must be unique")));
        }
        Self::unsettle(&actor);
        actor.set_id(new);
        let mut table = self.shared.table.write();
        table.by_id.remove(&old);
        table.by_id.insert(new, actor);
        Ok(())
    }

    /// Lets actors follow another policy from their next action on, which begins with an empty memory.
    pub fn assign(&self, ids: &[Uuid], policy: &str) -> Result<()> {
        self.shared.check_here()?;
        let _structure = self.shared.structure.lock();
        self.shared.check_changeable()?;
        let slot = self.policy(policy)?;
        self.shared.routers.open(slot.device())?;
        for actor in self.shared.find(ids)? {
            if let Some(group) = Self::unsettle(&actor) {
                group.leave_batcher();
            }
            if !Arc::ptr_eq(&actor.policy(), &slot) {
                actor.forget();
            }
            actor.set_policy(slot.clone());
            self.shared.routers.place(&actor);
        }
        Ok(())
    }

    /// Makes the actor's group, which is given, look anew before it acts again. The caller holds the structure lock.
    fn unsettle(actor: &Actor) -> Option<Arc<ActorGroup>> {
        let (group, _) = actor.home.lock().group.clone()?;
        group.state.lock().leased = false;
        Some(group)
    }

    /// The policy named `name`; `default` is the first one, unless another has that name.
    pub fn policy(&self, name: &str) -> Result<Arc<PolicySlot>> {
        self.shared.check_here()?;
        let table = self.shared.table.read();
        let found = table.all_policies().find(|policy| &**policy.name() == name);
        // New actors follow the first policy, whatever its name.
        let default = table.policies.first().filter(|_| name == DEFAULT_POLICY);
        found.or(default.cloned()).ok_or_else(|| {
            let known: Vec<_> = table.all_policies().map(|policy| policy.name().to_string()).collect();
            Error::Config(format!("there is no policy `{name}`; the policies are {}", known.join(", ")))
        })
    }

    /// Adds `count` actors with a model of their own, which goes when the last of them goes; gives their ids.
    pub fn add_actors_with_model(&self, count: usize, policy: Arc<PolicySlot>) -> Result<Vec<Uuid>> {
        self.shared.check_changeable()?;
        check_extras(&policy.current().schema, &self.shared.extras)?;
        let mut table = self.shared.table.write();
        if table.all_policies().any(|known| known.name() == policy.name()) {
            return Err(Error::Config(format!(
                "another policy is named `{}`; give it a name of its own",
                policy.name()
            )));
        }
        table.own_policies.retain(|own| own.strong_count() > 0);
        table.own_policies.push(Arc::downgrade(&policy));
        drop(table);
        self.tell_model(&policy);
        self.add_actors(count, Some(policy))
    }

    /// Exchanges a policy's model; see [`PolicySlot::update`].
    pub fn update_model(&self, policy: &str, loaded: LoadedModel, version: Option<u64>) -> Result<u64> {
        self.update_model_normalizing(policy, loaded, version, None)
    }

    /// The same with other statistics of observations; see [`PolicySlot::update_normalizing`].
    pub fn update_model_normalizing(
        &self,
        policy: &str,
        loaded: LoadedModel,
        version: Option<u64>,
        normalizers: Option<BTreeMap<String, Normalizer>>,
    ) -> Result<u64> {
        self.shared.check_changeable()?;
        let policy = self.policy(policy)?;
        let version = policy.update_normalizing(loaded, version, normalizers)?;
        self.tell_model(&policy);
        Ok(version)
    }

    /// Writes down which model a policy serves from now on.
    fn tell_model(&self, policy: &PolicySlot) {
        if let Some(recorder) = self.shared.recorder().filter(|_| self.is_running()) {
            recorder.add_model(model_info(policy));
        }
    }

    /// The version of each actor's policy.
    pub fn model_versions(&self, ids: &[Uuid]) -> Result<Vec<u64>> {
        Ok(self.shared.find(ids)?.iter().map(|actor| actor.policy().current().version).collect())
    }

    /// A handle on some actors. Where they already act together in a group of theirs, it is that one.
    pub fn group(&self, ids: &[Uuid]) -> Result<Arc<ActorGroup>> {
        let actors = self.shared.find(ids)?;
        let Some(first) = actors.first() else {
            return Err(Error::Config(
                "a handle needs at least one actor, but there is none; actor_count(N) on the builder or new_actors(N) makes some"
                    .into(),
            ));
        };
        let same = |group: &ActorGroup| {
            group.actors.len() == actors.len()
                && group.actors.iter().zip(&actors).all(|(left, right)| Arc::ptr_eq(left, right))
        };
        if let Some((group, _)) = &first.home.lock().group
            && same(group)
        {
            return Ok(group.clone());
        }
        let group = Arc::new(ActorGroup::new(Arc::downgrade(&self.shared), actors));
        let mut groups = self.shared.groups.lock();
        if groups.len() == groups.capacity() {
            // Before it grows, those that are gone make room.
            groups.retain(|group| group.strong_count() > 0);
        }
        groups.push(Arc::downgrade(&group));
        drop(groups);
        Ok(group)
    }

    /// Records what the last actions of some actors earned; those without an open step are passed over.
    pub fn observe(&self, ids: &[Uuid], outcome: &Outcome<'_>, finals: &FinalObservations) -> Result<()> {
        observe_each(&self.shared, &self.shared.find(ids)?, outcome, finals, false)
    }

    /// What an actor observed when it acted last, or what its policy observes if it has not, and the names of that.
    pub fn observed(&self, id: Uuid) -> Result<(Arc<StepSchema>, Vec<String>)> {
        let actor = self.shared.one(id)?;
        Ok((actor.observed(), actor.policy().current().observation_names()))
    }

    /// Whether actions are recorded: from the next action of each actor on. What is off ends open episodes as interrupted ones
    /// once their next step is observed. What is on again begins with the next episode of each actor that acted meanwhile,
    /// never within one.
    ///
    /// # Errors
    /// [`Error::Config`] where the agent was made without a recorder.
    pub fn set_recording(&self, on: bool) -> Result<()> {
        self.shared.check_changeable()?;
        if self.config.record.is_none() && self.config.memory.trajectories == 0 {
            return Err(Error::Config(
                "this agent has nothing to record into; give the builder a folder by record(path), or keep_in_memory(n)".into(),
            ));
        }
        self.shared.recording.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Whether actions are recorded now.
    pub fn is_recording(&self) -> bool {
        self.shared.records() && (self.config.record.is_some() || self.config.memory.trajectories > 0)
    }

    /// How many routers there are for each device.
    pub fn routers(&self) -> usize {
        self.shared.routers.count()
    }

    /// Adds routers, or takes some away, and places all actors anew; gives the new number. What waits at a router that goes
    /// is run before.
    ///
    /// # Errors
    /// [`Error::Config`] where none would be left.
    pub fn scale_routers(&self, change: i64) -> Result<usize> {
        self.shared.check_changeable()?;
        let table = self.shared.table.read();
        let (count, gone) = self.shared.routers.scale(change, table.by_ordinal.values())?;
        drop(table);
        for router in gone {
            router.stop(None);
        }
        for group in self.shared.groups() {
            group.follow_placement(&self.shared);
        }
        Ok(count)
    }

    /// Trajectories from now on, as they end, for one reader: whole ones, at most `capacity` at a time.
    ///
    /// # Errors
    /// [`Error::State`] before the start, and where the agent records nothing.
    pub fn subscribe(&self, capacity: usize, when_full: WhenFull) -> Result<Arc<Subscription>> {
        self.shared.check_here()?;
        let recorder = self.shared.recorder().ok_or_else(|| {
            Error::State(
                "there are no trajectories to subscribe to: the agent has not started, or it records nothing; call start(), and \
                 give the builder record(path) or keep_in_memory(n)"
                    .into(),
            )
        })?;
        Ok(recorder.subscribe(capacity, when_full))
    }

    /// The trajectories in memory, oldest first. Call [`Agent::flush`] before for those that ended just now.
    pub fn trajectories(&self) -> Vec<Arc<Episode>> {
        self.shared.recorder().map(|recorder| recorder.trajectories()).unwrap_or_default()
    }

    /// Sends all finished episodes to memory and disk, and waits. `keep_waiting` is called now and then; an error of its
    /// ends the wait, not the flush.
    pub fn flush(&self, keep_waiting: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.shared.check_here()?;
        let Some(recorder) = self.shared.recorder().filter(|_| self.is_running()) else { return Ok(()) };
        for group in self.shared.groups() {
            group.seal(&self.shared);
        }
        let answer = await_answer(&recorder.flush(), keep_waiting);
        if self.is_running() {
            answer?;
        }
        // If not, a shutdown came between, and wrote everything.
        recorder.failure().map_or(Ok(()), Err)
    }

    /// Waits for the calls that run, keeps open episodes as interrupted ones, closes the run folder. A second call waits for
    /// the first.
    pub fn shutdown(&self, keep_waiting: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.shared.birthplace.is_elsewhere() {
            return Ok(());
        }
        let structure = self.shared.structure.lock();
        let first = self.shared.phase.swap(STOPPED, Ordering::AcqRel) == RUNNING;
        let recorder = self.shared.recorder();
        if first {
            tracing::info!("the agent shuts down");
            self.shared.routers.stop(&shut_down());
            for group in self.shared.groups() {
                // A call that began before the phase changed holds this lock until it has committed its row.
                group.seal_last(&self.shared);
            }
            let streams = if self.config.record.is_some() { self.stream_places() } else { Vec::new() };
            recorder.inspect(|recorder| recorder.close(streams));
        }
        drop(structure);
        let Some(recorder) = recorder else { return Ok(()) };
        // Whoever comes second waits as well: all must be on disk when it returns.
        while !recorder.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
            keep_waiting()?;
        }
        recorder.failure().map_or(Ok(()), Err)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Whoever wants to see an error calls `shutdown`.
        drop(self.shutdown(&mut || Ok(())));
    }
}

/// Opens the folder of a run that is to be gone on with, if there is one.
fn resume(config: &AgentConfig) -> Result<Option<(RunWriter, Resumed)>> {
    let Some(record) = config.record.as_ref().filter(|record| record.resume && RunWriter::is_run(&record.folder))
    else {
        return Ok(None);
    };
    let (writer, before) = RunWriter::resume(&record.folder, record.options)?;
    if let Some(seed) = config.seed.filter(|seed| *seed != before.seed) {
        return Err(Error::Config(format!(
            "the run in {} has the seed {}, and {seed} was given; give that one, or none, to go on with it",
            record.folder.display(),
            before.seed
        )));
    }
    Ok(Some((writer, before)))
}

fn model_info(policy: &PolicySlot) -> ModelInfo {
    let version = policy.current();
    ModelInfo {
        policy: policy.name().to_string(),
        version: version.version,
        head: version.head.describe(),
        path: version.loaded.path.display().to_string(),
        sha256: version.loaded.model.facts().sha256.clone(),
        format: version.loaded.model.format().to_string(),
    }
}

fn await_answer(pending: &Pending, keep_waiting: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    // Short enough for Ctrl-C to feel immediate.
    while !pending.wait(Duration::from_millis(50))? {
        keep_waiting()?;
    }
    Ok(())
}
