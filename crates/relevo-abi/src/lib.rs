//! The C table by which a model backend in another package joins Relevo, and helpers to write one in Rust.
//!
//! A backend implements [`export::Backend`], [`export::Model`] and [`export::Session`], and hands the table that
//! [`export::table`] makes to Python in a `PyCapsule` named [`CAPSULE_NAME`], from the function that an entry point of the
//! group [`ENTRY_POINTS`] names. `docs/backends.md` of the repository tells the whole of it;
//! `include/relevo_model_backend.h` is the same for C.
//!
//! Fields of the structs are only ever appended. Their `size` says which are there; [`ABI_VERSION`] rises when something
//! else changes, and a table of another version is refused.

#![expect(unsafe_code, reason = "a boundary to C: pointers are read and written")]

mod data;
pub mod export;
mod table;

use std::ffi::CStr;

pub use data::{
    BatchKind, Bytes, DType, Description, Device, Dim, Failure, FailureKind, Slice, StateLink, Tensor, TensorSpec, Text,
};
pub use table::{Allocate, BackendTable, EachDevice, ModelHandle, Options, RowShape, SessionHandle, Source};

/// The version of the table.
pub const ABI_VERSION: u32 = 1;

/// The name of the `PyCapsule` that holds a pointer to a [`BackendTable`].
pub const CAPSULE_NAME: &CStr = c"relevo.model_backend.v1";

/// The group of entry points by which backends are found.
pub const ENTRY_POINTS: &str = "relevo.model_backends";
