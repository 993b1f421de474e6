//! The workers of one model: few, shared by all who call it.

use std::{
    ops::{Deref, DerefMut},
    thread::available_parallelism,
};

use parking_lot::{Condvar, Mutex};

use super::Worker;
use crate::error::Result;

/// Workers for as many callers at a time as the machine has processors; more of them would only wait for each other, and
/// each holds weights of its own.
pub struct WorkerPool {
    state: Mutex<State>,
    returned: Condvar,
    most: usize,
}

#[derive(Default)]
struct State {
    idle: Vec<Worker>,
    made: usize,
}

/// A worker, until it is dropped.
pub struct PooledWorker<'a> {
    pool: &'a WorkerPool,
    worker: Option<Worker>,
}

impl WorkerPool {
    /// An empty pool.
    pub fn new() -> Self {
        Self { state: Mutex::default(), returned: Condvar::new(), most: available_parallelism().map_or(1, Into::into) }
    }

    /// A worker for one caller: an idle one, or a new one by `make` while there are few, or the next that is handed back.
    pub fn checkout(&self, make: impl FnOnce() -> Result<Worker>) -> Result<PooledWorker<'_>> {
        let mut state = self.state.lock();
        loop {
            if let Some(worker) = state.idle.pop() {
                return Ok(PooledWorker { pool: self, worker: Some(worker) });
            }
            if state.made < self.most {
                break;
            }
            self.returned.wait(&mut state);
        }
        state.made += 1;
        drop(state);
        // Until there is a worker in it, dropping this gives the place in the pool back.
        let mut pooled = PooledWorker { pool: self, worker: None };
        pooled.worker = Some(make()?);
        Ok(pooled)
    }
}

impl Default for WorkerPool {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for PooledWorker<'_> {
    type Target = Worker;

    #[expect(clippy::expect_used, reason = "it is there from checkout to drop")]
    fn deref(&self) -> &Worker {
        self.worker.as_ref().expect("a worker that was checked out")
    }
}

impl DerefMut for PooledWorker<'_> {
    #[expect(clippy::expect_used, reason = "it is there from checkout to drop")]
    fn deref_mut(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("a worker that was checked out")
    }
}

impl Drop for PooledWorker<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        match self.worker.take() {
            Some(worker) => state.idle.push(worker),
            None => state.made -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("WorkerPool")
    }
}
