//! Episodes, or pieces of them, as the buffers of one Arrow record batch.
//!
//! The columns of a piece are written from where they lie. What is the same for all rows of one, and what Arrow needs besides, is
//! made in a scratch that goes from batch to batch.

use std::ops::Range;

use arrow_buffer::Buffer;
use arrow_ipc::FieldNode;

use super::{ColumnSpec, ExtraKind, ExtraValues, Piece, StepSchema, Texts, schema};

/// Fails where a piece of an episode contradicts itself, so that its rows could not be written or read back.
pub(crate) fn check(piece: &Piece) -> Result<(), String> {
    let Piece { episode, first_step, .. } = piece;
    let steps = &episode.schema;
    if episode.len == 0 || u32::try_from(episode.len + 1 + *first_step as usize).is_err() {
        return Err(format!("it has {} steps from step {first_step} on; an episode has 1 to 2^32 - 2", episode.len));
    }
    if !episode.complete && (episode.has_final_observation || episode.terminated || episode.truncated) {
        return Err("it did not end, but has a final observation or an end's flag".into());
    }
    let mut lengths = vec![
        ("rewards", Some(&episode.rewards), Some(8)),
        ("timestamps", Some(&episode.timestamps), Some(8)),
        ("masks", episode.masks.as_ref(), steps.mask),
        ("log-probabilities", episode.log_probs.as_ref(), steps.log_prob.then_some(4)),
        ("values", episode.values.as_ref(), steps.value.then_some(4)),
    ];
    if let Some(known) = &episode.reward_known {
        lengths.push(("flags of known rewards", Some(known), Some(1)));
    }
    if episode.actions.len() != steps.actions.len() {
        return Err(format!("it has {} action columns instead of {}", episode.actions.len(), steps.actions.len()));
    }
    for (buffer, column) in episode.actions.iter().zip(&steps.actions) {
        lengths.push(("actions", Some(buffer), Some(column.row_bytes())));
    }
    for (name, found, row_bytes) in lengths {
        let found = found.map(Buffer::len);
        let expected = row_bytes.map(|row_bytes| row_bytes * episode.len);
        if found != expected {
            let bytes = |len: Option<usize>| len.map_or("none".into(), |len| format!("{len} bytes"));
            return Err(format!("of its {name} there should be {}, and there are {}", bytes(expected), bytes(found)));
        }
    }
    let observation_rows = episode.len + usize::from(episode.has_final_observation);
    let found = episode.observations.iter().map(Buffer::len);
    if !found.eq(steps.observations.iter().map(|column| column.row_bytes() * observation_rows)) {
        return Err(format!("its observations are not {observation_rows} rows of each column"));
    }
    let mut extras = steps.extras.iter().zip(&episode.extras);
    let fit = extras.all(|(spec, values)| values.fit(spec, spec.rows(episode.len, episode.has_final_observation)));
    if steps.extras.len() != episode.extras.len() || !fit {
        return Err("its extra columns have not a value of their kind for each step".into());
    }
    let starts = episode.policies.iter().map(|run| run.from);
    if !starts.clone().take(1).eq([0]) || !starts.is_sorted_by(|a, b| a < b && *b < episode.len) {
        return Err("its policy runs do not cover its steps in order".into());
    }
    Ok(())
}

/// A record batch before it is packed: in the order of the columns, lengths and buffers.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) rows: usize,
    pub(crate) nodes: Vec<FieldNode>,
    pub(crate) buffers: Vec<Vec<Chunk>>,
    /// What chunks are made in.
    made: Vec<u8>,
}

/// Some bytes of a buffer.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// A column of a piece.
    Column(Buffer),
    /// In the scratch.
    Made(Range<usize>),
}

impl Body {
    /// The bytes of a chunk of its own.
    pub(crate) fn bytes<'a>(&'a self, chunk: &'a Chunk) -> &'a [u8] {
        match chunk {
            Chunk::Column(buffer) => buffer,
            Chunk::Made(range) => &self.made[range.clone()],
        }
    }

