//! What the benchmarks share: a model that costs next to nothing, so that the engine around it is what is measured.
