//! RelayRL's quick start with Relevo's engine, without Python: actors act, come, go and are renamed; routers are scaled; then
//! tasks of tokio make single calls, and one of them is cancelled.
//!
//! ```text
//! python examples/cartpole_policy.py cartpole.onnx
//! ORT_DYLIB_PATH=… cargo run --release --package relevo-onnx --example quick_start -- cartpole.onnx
//! ```

#![expect(clippy::print_stdout, reason = "it shows what it does")]

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use relevo_core::{
    policy::{HeadKind, PolicyOptions, PolicySlot},
    runtime::{ActOptions, ActorGroup, Agent, AgentConfig, Batching, FinalObservations, Outcome, Request, Values},
    tensor::as_bytes,
};
use tokio::time::timeout;
use uuid::Uuid;

type Fallible = Result<(), Box<dyn Error>>;

/// What four poles show: position and velocity of the cart, angle and angular velocity of the pole. The first two lean to the
/// right, so the cart must be pushed right, which is action 1; the others lean to the left.
const LEANING: [[f32; 4]; 4] =
    [[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, 0.2, 0.0], [0.0, 0.0, -0.1, 0.0], [0.0, 0.0, -0.2, 0.0]];
const PUSHES: [i64; 4] = [1, 1, 0, 0];

fn main() -> Fallible {
    let path = std::env::args().nth(1).ok_or("usage: quick_start MODEL, a policy for CartPole-v1")?;
    quick_start(Path::new(&path))?;
    tokio::runtime::Runtime::new()?.block_on(single_calls(Path::new(&path)))
}

/// A policy of the file: the model, and the head that makes actions of its outputs.
fn policy(path: &Path) -> relevo_core::Result<Arc<PolicySlot>> {
    PolicySlot::new("default", relevo_onnx::load(path)?, PolicyOptions::with_head(HeadKind::Argmax)).map(Arc::new)
}

fn quick_start(path: &Path) -> Fallible {
    // Four actors of one policy. What is not said has the default of `AgentConfig::new`.
    let agent = Agent::new(AgentConfig { actor_count: 4, seed: Some(7), ..AgentConfig::new(vec![policy(path)?]) })?;
    agent.start()?;
    let mut ids = agent.actor_ids()?;
    println!("an agent with {} actors runs", ids.len());

    // Request actions: one forward pass for all four.
    let actors = agent.group(&ids)?;
    let batch = actors.act(&[as_bytes(LEANING.as_flattened())], None, &ActOptions::default())?;
    println!("actions {:?} by version {:?}", batch.actions[0].values::<i64>(), batch.policy_versions);
    assert_eq!(batch.actions[0].values::<i64>(), PUSHES);
    actors.observe(&Outcome::new(1.0), &FinalObservations::default())?;

    // Versions: exchanging a model raises that of each actor that follows the policy.
    assert_eq!(agent.model_versions(&ids)?, [1; 4]);
    agent.update_model("default", relevo_onnx::load(path)?, None)?;
    assert_eq!(agent.model_versions(&ids)?, [2; 4]);

    // One new actor, then ten.
    ids.extend(agent.add_actors(1, None)?);
    ids.extend(agent.add_actors(10, None)?);
    assert_eq!(agent.actor_ids()?, ids);
    println!("{} actors after adding 1 and 10", ids.len());

    // Another id for the last one; no room for the one before it.
    let name = Uuid::new_v4();
    agent.rename_actor(ids[14], name)?;
    agent.remove_actor(ids[13])?;
    ids.splice(13.., [name]);
    assert_eq!(agent.actor_ids()?, ids);

    // The renamed actor makes a single call, which runs at once: nobody else is calling.
    let actor = agent.group(&[name])?;
    let batch = actor.act(&[as_bytes(&LEANING[0])], None, &ActOptions::default())?;
    assert_eq!((batch.actions[0].values::<i64>(), &batch.policy_versions[..]), (&[1][..], &[2][..]));

    // Its last action: what it earned, and that the pole fell, so the episode is over.
    let fell = Outcome { terminated: Values::Same(1), ..Outcome::new(1.0) };
    agent.observe(&[name], &fell, &FinalObservations::default())?;
    agent.flush(&mut || Ok(()))?;
    let episodes = agent.trajectories();
    assert_eq!(episodes.iter().map(|episode| (episode.actor_id, episode.len)).collect::<Vec<_>>(), [(name, 1)]);
    println!("the renamed actor's episode: {} step, return {}", episodes[0].len, episodes[0].episode_return());

    // More routers, which batch single calls; then as many as before.
    assert_eq!((agent.scale_routers(2)?, agent.scale_routers(-2)?), (3, 1));

    // Episodes that are still open are kept as incomplete ones.
    agent.shutdown(&mut || Ok(()))?;
    assert_eq!(agent.trajectories().len(), 5);
    assert!(actor.act(&[as_bytes(&LEANING[0])], None, &ActOptions::default()).is_err());
    println!("shut down, with {} episodes in memory\n", agent.trajectories().len());
    Ok(())
}