    /// Takes these pieces, which are of the schema `steps` and passed [`check`], in place of what it held.
    pub(crate) fn fill(&mut self, steps: &StepSchema, pieces: &[Piece]) -> Result<(), String> {
        self.nodes.clear();
        self.buffers.clear();
        self.made.clear();
        self.rows = pieces.iter().map(Piece::rows).sum();
        let closings = pieces.iter().filter(|piece| piece.episode.complete).count();
        // What a closing row has not: an action and all that comes with one.
        let acted = self.bits(pieces, |piece, bits| {
            bits.append_n(piece.episode.len, true);
            bits.append_n(usize::from(piece.episode.complete), false);
        });
        let unobserved =
            pieces.iter().filter(|piece| piece.episode.complete && !piece.episode.has_final_observation).count();
        let observed = self.bits(pieces, |piece, bits| {
            let episode = &piece.episode;
            bits.append_n(episode.len + usize::from(episode.has_final_observation), true);
            bits.append_n(usize::from(episode.complete && !episode.has_final_observation), false);
        });
        let mut unrewarded = closings;
        let rewarded = self.bits(pieces, |piece, bits| {
            match &piece.episode.reward_known {
                None => bits.append_n(piece.episode.len, true),
                Some(known) => known.iter().for_each(|known| {
                    unrewarded += usize::from(*known == 0);
                    bits.append(*known != 0);
                }),
            }
            bits.append_n(usize::from(piece.episode.complete), false);
        });

        self.repeated(pieces, |piece| piece.episode.actor_id.into_bytes());
        self.repeated(pieces, |piece| piece.episode.number.to_le_bytes());
        self.made_column(pieces, |piece, made| {
            for (number, step) in grow::<4>(made, piece.rows()).iter_mut().zip(piece.first_step..) {
                *number = step.to_le_bytes();
            }
        });
        for (index, column) in steps.observations.iter().enumerate() {
            self.tensors(column, &observed, unobserved, pieces, |piece| Some(&piece.episode.observations[index]));
        }
        for (index, column) in steps.actions.iter().enumerate() {
            self.tensors(column, &acted, closings, pieces, |piece| Some(&piece.episode.actions[index]));
        }
        if let Some(width) = steps.mask {
            let column = schema::mask_column(width);
            self.tensors(&column, &acted, closings, pieces, |piece| piece.episode.masks.as_ref());
        }
        self.numbers(8, &rewarded, unrewarded, pieces, |piece| Some(&piece.episode.rewards));
        for flag in [|piece: &Piece| piece.episode.terminated, |piece: &Piece| piece.episode.truncated] {
            let bits = self.bits(pieces, |piece, bits| {
                bits.append_n(piece.episode.len - 1, false);
                bits.append(flag(piece));
                bits.append_n(usize::from(piece.episode.complete), false);
            });
            self.column(0, &[]);
            self.buffers.push(vec![Chunk::Made(bits)]);
        }
        if steps.log_prob {
            self.numbers(4, &acted, closings, pieces, |piece| piece.episode.log_probs.as_ref());
        }
        if steps.value {
            self.numbers(4, &acted, closings, pieces, |piece| piece.episode.values.as_ref());
        }
        self.policies(pieces)?;
        self.made_column(pieces, |piece, made| {
            for (run, rows) in policy_rows(piece) {
                grow(made, rows).fill(piece.episode.policies[run].version.to_le_bytes());
            }
        });
        // The closing row has the time of the last step.
        self.column(0, &[]);
        let mut chunks = Vec::new();
        for Piece { episode, .. } in pieces {
            chunks.push(Chunk::Column(episode.timestamps.clone()));
            if episode.complete {
                chunks.push(Chunk::Column(episode.timestamps.slice_with_length((episode.len - 1) * 8, 8)));
            }
        }
        self.buffers.push(chunks);
        for (index, spec) in steps.extras.iter().enumerate() {
            let (valid, nulls) = if spec.observed { (&observed, unobserved) } else { (&acted, closings) };
            match &spec.kind {
                ExtraKind::Tensor(column) => {
                    self.tensors(column, valid, nulls, pieces, |piece| match piece.episode.extras.get(index) {
                        Some(ExtraValues::Tensor(bytes)) => Some(bytes),
                        _ => None,
                    });
                }
                ExtraKind::Text => self.texts(valid, nulls, pieces, |piece| match piece.episode.extras.get(index) {
                    Some(ExtraValues::Text(texts)) => texts.clone(),
                    _ => Texts::default(),
                })?,
            }
        }
        Ok(())
    }

