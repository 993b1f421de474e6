//! Replay buffers: the newest steps of many environments, each observation stored once, and transitions drawn from them alike
//! or by priority. Threads may add, sample and update priorities at a time.

mod batch;
mod buffer;
mod closings;
mod error;
mod memory;
mod ring;
mod sampler;
mod schema;
mod streams;
mod transition;
mod tree;
mod words;

pub use batch::{Batch, Rows};
pub use buffer::{ReplayBuffer, Settings, Steps};
pub use error::{Error, Result};
pub use sampler::{Prioritized, Sampler, UpdateReport};
pub use schema::Schema;
