//! The last observations of episodes. No step follows them, so they are kept apart, as long as the step before them is there.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::words::Words;

/// Observations of a chunk: few enough that little is wasted, many enough that there are few chunks.
const CHUNK: usize = 64;

#[derive(Debug)]
pub(crate) struct Closings {
    /// Words of one observation.
    words: usize,
    chunks: RwLock<Vec<Arc<Words>>>,
    /// Places that are free.
    free: Mutex<Vec<u32>>,
}

impl Closings {
    pub(crate) fn new(words: usize) -> Self {
        Self { words, chunks: RwLock::default(), free: Mutex::default() }
    }

    /// Keeps an observation; its place.
    pub(crate) fn put(&self, observation: &[u8]) -> u32 {
        let place = self.take();
        let (chunk, at) = self.at(place);
        chunk.write(at, observation);
        place
    }

    /// Reads the observation at a place.
    pub(crate) fn read(&self, place: u32, observation: &mut [u8]) {
        let (chunk, at) = self.at(place);
        chunk.read(at, observation);
    }

    /// Gives a place back.
    pub(crate) fn release(&self, place: u32) {
        self.free.lock().push(place);
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.read().len() * CHUNK * self.words * crate::schema::WORD
    }

    fn take(&self) -> u32 {
        let mut free = self.free.lock();
        if let Some(place) = free.pop() {
            return place;
        }
        let mut chunks = self.chunks.write();
        let first = chunks.len() * CHUNK;
        chunks.push(Arc::new(Words::new(CHUNK * self.words)));
        // The lowest is taken first.
        free.extend((first as u32 + 1..(first + CHUNK) as u32).rev());
        first as u32
    }

    fn at(&self, place: u32) -> (Arc<Words>, usize) {
        let place = place as usize;
        (self.chunks.read()[place / CHUNK].clone(), place % CHUNK * self.words)
    }
}
