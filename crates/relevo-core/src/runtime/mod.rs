//! The multi-actor runtime. To follow a call from `act` to the recorded step, read:
//!
//! 1. [`group`]: a group of actors that act together, and the block that it fills;
//! 2. [`act`]: one call: observations into the block, one forward pass a policy, the head, the committed row;
//! 3. [`observe`]: what the actions earned, written into the same row;
//! 4. [`crate::trajectory::Recorder`]: full blocks become episodes, in memory and on disk;
//! 5. [`agent`]: the life cycle of actors and policies around it.

mod act;
mod actor;
mod agent;
mod config;
mod group;
mod observe;
mod results;
mod shared;
mod stats;

pub use act::{ActCall, ActOptions, Recording, first_nan};
pub use actor::Actor;
pub use agent::Agent;
pub use config::AgentConfig;
pub use group::ActorGroup;
pub use observe::{FinalObservations, Outcome, Rewards, Values};
pub use results::ActionResults;
pub use stats::{AgentStats, PolicyReport};
