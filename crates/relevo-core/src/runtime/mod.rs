//! The multi-actor runtime. To follow a call from `act` to the recorded step, read:
//!
//! 1. [`group`]: a group of actors that act together, and the block that it fills;
//! 2. [`act`]: one call: observations into the block, one forward pass a policy, the head, the committed row;
//! 3. [`observe`]: what the actions earned, written into the same row;
//! 4. [`ticket`]: a single call, which shares its pass with those of other callers: [`batch`], [`batcher`], [`handover`],
//!    [`router`];
//! 5. [`crate::trajectory::Recorder`]: full blocks become episodes, in memory and on disk;
//! 6. [`agent`]: the life cycle of actors and policies around it.

mod act;
mod actor;
mod agent;
mod batch;
mod batcher;
mod baton;
mod config;
mod extras;
mod group;
mod handover;
mod memory;
mod observe;
mod placed;
mod results;
mod router;
mod routers;
mod seat;
mod segment;
mod shared;
mod stats;
mod sync;
mod ticket;

pub use act::{ActCall, ActOptions, Recording, first_nan};
pub use actor::Actor;
pub use agent::Agent;
pub use baton::Baton;
pub use config::{AgentConfig, Batching, OnError, RecordConfig};
pub use group::ActorGroup;
pub use handover::Caller;
pub use observe::{FinalObservations, Outcome, Rewards, Values};
pub use results::ActionResults;
pub use stats::{AgentStats, PolicyReport, RouterCounts, RouterReport};
pub use ticket::{Pass, Request, Ticket};
