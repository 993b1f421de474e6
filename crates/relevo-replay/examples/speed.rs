use relevo_core::{spec::DType, trajectory::ColumnSpec};
use relevo_replay::*;
use std::time::Instant;
fn main() {
    let column = |key: &str, dtype, shape: &[usize]| ColumnSpec { key: key.into(), dtype, shape: shape.to_vec() };
    for (capacity, sampler) in [
        (100_000, Sampler::Uniform),
        (100_000, Sampler::Prioritized(Prioritized::default())),
        (1_000_000, Sampler::Prioritized(Prioritized::default())),
    ] {
        let schema = Schema::new(
            vec![
                column("obs", DType::Float32, &[17]),
                column("action", DType::Float32, &[6]),
                column("reward", DType::Float32, &[]),
            ],
            "obs",
            Some("reward"),
        )
        .unwrap();
        let buffer =
            ReplayBuffer::new(Settings { capacity, schema, sampler, n_step: 1, gamma: 0.99, seed: 0 }).unwrap();
        let obs = vec![0_u8; 17 * 4 * 256];
        let act = vec![0_u8; 6 * 4 * 256];
        let rew = vec![0_u8; 4 * 256];
        let flags = [0_u8; 256];
        let envs: Vec<u32> = (0..256).collect();
        let begin = Instant::now();
        for _ in 0..capacity / 256 + 2 {
            buffer
                .add(&Steps {
                    count: 256,
                    columns: &[&obs, &act, &rew],
                    terminated: &flags,
                    truncated: &flags,
                    final_observations: None,
                    envs: &envs,
                })
                .unwrap();
        }
        println!(
            "{sampler:?} {capacity}: add {:.1} ns a step",
            begin.elapsed().as_nanos() as f64 / (capacity + 512) as f64
        );
        let mut times: Vec<_> = (0..3000)
            .map(|_| {
                let begin = Instant::now();
                let batch = buffer.sample(256).unwrap();
                std::hint::black_box(&batch);
                begin.elapsed().as_nanos()
            })
            .collect();
        times.sort();
        println!("  sample p50 {:.1} us p10 {:.1}", times[1500] as f64 / 1e3, times[300] as f64 / 1e3);
        if matches!(sampler, Sampler::Prioritized(_)) {
            let batch = buffer.sample(256).unwrap();
            let priorities: Vec<f64> = (0..256).map(|p| 0.1 + p as f64).collect();
            let mut times: Vec<_> = (0..3000)
                .map(|_| {
                    let b = buffer.sample(256).unwrap();
                    let begin = Instant::now();
                    buffer.update_priorities(&b.keys, &priorities).unwrap();
                    begin.elapsed().as_nanos()
                })
                .collect();
            times.sort();
            println!("  update p50 {:.1} us p10 {:.1}", times[1500] as f64 / 1e3, times[300] as f64 / 1e3);
            drop(batch);
        }
    }
}
