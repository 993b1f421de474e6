//! The sidecar of a segment: where its batches lie, their checksums, and which pieces of episodes they hold.
//!
//! It is a list of records, each with a checksum of its own: first the *preamble* (the segment's bytes before its first batch,
//! so its schema), then one record for each batch, written once that is in the segment, and at the end the places in the random
//! streams and the *end*. A batch counts once its record is whole. Numbers are little-endian; docs/run-folder.md has the layout.

use std::{
    fs::File,
    io::{self, Write},
    ops::Range,
    path::Path,
    sync::Arc,
};

use arrow_buffer::Buffer;
use bytemuck::{Pod, Zeroable};
use crc32fast::hash;
use uuid::Uuid;

use super::piece::Piece;

const MAGIC: [u8; 4] = *b"RIDX";
const HEADER_BYTES: usize = size_of::<Header>();

const PREAMBLE: u32 = 1;
const BATCH: u32 = 2;
const STREAMS: u32 = 3;
const END: u32 = 4;
const POLICIES: u32 = 5;

/// What every record begins with.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Header {
    magic: [u8; 4],
    kind: u32,
    /// Bytes of the body that follows.
    length: u32,
    body_checksum: u32,
    /// Of the fields above.
    checksum: u32,
    padding: u32,
}

impl Header {
    fn of(kind: u32, body: &[u8]) -> Option<Self> {
        let length = u32::try_from(body.len()).ok()?;
        let mut header = Self { magic: MAGIC, kind, length, body_checksum: hash(body), checksum: 0, padding: 0 };
        header.checksum = header.expected();
        Some(header)
    }

    fn expected(&self) -> u32 {
        hash(&bytemuck::bytes_of(self)[..16])
    }
}

/// Where a batch lies in its segment.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct BatchPlace {
    /// First byte of the message.
    pub(crate) offset: u64,
    /// Bytes of the message, body included.
    pub(crate) length: u64,
    pub(crate) rows: u64,
    /// CRC-32 of those bytes.
    pub(crate) checksum: u32,
    padding: u32,
}

