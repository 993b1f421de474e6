//! RelayRL on the workloads of `../../relayrl_actors.py` and `../../relayrl_single_calls.py`.
//!
//! `relevo-peer-relayrl actors MODEL ACTORS CALLS`: N actors, each asked for an action by one call of the agent. First it
//! prints the output for an observation of 1, 2, … 8 eighths, so that it can be compared. Then, for every line that it
//! reads, it makes CALLS calls and prints how many nanoseconds each of them took.
//!
//! `relevo-peer-relayrl single-calls MODEL ROWS threads|tasks CALLS ROUTERS`: a caller for each actor, as `callers` reads
//! them from ROWS. For every line that it reads, each of them makes CALLS calls; it prints how many nanoseconds they all
//! took together, and then each call. A wrong action ends the program.

mod callers;

use std::{
    error::Error,
    io::{BufRead, Write},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use relayrl_framework::prelude::{
    network::{ActorInfo, AgentBuilder, RelayRLActors, RelayRLAgent, RelayRLStepDriven},
    types::tensor::burn::{Float, Tensor, ndarray::NdArray},
};
use relayrl_types::{
    data::{
        action::RelayRLAction,
        tensor::{DType, DeviceType, NdArrayDType},
    },
    model::{ModelFileType, ModelMetadata, ModelModule},
};

type Backend = NdArray<f32>;

const WIDTH: usize = 8;
const CHOICES: usize = 4;
const EPISODE_STEPS: usize = 200;
/// RelayRL's own bound on a trajectory, out of the way.
const LONGEST_TRAJECTORY: usize = 1_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["actors", model, actors, calls] => all_actors(model, actors.parse()?, calls.parse()?).await,
        ["single-calls", model, rows, way @ ("threads" | "tasks"), calls, routers] => {
            single_calls(model, rows, *way == "tasks", calls.parse()?, routers.parse()?).await
        }
        _ => Err("usage: relevo-peer-relayrl actors MODEL ACTORS CALLS, or \
                  relevo-peer-relayrl single-calls MODEL ROWS threads|tasks CALLS ROUTERS"
            .into()),
    }
}

async fn all_actors(model: &str, count: u32, calls: usize) -> Result<(), Box<dyn Error>> {
    let (mut agent, actors) = started(model, count, 1).await?;
    let observation: Vec<f32> = (1..=WIDTH).map(|index| index as f32 / WIDTH as f32).collect();
    let observation = tensor(&observation);
    let first = agent.request_actions::<2, 2, Float, Float>(&actors, observation.clone(), None, 1.0).await?;
    let output: Vec<String> = output(&first[0].1)?.iter().map(f32::to_string).collect();
    say(&output)?;

    let mut step = 0;
    for line in std::io::stdin().lock().lines() {
        line?;
        let mut spent = Vec::with_capacity(calls);
        for _ in 0..calls {
            let observation = observation.clone();
            let begin = Instant::now();
            let actions = agent.request_actions::<2, 2, Float, Float>(&actors, observation, None, 1.0).await?;
            spent.push(begin.elapsed().as_nanos().to_string());
            assert_eq!(actions.len(), actors.len());
            step += 1;
            if step % EPISODE_STEPS == 0 {
                agent.flag_last_actions(&actors, Some(1.0)).await?;
            }
        }
        say(&spent)?;
    }
    agent.shutdown().await?;
    Ok(())
}

async fn single_calls(
    model: &str,
    rows: &str,
    as_tasks: bool,
    calls: usize,
    routers: u32,
) -> Result<(), Box<dyn Error>> {
    let rows = callers::read(&PathBuf::from(rows), WIDTH)?;
    let (agent, actors) = started(model, rows.len() as u32, routers).await?;
    let agent = Arc::new(agent);
    let runtime = tokio::runtime::Handle::current();
    for line in std::io::stdin().lock().lines() {
        line?;
        let caller = |index: usize| caller(agent.clone(), actors[index].clone(), rows[index].clone(), calls);
        let turn = if as_tasks {
            callers::tasks(rows.len(), caller).await
        } else {
            tokio::task::block_in_place(|| callers::threads(&runtime, rows.len(), caller))
        };
        say(&turn.line())?;
    }
    // Not shut down: after calls from threads, that takes RelayRL up to 45 s for 64 actors, in which it is idle.
    std::process::exit(0)
}

/// One caller's calls.
async fn caller(
    agent: Arc<RelayRLAgent<Backend>>,
    actor: ActorInfo,
    rows: Arc<[callers::Row]>,
    calls: usize,
) -> Vec<Duration> {
    let mut spent = Vec::with_capacity(calls);
    for (step, (observation, expected)) in (1..=calls).zip(rows.iter().cycle()) {
        let begin = Instant::now();
        let action = agent.request_action::<2, 2, Float, Float>(&actor, tensor(observation), None, 1.0).await;
        let logits = output(&action.expect("RelayRL gave an error")).expect("the action is empty");
        let chosen = (0..CHOICES).max_by(|&left, &right| logits[left].total_cmp(&logits[right]));
        spent.push(begin.elapsed());
        assert_eq!(chosen, Some(*expected), "a wrong action");
        if step % EPISODE_STEPS == 0 {
            agent.flag_last_action(&actor, Some(1.0)).await.expect("RelayRL gave an error");
        }
    }
    spent
}

/// A running agent with its defaults: inference here, trajectories in memory.
async fn started(
    model: &str,
    actors: u32,
    routers: u32,
) -> Result<(RelayRLAgent<Backend>, Vec<ActorInfo>), Box<dyn Error>> {
    let metadata = ModelMetadata {
        model_file: "mlp.onnx".into(),
        model_type: ModelFileType::Onnx,
        input_dtype: DType::NdArray(NdArrayDType::F32),
        output_dtype: DType::NdArray(NdArrayDType::F32),
        input_shape: vec![1, WIDTH],
        output_shape: vec![1, CHOICES],
        default_device: Some(DeviceType::Cpu),
    };
    let module = ModelModule::<Backend>::from_onnx_bytes(std::fs::read(model)?, metadata)?;
    let config = std::env::temp_dir().join(format!("relayrl-{}.json", std::process::id()));
    std::fs::write(&config, "{}")?;
    let (mut agent, params) = AgentBuilder::<Backend>::builder()
        .params()
        .default_model(module)
        .config_path(config.clone())
        .data_routers(routers)
        .build()
        .await?;
    agent.start(params).await?;
    let actors = agent.new_actors::<2, 2>(actors, DeviceType::Cpu, LONGEST_TRAJECTORY, None, None).await?;
    std::fs::remove_file(config)?;
    Ok((agent, actors))
}

fn tensor(observation: &[f32]) -> Tensor<Backend, 2, Float> {
    Tensor::<Backend, 1, Float>::from_floats(observation, &Default::default()).reshape([1, WIDTH as i32])
}

/// The model's output, which is what RelayRL calls the action.
fn output(action: &RelayRLAction) -> Result<Vec<f32>, Box<dyn Error>> {
    let bytes = &action.get_act().ok_or("the action is empty")?.data;
    Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
}

fn say(values: &[String]) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{}", values.join(" "))?;
    output.flush()
}