    /// Bits of all rows, in the scratch.
    fn bits(&mut self, pieces: &[Piece], mut append: impl FnMut(&Piece, &mut Bits<'_>)) -> Range<usize> {
        let start = self.made.len();
        let mut bits = Bits { made: &mut self.made, filled: 8 };
        for piece in pieces {
            append(piece, &mut bits);
        }
        start..self.made.len()
    }

    /// A column of rows of which `nulls` are null; with its validity where there are any.
    fn column(&mut self, nulls: usize, valid: &[Range<usize>]) {
        self.nodes.push(FieldNode::new(self.rows as i64, nulls as i64));
        let valid = if nulls > 0 { valid.iter().cloned().map(Chunk::Made).collect() } else { Vec::new() };
        self.buffers.push(valid);
    }

    /// A column that is made.
    fn made_column(&mut self, pieces: &[Piece], append: impl Fn(&Piece, &mut Vec<u8>)) {
        self.column(0, &[]);
        let start = self.made.len();
        for piece in pieces {
            append(piece, &mut self.made);
        }
        self.buffers.push(vec![Chunk::Made(start..self.made.len())]);
    }

    /// A column with one value for all rows of a piece.
    fn repeated<const N: usize>(&mut self, pieces: &[Piece], value: impl Fn(&Piece) -> [u8; N]) {
        self.made_column(pieces, |piece, made| {
            grow(made, piece.rows()).fill(value(piece));
        });
    }

    /// A column of tensors.
    fn tensors<'a>(
        &mut self,
        column: &ColumnSpec,
        valid: &Range<usize>,
        nulls: usize,
        pieces: &'a [Piece],
        buffer: impl Fn(&'a Piece) -> Option<&'a Buffer>,
    ) {
        if column.shape.is_empty() {
            return self.numbers(column.dtype.size(), valid, nulls, pieces, buffer);
        }
        self.column(nulls, std::slice::from_ref(valid));
        let elements = self.rows * column.shape.iter().product::<usize>();
        self.nodes.push(FieldNode::new(elements as i64, 0));
        self.buffers.push(Vec::new());
        self.gathered(column.row_bytes(), pieces, buffer);
    }

    /// A column of single numbers.
    fn numbers<'a>(
        &mut self,
        size: usize,
        valid: &Range<usize>,
        nulls: usize,
        pieces: &'a [Piece],
        buffer: impl Fn(&'a Piece) -> Option<&'a Buffer>,
    ) {
        self.column(nulls, std::slice::from_ref(valid));
        self.gathered(size, pieces, buffer);
    }

    /// A column of texts; rows that a piece has no text for are null.
    fn texts(
        &mut self,
        valid: &Range<usize>,
        nulls: usize,
        pieces: &[Piece],
        texts: impl Fn(&Piece) -> Texts,
    ) -> Result<(), String> {
        self.column(nulls, std::slice::from_ref(valid));
        let start = self.made.len();
        let mut end = 0_usize;
        self.made.extend_from_slice(&0_i32.to_le_bytes());
        let mut chunks = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let texts = texts(piece);
            for row in 0..piece.rows() {
                end += if row < texts.len() { texts.length(row) } else { 0 };
                let offset = i32::try_from(end).map_err(|_| "its texts would fill over 2 GB of one batch")?;
                self.made.extend_from_slice(&offset.to_le_bytes());
            }
            chunks.push(Chunk::Column(texts.bytes()));
        }
        self.buffers.push(vec![Chunk::Made(start..self.made.len())]);
        self.buffers.push(chunks);
        Ok(())
    }

