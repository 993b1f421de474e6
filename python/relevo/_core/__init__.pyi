"""Relevo's engine. One stub file for each Rust file of that name."""

from relevo._core.action_batch import ActionBatch
from relevo._core.actors import Actors
from relevo._core.agent import Agent
from relevo._core.backends import other_backends
from relevo._core.contract import Contract, StateContract, TensorContract
from relevo._core.devices import devices
from relevo._core.episode import Episode
from relevo._core.kernels import (
    EMAPlanTracker,
    attention_bandwidth_cost,
    bandwidth_aware_priorities,
    bandwidth_efficiency,
    discounted_returns,
    effective_bandwidth_cost,
    gae,
    n_step,
    plan_surprise,
    prefix_match,
    prioritized_proportional,
    priority_sample,
    vtrace,
)
from relevo._core.logging import close_events, next_event
from relevo._core.machine import processors
from relevo._core.model import ModelModule
from relevo._core.pending_action import PendingAction
from relevo._core.policy_settings import check_bounds, check_normalization
from relevo._core.run import Episodes, Run, repair_run
from relevo._core.run_writer import RunWriter
from relevo._core.steps import StepBatches, Steps
from relevo._core.subscription import Subscription

__all__ = [
    "ActionBatch",
    "Actors",
    "Agent",
    "Contract",
    "EMAPlanTracker",
    "Episode",
    "Episodes",
    "ModelModule",
    "PendingAction",
    "Run",
    "RunWriter",
    "StateContract",
    "StepBatches",
    "Steps",
    "Subscription",
    "TensorContract",
    "__version__",
    "attention_bandwidth_cost",
    "bandwidth_aware_priorities",
    "bandwidth_efficiency",
    "check_bounds",
    "check_normalization",
    "close_events",
    "devices",
    "discounted_returns",
    "effective_bandwidth_cost",
    "gae",
    "n_step",
    "next_event",
    "other_backends",
    "plan_surprise",
    "prefix_match",
    "prioritized_proportional",
    "priority_sample",
    "processors",
    "repair_run",
    "vtrace",
]

__version__: str
