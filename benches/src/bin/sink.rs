//! Our side of `benches/peers/recording.py`: writes ready episodes into run folders.
//!
//! Usage: `sink FOLDER none|lz4|zstd vectors|images STEPS`. For each line that it reads, it writes all episodes into a new run
//! `FOLDER/<n>` and prints the nanoseconds from the first to the close, the steps, and the bytes of the segments.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::{
    error::Error,
    io::{BufRead, Write},
    path::Path,
    sync::Arc,
    time::Instant,
};

use relevo_core::{
    spec::DType,
    trajectory::{
        ColumnSpec, Compression, Episode, Fsync, Piece, PolicyRun, RunInfo, RunWriter, StepSchema, WriterOptions,
    },
};

const EPISODE_STEPS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, compression, kind, steps] = &arguments[..] else {
        return Err("usage: sink FOLDER none|lz4|zstd vectors|images STEPS".into());
    };
    let named = Compression::NAMES.iter().find(|(name, _)| name == compression).ok_or("no such compression")?;
    let options = WriterOptions { compression: named.1, fsync: Fsync::Never, ..WriterOptions::default() };
    let episodes = episodes(kind == "images", steps.parse()?);
    for (turn, line) in std::io::stdin().lock().lines().enumerate() {
        line?;
        let path = Path::new(folder).join(turn.to_string());
        let pieces: Vec<Piece> = episodes.iter().map(|episode| Piece::whole(episode.clone(), 0, 0)).collect();
        let begin = Instant::now();
        let mut writer = RunWriter::create(&path, &RunInfo::new(7, serde_json::Value::Null, Vec::new()), options)?;
        for piece in pieces {
            writer.push(piece)?;
        }
        writer.close(&[])?;
        let spent = begin.elapsed().as_nanos();
        let segments = std::fs::read_dir(path.join("segments"))?;
        let bytes: u64 = segments.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        let mut output = std::io::stdout();
        writeln!(output, "{spent} {} {bytes}", writer.steps_written())?;
        output.flush()?;
    }
    Ok(())
}

/// Episodes of a policy that takes vectors of 8 numbers or stacks of 4 images, and tells log-probabilities.
fn episodes(images: bool, steps: usize) -> Vec<Arc<Episode>> {
    let (dtype, shape) = if images { (DType::UInt8, vec![84, 84, 4]) } else { (DType::Float32, vec![8]) };
    let column = |dtype, shape| ColumnSpec { key: String::new(), dtype, shape };
    let schema = Arc::new(StepSchema {
        observations: vec![column(dtype, shape)],
        actions: vec![column(DType::Int64, Vec::new())],
        mask: None,
        log_prob: true,
        value: false,
        extras: Vec::new(),
    });
    let mut random = Random(7);
    (0..steps / EPISODE_STEPS)
        .map(|number| {
            let len = EPISODE_STEPS;
            let row_bytes = schema.observations[0].row_bytes();
            let observations: Vec<u8> = if images {
                // A few sprites on a plain ground, as games show.
                let mut frames = vec![0_u8; (len + 1) * row_bytes];
                for frame in frames.chunks_mut(row_bytes) {
                    for _ in 0..20 {
                        let (at, colour) = (random.next() as usize % (row_bytes - 64), random.next() as u8);
                        frame[at..at + 64].fill(colour);
                    }
                }
                frames
            } else {
                let mut state = [0.0_f32; 8];
                let rows = (0..=len).flat_map(|_| {
                    for value in &mut state {
                        *value += random.unit() - 0.5;
                    }
                    state
                });
                bytemuck::cast_slice(&rows.collect::<Vec<f32>>()).to_vec()
            };
            let start = 1_700_000_000_000_000_000 + (number * len) as i64 * 50_000;
            let times: Vec<i64> =
                (0..len as i64).map(|step| start + step * 50_000 + random.next() as i64 % 5_000).collect();
            Arc::new(Episode {
                number: number as u64,
                actor_id: uuid::Uuid::from_bytes([number as u8 % 64; 16]),
                schema: schema.clone(),
                len,
                observations: vec![bytes(&observations)],
                has_final_observation: true,
                actions: vec![bytes(&(0..len).map(|_| i64::from(random.next() as u8 % 4)).collect::<Vec<_>>())],
                masks: None,
                rewards: bytes(&vec![1.0_f64; len]),
                reward_known: None,
                log_probs: Some(bytes(&(0..len).map(|_| -random.unit()).collect::<Vec<f32>>())),
                values: None,
                extras: Vec::new(),
                policies: vec![PolicyRun { from: 0, policy: "default".into(), version: 1 }],
                timestamps: bytes(&times),
                terminated: true,
                truncated: false,
                complete: true,
            })
        })
        .collect()
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> arrow_buffer::Buffer {
    arrow_buffer::Buffer::from_slice_ref(bytemuck::cast_slice::<T, u8>(values))
}

/// Marsaglia's xorshift: data to write, not randomness to rely on.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn unit(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / 16_777_216.0
    }
}