impl BatchPlace {
    pub(crate) fn new(offset: u64, length: u64, rows: u64, checksum: u32) -> Self {
        Self { offset, length, rows, checksum, padding: 0 }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Rows of one episode in one batch, one behind the other.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub(crate) struct Part {
    /// The episode's.
    pub(crate) number: u64,
    actor_id: [u8; 16],
    /// Ordinal of the actor within the run.
    pub(crate) ordinal: u32,
    /// Row of the batch that it begins at.
    pub(crate) first_row: u32,
    /// Number of its first step within the episode.
    pub(crate) first_step: u32,
    /// Step rows; a closing row comes on top where it has one.
    pub(crate) steps: u32,
    pub(crate) flags: u32,
    /// The policy that acted first, as a place in [`Index::policies`].
    pub(crate) policy: u32,
    /// Steps whose reward never came.
    pub(crate) rewards_missing: u32,
    /// Rewards that are NaN.
    pub(crate) rewards_nan: u32,
    /// Rewards that are infinite.
    pub(crate) rewards_infinite: u32,
    padding: u32,
    /// How far the actor's random stream had been used.
    pub(crate) draws: u64,
    /// The lowest and the highest version that acted.
    pub(crate) lowest_version: u64,
    pub(crate) highest_version: u64,
    /// Sum of the rewards that came.
    pub(crate) reward_sum: f64,
    /// Nanoseconds since 1970.
    pub(crate) first_time: i64,
    pub(crate) last_time: i64,
}

impl Part {
    /// The environment's rules ended the episode.
    pub(crate) const TERMINATED: u32 = 1;
    /// Something else ended it.
    pub(crate) const TRUNCATED: u32 = 2;
    /// It ended, and the part has its closing row.
    pub(crate) const COMPLETE: u32 = 4;
    /// No part of the episode comes after this one.
    pub(crate) const LAST: u32 = 8;

    /// What the index tells of `piece`, whose rows begin at `first_row`; `policies` are the names that it tells already.
    pub(crate) fn of(piece: &Piece, first_row: u32, policies: &mut Vec<Arc<str>>) -> Self {
        let Piece { episode, first_step, last, ordinal, draws } = piece;
        let versions = || episode.policies.iter().map(|run| run.version);
        let times: &[i64] = episode.timestamps.typed_data();
        let known = episode.reward_known.as_ref().map(Buffer::as_slice);
        let rewards: &[f64] = episode.rewards.typed_data();
        let came = || rewards.iter().enumerate().filter(|(step, _)| known.is_none_or(|known| known[*step] != 0));
        let name = episode.policies.first().map_or("", |run| &*run.policy);
        let policy = place_of(name, policies);
        let flags = [
            (episode.terminated, Self::TERMINATED),
            (episode.truncated, Self::TRUNCATED),
            (episode.complete, Self::COMPLETE),
            (*last, Self::LAST),
        ];
        Self {
            number: episode.number,
            actor_id: episode.actor_id.into_bytes(),
            ordinal: *ordinal,
            first_row,
            first_step: *first_step,
            steps: episode.len as u32,
            flags: flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum(),
            policy,
            rewards_missing: (rewards.len() - came().count()) as u32,
            rewards_nan: came().filter(|(_, reward)| reward.is_nan()).count() as u32,
            rewards_infinite: came().filter(|(_, reward)| reward.is_infinite()).count() as u32,
            padding: 0,
            draws: *draws,
            lowest_version: versions().min().unwrap_or_default(),
            highest_version: versions().max().unwrap_or_default(),
            reward_sum: came().fold(0.0, |sum, (_, reward)| sum + reward),
            first_time: times.first().copied().unwrap_or_default(),
            last_time: times.last().copied().unwrap_or_default(),
        }
    }

    pub(crate) fn actor_id(&self) -> Uuid {
        Uuid::from_bytes(self.actor_id)
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Its rows, the closing row included.
    pub(crate) fn rows(&self) -> Range<usize> {
        let first = self.first_row as usize;
        first..first + self.steps as usize + usize::from(self.has(Self::COMPLETE))
    }
}

/// The place of a policy's name in the list, which gets it where it is new.
pub(crate) fn place_of(name: &str, policies: &mut Vec<Arc<str>>) -> u32 {
    let place = policies.iter().position(|known| **known == *name).unwrap_or_else(|| {
        policies.push(name.into());
        policies.len() - 1
    });
    place as u32
}

/// How far an actor's random stream has been used.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct StreamPlace {
    /// How many draws.
    pub draws: u64,
    /// Ordinal of the actor within the run.
    pub ordinal: u32,
    padding: u32,
}

impl StreamPlace {
    /// The place of the actor with this ordinal.
    pub fn new(ordinal: u32, draws: u64) -> Self {
        Self { draws, ordinal, padding: 0 }
    }
}

/// How a segment was closed.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct End {
    pub(crate) batches: u64,
    /// Bytes of the whole file.
    pub(crate) file_length: u64,
    /// CRC-32 of what follows the last batch.
    pub(crate) checksum: u32,
    padding: u32,
}

impl End {
    pub(crate) fn new(batches: u64, file_length: u64, checksum: u32) -> Self {
        Self { batches, file_length, checksum, padding: 0 }
    }
}

/// Appends to a sidecar.
#[derive(Debug)]
pub(crate) struct IndexWriter {
    file: File,
    record: Vec<u8>,
    /// How many policies it has told of.
    policies: usize,
}

impl IndexWriter {
    /// Makes the file, which must not be there yet; `preamble` is what the segment has before its first batch.
    pub(crate) fn create(path: &Path, preamble: &[u8]) -> io::Result<Self> {
        let mut writer = Self { file: File::create_new(path)?, record: Vec::new(), policies: 0 };
        writer.append(PREAMBLE, &[preamble])?;
        Ok(writer)
    }

    /// Tells of a batch that is in the segment; `policies` are the names that its parts count by.
    pub(crate) fn batch(&mut self, place: &BatchPlace, parts: &[Part], policies: &[Arc<str>]) -> io::Result<()> {
        if policies.len() > self.policies {
            let text = serde_json::to_vec(&policies.iter().map(|name| &**name).collect::<Vec<_>>())?;
            self.append(POLICIES, &[&text])?;
            self.policies = policies.len();
        }
        self.append(BATCH, &[bytemuck::bytes_of(place), bytemuck::cast_slice(parts)])
    }

