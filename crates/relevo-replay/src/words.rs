//! Memory that many threads read and write at a time, word by word.
//!
//! Words are atomic, so that a reader that comes while a writer is at work gets words of before and after, and never undefined
//! behaviour; whether all are of one step is told by the step's header. A plain move of a word is what it compiles to.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::schema::WORD;

/// Words, all 0 at first.
pub(crate) struct Words(Box<[AtomicU64]>);

impl std::fmt::Debug for Words {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} words", self.0.len())
    }
}

impl Words {
    /// So many words. They are written to here, so that memory that is not there is missed now.
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// One word.
    pub(crate) fn get(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }

    /// Writes bytes from word `at` on; those of the last word that are not told become 0.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<WORD>();
        let words = &self.0[at..at + bytes.len().div_ceil(WORD)];
        for (word, bytes) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    /// Reads bytes from word `at` on.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        let words = &self.0[at..at + bytes.len().div_ceil(WORD)];
        let (whole, rest) = bytes.as_chunks_mut::<WORD>();
        for (word, bytes) in words.iter().zip(whole) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let last = word.load(Ordering::Relaxed).to_ne_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}
