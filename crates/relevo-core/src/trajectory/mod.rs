//! Trajectories: blocks that the runtime fills, episodes that are cut from them, and where episodes go (memory, a run
//! folder), with the reader of such a folder.

mod batch;
mod batch_columns;
mod block;
mod builder;
mod columns;
mod compression;
mod encoder;
mod episode;
mod finals;
mod index;
mod map;
mod memory;
mod message;
mod piece;
mod reader;
mod recorder;
mod recorder_stats;
mod repair;
mod resume;
mod run;
mod schema;
mod segment;
mod segment_writer;
mod steps;
mod subscription;
mod table;
mod writer;

pub use batch_columns::{PlainColumn, acted_rows, plain_columns};
pub use block::{ActorTag, Block, BlockLayout, FinalObservation, Flags, Segment};
pub use compression::Compression;
pub use episode::{ColumnSpec, Episode, PolicyRun, StepSchema};
pub use index::StreamPlace;
pub use memory::MemoryLimit;
pub use piece::Piece;
pub use reader::{Episodes, Run};
pub use recorder::{Pending, Recorder, RecorderConfig, Sealer, Spares};
pub use recorder_stats::RecorderStats;
pub use repair::{Report, repair};
pub use resume::Resumed;
pub use run::{ModelInfo, RunInfo};
pub use segment_writer::Fsync;
pub use steps::Steps;
pub use subscription::{Next, Subscription, WhenFull};
pub use table::{EpisodeSummary, Selection};
pub use writer::{RunWriter, WriterOptions};
