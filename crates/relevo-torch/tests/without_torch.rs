//! Runs the unit tests of the parts that need neither torch nor Python. An extension module leaves Python's symbols to the
//! interpreter, so its own test executable would not link everywhere.

#![expect(dead_code, reason = "the rest of the crate uses what the tests do not")]

#[path = "../src/archive.rs"]
mod archive;
#[path = "../src/declared.rs"]
mod declared;
#[path = "../src/guess.rs"]
mod guess;
#[path = "../src/scalar.rs"]
mod scalar;
