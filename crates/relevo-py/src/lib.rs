//! `relevo._core`: the engine for Python. One file a class; each has a stub file of the same name in
//! `python/relevo/_core/`.

mod action_batch;
mod actor_id;
mod actors;
mod agent;
mod array;
mod backends;
mod contract;
mod detach;
mod device_tensor;
mod devices;
mod episode;
mod episode_arrays;
mod error;
mod event_loop;
mod extras;
mod final_observations;
mod fork;
mod kernels;
mod logging;
mod machine;
mod model;
mod observations;
mod once;
mod outcome;
mod pending_action;
mod policy_settings;
mod record_settings;
mod run;
mod run_writer;
mod steps;
mod subscription;
mod tensor_device;
mod update;

use pyo3::prelude::*;

/// Relevo's engine.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{
        action_batch::ActionBatch,
        actors::Actors,
        agent::Agent,
        backends::other_backends,
        contract::{Contract, StateContract, TensorContract},
        devices::devices,
        episode::Episode,
        kernels::{
            EmaPlanTracker, attention_bandwidth_cost, bandwidth_aware_priorities, bandwidth_efficiency,
            discounted_returns, effective_bandwidth_cost, gae, n_step, plan_surprise, prefix_match,
            prioritized_proportional, priority_sample, vtrace,
        },
        logging::{close_events, next_event},
        machine::processors,
        model::ModelModule,
        pending_action::PendingAction,
        policy_settings::{check_bounds, check_normalization},
        run::{Episodes, Run, repair_run},
        run_writer::RunWriter,
        steps::{StepBatches, Steps},
        subscription::Subscription,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // A type that is made at its first use would be made behind a cell that lets go of the interpreter lock (see `once`).
        module.py().get_type::<super::event_loop::EventLoop>();
        super::logging::install();
        super::fork::watch(module)
    }
}
