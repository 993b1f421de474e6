//! What the benchmarks share: a model that costs next to nothing, so that the engine around it is what is measured.

#[path = "../../crates/relevo-core/tests/common/mod.rs"]
#[expect(missing_docs, clippy::missing_panics_doc, reason = "test code, shared")]
pub mod common;
