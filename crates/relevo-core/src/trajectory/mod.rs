//! Trajectories: blocks that the runtime fills, episodes that are cut from them, and where episodes go (memory, a run
//! folder), with the reader of such a folder.

mod batch;
mod block;
mod builder;
mod episode;
mod memory;
mod reader;
mod recorder;
mod run;
mod schema;
mod segment;
mod writer;

pub use block::{ActorTag, Block, BlockLayout, FinalObservation, Flags, Segment};
pub use episode::{ColumnSpec, Episode, PolicyRun, StepSchema};
pub use memory::MemoryLimit;
pub use reader::{Episodes, Run};
pub use recorder::{Pending, Recorder, RecorderConfig, RecorderStats, Sealer, Spares};
pub use run::{ModelInfo, RunInfo};
pub use writer::RunWriter;
