//! RelayRL on the workload of `../../act.py`: N actors, each asked for an action by one call of its agent.
//!
//! Usage: `relevo-peer-relayrl MODEL ACTORS CALLS`. First it prints the output for an observation of 1, 2, … 8 eighths, so
//! that it can be compared. Then, for every line that it reads, it makes CALLS calls and prints how many nanoseconds each
//! of them took.

use std::{
    error::Error,
    io::{BufRead, Write},
    time::Instant,
};

use relayrl_framework::prelude::{
    network::{AgentBuilder, RelayRLActors, RelayRLStepDriven},
    types::tensor::burn::{Float, Tensor, ndarray::NdArray},
};
use relayrl_types::{
    data::tensor::{DType, DeviceType, NdArrayDType},
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
    let [model, actors, calls] = arguments.as_slice() else {
        return Err("usage: relevo-peer-relayrl MODEL ACTORS CALLS".into());
    };
    let (count, calls): (u32, usize) = (actors.parse()?, calls.parse()?);
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
    // Its defaults: inference here, trajectories in memory.
    let (mut agent, params) =
        AgentBuilder::<Backend>::builder().params().default_model(module).config_path(config.clone()).build().await?;
    agent.start(params).await?;
    let actors = agent.new_actors::<2, 2>(count, DeviceType::Cpu, LONGEST_TRAJECTORY, None, None).await?;

    let observation: Vec<f32> = (1..=WIDTH).map(|index| index as f32 / WIDTH as f32).collect();
    let observation = Tensor::<Backend, 1, Float>::from_floats(observation.as_slice(), &Default::default())
        .reshape([1, WIDTH as i32]);
    let first = agent.request_actions::<2, 2, Float, Float>(&actors, observation.clone(), None, 1.0).await?;
    let bytes = &first[0].1.get_act().ok_or("the action is empty")?.data;
    let output: Vec<String> = bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).to_string())
        .collect();
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
    std::fs::remove_file(config)?;
    Ok(())
}

fn say(values: &[String]) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{}", values.join(" "))?;
    output.flush()
}