/// Tasks with an actor each, at the same time: their calls share forward passes.
async fn single_calls(path: &Path) -> Fallible {
    let agent = Agent::new(AgentConfig { actor_count: 4, ..AgentConfig::new(vec![policy(path)?]) })?;
    agent.start()?;
    let mut tasks = Vec::new();
    for (row, id) in agent.actor_ids()?.into_iter().enumerate() {
        tasks.push(tokio::spawn(play(agent.group(&[id])?, row)));
    }
    for task in tasks {
        task.await??;
    }
    let router = &agent.stats()?.routers[0].counts;
    println!("{} calls of 4 tasks took {} forward passes", router.rows, router.batches);
    assert_eq!(router.rows, 4 * CALLS);
    agent.shutdown(&mut || Ok(()))?;
    cancelled_call(path).await
}

const CALLS: u64 = 100;

async fn play(actor: Arc<ActorGroup>, row: usize) -> relevo_core::Result<()> {
    for _ in 0..CALLS {
        // The call is made here, and the ticket is a future. (`act` would block the thread on which the other tasks run.)
        let ticket = actor.request(&Request::new(&[as_bytes(&LEANING[row])]))?;
        assert_eq!(ticket.await?.actions[0].values::<i64>(), [PUSHES[row]]);
        actor.observe(&Outcome::new(1.0), &FinalObservations::default())?;
    }
    Ok(())
}

/// A call that nobody waits for any more is cancelled: nothing is recorded, and its actor may call again.
async fn cancelled_call(path: &Path) -> Fallible {
    // A batch goes as soon as all actors that are calling are in it, so only who is slower than the others sees this time.
    let batching = Batching { max_wait: Duration::from_mins(1), ..Batching::default() };
    let agent = Agent::new(AgentConfig { actor_count: 2, batching, ..AgentConfig::new(vec![policy(path)?]) })?;
    agent.start()?;
    let ids = agent.actor_ids()?;
    let (first, second) = (agent.group(&ids[..1])?, agent.group(&ids[1..])?);
    let request = |actor: &Arc<ActorGroup>, row: usize| actor.request(&Request::new(&[as_bytes(&LEANING[row])]));

    // The first is alone and gets its action at once. From now on the second one's batch waits for it to come back.
    request(&first, 0)?.await?;
    assert!(timeout(Duration::from_millis(10), request(&second, 2)?).await.is_err());
    println!("the second actor's call was cancelled after 10 ms");

    // Together they wait for nobody.
    let (left, right) = tokio::try_join!(request(&first, 0)?, request(&second, 2)?)?;
    assert_eq!((left.actions[0].values::<i64>(), right.actions[0].values::<i64>()), (&[1][..], &[0][..]));
    agent.shutdown(&mut || Ok(()))?;
    let steps: Vec<_> = agent.trajectories().iter().map(|episode| episode.len).collect();
    println!("steps recorded of each: {steps:?}");
    assert_eq!(steps.iter().sum::<usize>(), 3);
    Ok(())
}
