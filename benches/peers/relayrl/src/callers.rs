//! Many callers with an actor each, each of which makes single calls, one after the other.

use std::{
    error::Error,
    future::Future,
    path::Path,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

/// Observations of a caller, which it goes through again and again.
pub const DIFFERENT: usize = 16;

/// An observation, and the action that the policy takes there.
pub type Row = (Vec<f32>, usize);

/// Reads what each caller asks for: little-endian float32 `[callers, DIFFERENT, width + 1]`, the action last in each row.
pub fn read(path: &Path, width: usize) -> Result<Vec<Arc<[Row]>>, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
    let rows: Vec<Row> =
        numbers.chunks_exact(width + 1).map(|row| (row[..width].to_vec(), row[width] as usize)).collect();
    Ok(rows.chunks_exact(DIFFERENT).map(Arc::from).collect())
}

/// What one turn took.
#[derive(Default)]
pub struct Turn {
    /// From the start of all callers until the last has ended.
    pub elapsed: Duration,
    /// Of each call.
    pub spent: Vec<Duration>,
}

impl Turn {
    /// As one line of nanoseconds: what all took together, then each call.
    pub fn line(&self) -> Vec<String> {
        std::iter::once(&self.elapsed).chain(&self.spent).map(|time| time.as_nanos().to_string()).collect()
    }
}

/// A thread for each caller; `caller(index)` makes its calls and gives how long each took.
pub fn threads<F>(runtime: &tokio::runtime::Handle, count: usize, caller: impl Fn(usize) -> F + Sync) -> Turn
where
    F: Future<Output = Vec<Duration>>,
{
    let gate = Barrier::new(count + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                let (gate, caller) = (&gate, &caller);
                scope.spawn(move || {
                    gate.wait();
                    runtime.block_on(caller(index))
                })
            })
            .collect();
        gate.wait();
        let begin = Instant::now();
        let spent = threads.into_iter().flat_map(|thread| thread.join().expect("a caller panicked")).collect();
        Turn { elapsed: begin.elapsed(), spent }
    })
}

/// A task for each caller, on the runtime's own threads.
pub async fn tasks<F>(count: usize, caller: impl Fn(usize) -> F) -> Turn
where
    F: Future<Output = Vec<Duration>> + Send + 'static,
{
    let begin = Instant::now();
    let tasks: Vec<_> = (0..count).map(|index| tokio::spawn(caller(index))).collect();
    let mut turn = Turn::default();
    for task in tasks {
        turn.spent.extend(task.await.expect("a caller panicked"));
    }
    turn.elapsed = begin.elapsed();
    turn
}