    /// The pieces' buffers one after the other, with zeros for the rows they lack.
    fn gathered<'a>(
        &mut self,
        row_bytes: usize,
        pieces: &'a [Piece],
        buffer: impl Fn(&'a Piece) -> Option<&'a Buffer>,
    ) {
        let zeros = self.made.len()..self.made.len() + row_bytes;
        self.made.resize(zeros.end, 0);
        let mut chunks = Vec::with_capacity(2 * pieces.len());
        for piece in pieces {
            let found = buffer(piece);
            chunks.extend(found.cloned().map(Chunk::Column));
            let rows = found.map_or(0, |found| found.len() / row_bytes.max(1));
            chunks.extend((rows..piece.rows()).map(|_| Chunk::Made(zeros.clone())));
        }
        self.buffers.push(chunks);
    }

    /// The policies' names; the closing row has that of the last step.
    fn policies(&mut self, pieces: &[Piece]) -> Result<(), String> {
        self.column(0, &[]);
        let start = self.made.len();
        let mut end = 0_usize;
        self.made.extend_from_slice(&0_i32.to_le_bytes());
        for piece in pieces {
            for (run, rows) in policy_rows(piece) {
                let length = piece.episode.policies[run].policy.len();
                if i32::try_from(end + rows * length).is_err() {
                    return Err("the policies' names would fill over 2 GB of one batch; use shorter names".into());
                }
                for offset in grow::<4>(&mut self.made, rows) {
                    end += length;
                    *offset = (end as i32).to_le_bytes();
                }
            }
        }
        self.buffers.push(vec![Chunk::Made(start..self.made.len())]);
        let start = self.made.len();
        for piece in pieces {
            for (run, rows) in policy_rows(piece) {
                let name = piece.episode.policies[run].policy.as_bytes();
                repeat(&mut self.made, name, rows);
            }
        }
        self.buffers.push(vec![Chunk::Made(start..self.made.len())]);
        Ok(())
    }
}

/// The policy runs of a piece and how many rows each has, the closing row among those of the last.
fn policy_rows(piece: &Piece) -> impl Iterator<Item = (usize, usize)> {
    let policies = &piece.episode.policies;
    (0..policies.len()).map(|run| {
        let until = policies.get(run + 1).map_or(piece.rows(), |next| next.from);
        (run, until - policies[run].from)
    })
}

/// Appends `bytes` as often, in moves that become longer and longer.
fn repeat(made: &mut Vec<u8>, bytes: &[u8], times: usize) {
    let (start, length) = (made.len(), bytes.len() * times);
    made.reserve(length);
    made.extend_from_slice(&bytes[..bytes.len().min(length)]);
    while made.len() - start < length {
        let more = (made.len() - start).min(length - (made.len() - start));
        made.extend_from_within(start..start + more);
    }
}

/// Appends `count` entries of N bytes, to be written.
fn grow<const N: usize>(made: &mut Vec<u8>, count: usize) -> &mut [[u8; N]] {
    let start = made.len();
    made.resize(start + count * N, 0);
    made[start..].as_chunks_mut().0
}

/// Appends bits, the lowest of a byte first.
struct Bits<'a> {
    made: &'a mut Vec<u8>,
    /// Bits of the last byte that are taken.
    filled: u32,
}

impl Bits<'_> {
    fn append(&mut self, bit: bool) {
        self.append_n(1, bit);
    }

    fn append_n(&mut self, mut count: usize, bit: bool) {
        while count > 0 {
            if self.filled == 8 {
                let whole = count / 8;
                self.made.resize(self.made.len() + whole, if bit { 0xff } else { 0 });
                count -= whole * 8;
                if count > 0 {
                    self.made.push(0);
                    self.filled = 0;
                }
            } else {
                let taken = count.min(8 - self.filled as usize) as u32;
                if bit && let Some(last) = self.made.last_mut() {
                    *last |= (((1_u16 << taken) - 1) << self.filled) as u8;
                }
                self.filled += taken;
                count -= taken as usize;
            }
        }
    }
}