    /// Tells how far random streams have been used.
    pub(crate) fn streams(&mut self, places: &[StreamPlace]) -> io::Result<()> {
        self.append(STREAMS, &[bytemuck::cast_slice(places)])
    }

    /// Tells that the segment is closed.
    pub(crate) fn end(&mut self, end: &End) -> io::Result<()> {
        self.append(END, &[bytemuck::bytes_of(end)])
    }

    /// Has the system put what was written on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// In one write, so that a process that is killed leaves it whole or not at all.
    fn append(&mut self, kind: u32, body: &[&[u8]]) -> io::Result<()> {
        self.record.clear();
        self.record.resize(HEADER_BYTES, 0);
        for part in body {
            self.record.extend_from_slice(part);
        }
        let header = Header::of(kind, &self.record[HEADER_BYTES..])
            .ok_or_else(|| io::Error::other("a record of the index would have 4 GiB"))?;
        self.record[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
        self.file.write_all(&self.record)
    }
}

/// A batch and its parts.
#[derive(Debug, Clone)]
pub(crate) struct IndexedBatch {
    pub(crate) place: BatchPlace,
    /// Of [`Index::parts`].
    pub(crate) parts: Range<usize>,
}

/// What a sidecar tells.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) preamble: Option<Vec<u8>>,
    /// In the order in which they were written.
    pub(crate) batches: Vec<IndexedBatch>,
    pub(crate) parts: Vec<Part>,
    pub(crate) streams: Vec<StreamPlace>,
    /// Names of policies.
    pub(crate) policies: Vec<Arc<str>>,
    pub(crate) end: Option<End>,
    /// Where records are damaged: offsets in the sidecar.
    pub(crate) damaged: Vec<u64>,
}

impl Index {
    /// Reads a sidecar. A record that is cut at its end was never written whole, and counts as none.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(path)?;
        let mut index = Self::default();
        let mut at = 0;
        while bytes.len() - at >= HEADER_BYTES {
            let header: Header = bytemuck::pod_read_unaligned(&bytes[at..at + HEADER_BYTES]);
            let body = at + HEADER_BYTES;
            if header.magic != MAGIC || header.checksum != header.expected() {
                index.damaged.push(at as u64);
                // Where the next one begins is not known: it is looked for.
                let Some(next) = (at + 1..bytes.len()).find(|next| is_header(&bytes[*next..])) else { break };
                at = next;
                continue;
            }
            let end = body + header.length as usize;
            let Some(body) = bytes.get(body..end) else { break };
            let is_whole = hash(body) == header.body_checksum && index.take(header.kind, body).is_some();
            if !is_whole || header.padding != 0 {
                index.damaged.push(at as u64);
            }
            at = end;
        }
        Ok(index)
    }

    fn take(&mut self, kind: u32, body: &[u8]) -> Option<()> {
        match kind {
            PREAMBLE => self.preamble = Some(body.to_vec()),
            BATCH => {
                let (place, parts) = body.split_at_checked(size_of::<BatchPlace>())?;
                let known = self.parts.len();
                self.parts.extend(records::<Part>(parts)?);
                let place: BatchPlace = bytemuck::try_pod_read_unaligned(place).ok()?;
                self.batches.push(IndexedBatch { place, parts: known..self.parts.len() });
            }
            STREAMS => self.streams.extend(records::<StreamPlace>(body)?),
            POLICIES => {
                let names: Vec<String> = serde_json::from_slice(body).ok()?;
                self.policies = names.into_iter().map(Arc::from).collect();
            }
            END => self.end = Some(bytemuck::try_pod_read_unaligned(body).ok()?),
            // Of a newer library, which would have raised the format's version if it mattered.
            _ => {}
        }
        Some(())
    }
}

fn is_header(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER_BYTES && bytes.starts_with(&MAGIC) && {
        let header: Header = bytemuck::pod_read_unaligned(&bytes[..HEADER_BYTES]);
        header.checksum == header.expected()
    }
}

/// The records that `bytes` are; `None` where they are not a whole number of them.
fn records<T: Pod>(bytes: &[u8]) -> Option<impl Iterator<Item = T>> {
    let chunks = bytes.chunks_exact(size_of::<T>());
    chunks.remainder().is_empty().then(|| chunks.map(bytemuck::pod_read_unaligned))
}
