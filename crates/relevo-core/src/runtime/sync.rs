//! The primitives under [`super::handover`]. Its stress test puts others in their place, whose every interleaving it decides.

pub(super) use parking_lot::Mutex;
pub(super) use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::{Thread, current, park, park_timeout},
};
