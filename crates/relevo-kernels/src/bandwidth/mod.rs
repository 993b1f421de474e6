//! What attention costs, and what is earned for it (EchoRL).

mod cost;
mod efficiency;
mod priorities;

pub use cost::{attention_bandwidth_cost, effective_bandwidth_cost};
pub use efficiency::{Efficiency, bandwidth_efficiency};
pub use priorities::{Priorities, bandwidth_aware_priorities};
