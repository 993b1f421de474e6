//! Extra columns: what a caller adds to each step besides what the runtime records by itself, and observations that are texts,
//! which no policy reads.

use std::ops::Range;

use arrow_buffer::{Buffer, MutableBuffer};

use super::ColumnSpec;
use crate::error::{Error, Result};

/// What each value of an extra column is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ExtraKind {
    /// A tensor, or a scalar.
    Tensor(ColumnSpec),
    /// A text of any length, UTF-8.
    Text,
}

/// A column that a caller fills.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExtraSpec {
    /// What the caller calls it.
    pub name: String,
    /// What its values are.
    pub kind: ExtraKind,
    /// Whether it is an observation: then the final observation has a value as well.
    pub observed: bool,
}

impl ExtraSpec {
    /// Bytes of a cell of a block, without the text.
    pub(crate) fn cell_bytes(&self) -> usize {
        match &self.kind {
            ExtraKind::Tensor(column) => column.row_bytes(),
            ExtraKind::Text => size_of::<Range<usize>>(),
        }
    }

    /// How many values an episode has: one for each step, and one for the final observation of what is observed.
    pub(crate) fn rows(&self, len: usize, has_final_observation: bool) -> usize {
        len + usize::from(self.observed && has_final_observation)
    }
}

/// The values of an extra column in a call, one for each actor.
#[derive(Debug, Clone, Copy)]
pub enum ExtraInput<'a> {
    /// The bytes of the tensors, one behind the other.
    Tensor(&'a [u8]),
    /// The texts.
    Text(&'a [String]),
}

/// Checks the values of extra columns that a call of `rows` actors gives.
///
/// # Errors
/// [`Error::Contract`] where they are not those of the columns.
pub(crate) fn check_inputs(specs: &[ExtraSpec], inputs: &[ExtraInput<'_>], rows: usize) -> Result<()> {
    if specs.len() != inputs.len() {
        return Err(Error::Contract(format!(
            "a call must give a value for each of the {} extra columns, but gives {}",
            specs.len(),
            inputs.len()
        )));
    }
    for (spec, input) in specs.iter().zip(inputs) {
        let fits = match (&spec.kind, input) {
            (ExtraKind::Tensor(column), ExtraInput::Tensor(bytes)) => bytes.len() == rows * column.row_bytes(),
            (ExtraKind::Text, ExtraInput::Text(texts)) => texts.len() == rows,
            _ => false,
        };
        if !fits {
            return Err(Error::Contract(format!(
                "the extra column `{}` must have a value of its kind for each of the {rows} actors",
                spec.name
            )));
        }
    }
    Ok(())
}

/// The cells of an extra column, in a block or for one row to come.
#[derive(Debug)]
pub enum ExtraCells {
    /// Tensors of `size` bytes.
    Tensor {
        /// Bytes of a cell.
        size: usize,
        /// All cells.
        bytes: Vec<u8>,
    },
    /// Texts: where each lies among the bytes.
    Text {
        /// The places, one for each cell.
        places: Vec<Range<usize>>,
        /// The texts, in the order in which they came.
        bytes: Vec<u8>,
    },
}

impl ExtraCells {
    /// So many empty cells.
    pub(crate) fn new(spec: &ExtraSpec, cells: usize) -> Self {
        match &spec.kind {
            ExtraKind::Tensor(column) => {
                let size = column.row_bytes();
                Self::Tensor { size, bytes: vec![0; cells * size] }
            }
            ExtraKind::Text => Self::Text { places: vec![0..0; cells], bytes: Vec::new() },
        }
    }

    /// Forgets the texts; the allocations stay.
    pub(crate) fn clear(&mut self) {
        if let Self::Text { places, bytes } = self {
            places.fill(0..0);
            bytes.clear();
        }
    }

    /// Bytes of the texts, which grow as cells are filled.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Tensor { .. } => 0,
            Self::Text { bytes, .. } => bytes.len(),
        }
    }

    /// Takes the values of one row, which were checked; column c gets row order[c].
    pub(crate) fn write(&mut self, input: ExtraInput<'_>, order: Option<&[u32]>) {
        self.clear();
        match (self, input) {
            (Self::Tensor { size, bytes }, ExtraInput::Tensor(given)) => match order {
                None => bytes.copy_from_slice(given),
                Some(order) => {
                    for (cell, row) in bytes.chunks_exact_mut((*size).max(1)).zip(order) {
                        cell.copy_from_slice(&given[*row as usize * *size..][..*size]);
                    }
                }
            },
            (Self::Text { places, bytes }, ExtraInput::Text(texts)) => {
                for (column, place) in places.iter_mut().enumerate() {
                    let row = order.map_or(column, |order| order[column] as usize);
                    let start = bytes.len();
                    bytes.extend_from_slice(texts[row].as_bytes());
                    *place = start..bytes.len();
                }
            }
            _ => {}
        }
    }

    /// Copies `cells` of `from`, which is of the same kind, to those from `to` on.
    pub(crate) fn copy(&mut self, to: usize, from: &Self, cells: Range<usize>) {
        match (self, from) {
            (Self::Tensor { size, bytes }, Self::Tensor { bytes: source, .. }) => {
                bytes[to * *size..][..cells.len() * *size]
                    .copy_from_slice(&source[cells.start * *size..cells.end * *size]);
            }
            (Self::Text { places, bytes }, Self::Text { places: source_places, bytes: source }) => {
                for (target, place) in places[to..].iter_mut().zip(&source_places[cells]) {
                    let start = bytes.len();
                    bytes.extend_from_slice(&source[place.clone()]);
                    *target = start..bytes.len();
                }
            }
            _ => {}
        }
    }

    /// The bytes of a cell.
    pub(crate) fn get(&self, cell: usize) -> &[u8] {
        match self {
            Self::Tensor { size, bytes } => &bytes[cell * size..(cell + 1) * size],
            Self::Text { places, bytes } => &bytes[places[cell].clone()],
        }
    }
}

/// The values of an extra column of an episode.
#[derive(Debug, Clone, PartialEq)]
pub enum ExtraValues {
    /// Tensors, one behind the other.
    Tensor(Buffer),
    /// Texts.
    Text(Texts),
}

impl ExtraValues {
    /// Whether they are so many values of the column.
    pub(crate) fn fit(&self, spec: &ExtraSpec, rows: usize) -> bool {
        match (self, &spec.kind) {
            (Self::Tensor(bytes), ExtraKind::Tensor(column)) => bytes.len() == rows * column.row_bytes(),
            (Self::Text(texts), ExtraKind::Text) => texts.len() == rows,
            _ => false,
        }
    }

    /// How many there are; `None` where that cannot be told, of tensors without elements.
    fn rows(&self, spec: &ExtraSpec) -> Option<usize> {
        match (self, &spec.kind) {
            (Self::Tensor(bytes), ExtraKind::Tensor(column)) => bytes.len().checked_div(column.row_bytes()),
            (Self::Text(texts), ExtraKind::Text) => Some(texts.len()),
            _ => None,
        }
    }

    /// Bytes that they fill.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Tensor(bytes) => bytes.len(),
            Self::Text(texts) => texts.bytes().len() + texts.len() * size_of::<i32>(),
        }
    }

    /// These rows, without a copy.
    pub(crate) fn slice(&self, spec: &ExtraSpec, rows: Range<usize>) -> Self {
        match (self, &spec.kind) {
            (Self::Tensor(bytes), ExtraKind::Tensor(column)) => {
                let size = column.row_bytes();
                Self::Tensor(bytes.slice_with_length(rows.start * size, rows.len() * size))
            }
            (Self::Text(texts), _) => Self::Text(texts.slice(rows)),
            (other, _) => other.clone(),
        }
    }

    /// All rows of several, one behind the other; `None` where they are of different kinds.
    pub(crate) fn joined<'a>(parts: impl Iterator<Item = &'a Self> + Clone) -> Option<Self> {
        match parts.clone().next()? {
            Self::Tensor(_) => {
                let mut all = MutableBuffer::new(0);
                for part in parts {
                    let Self::Tensor(bytes) = part else { return None };
                    all.extend_from_slice(bytes);
                }
                Some(Self::Tensor(all.into()))
            }
            Self::Text(_) => {
                let texts = parts.map(|part| if let Self::Text(texts) = part { Some(texts) } else { None });
                let texts: Option<Vec<&Texts>> = texts.collect();
                Some(Self::Text(texts?.into_iter().flat_map(Texts::iter).collect()))
            }
        }
    }
}

/// Texts: offsets as int64, one more than there are texts, and the bytes.
#[derive(Debug, Clone, Default)]
pub struct Texts {
    offsets: Buffer,
    bytes: Buffer,
}

impl Texts {
    /// Texts at these offsets, as Arrow has them, of the bytes; `None` where they do not fit the bytes, or those are no UTF-8
    /// there.
    pub(crate) fn new(offsets: &[i32], bytes: Buffer) -> Option<Self> {
        let fits = offsets.first().is_some_and(|first| *first >= 0)
            && offsets.is_sorted()
            && offsets.last().is_some_and(|last| *last as usize <= bytes.len());
        if !fits {
            return None;
        }
        let texts = Self { offsets: offsets.iter().map(|offset| i64::from(*offset)).collect(), bytes };
        (0..texts.len()).all(|row| str::from_utf8(texts.bytes_of(row)).is_ok()).then_some(texts)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.offsets().len().saturating_sub(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text in a row.
    pub fn get(&self, row: usize) -> &str {
        str::from_utf8(self.bytes_of(row)).unwrap_or_default()
    }

    /// All texts, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|row| self.get(row))
    }

    /// Length of the text in a row.
    pub(crate) fn length(&self, row: usize) -> usize {
        self.bytes_of(row).len()
    }

    /// The bytes of all texts, one behind the other.
    pub(crate) fn bytes(&self) -> Buffer {
        let (first, last) = match self.offsets() {
            [first, .., last] => (*first as usize, *last as usize),
            _ => (0, 0),
        };
        self.bytes.slice_with_length(first, last - first)
    }

    fn offsets(&self) -> &[i64] {
        self.offsets.typed_data()
    }

    fn bytes_of(&self, row: usize) -> &[u8] {
        let offsets = self.offsets();
        &self.bytes[offsets[row] as usize..offsets[row + 1] as usize]
    }

    fn slice(&self, rows: Range<usize>) -> Self {
        const SIZE: usize = size_of::<i64>();
        let offsets = self.offsets.slice_with_length(rows.start * SIZE, (rows.len() + 1) * SIZE);
        Self { offsets, bytes: self.bytes.clone() }
    }
}

impl PartialEq for Texts {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a> FromIterator<&'a str> for Texts {
    fn from_iter<T: IntoIterator<Item = &'a str>>(texts: T) -> Self {
        let (mut offsets, mut bytes) = (vec![0_i64], Vec::new());
        for text in texts {
            bytes.extend_from_slice(text.as_bytes());
            offsets.push(bytes.len() as i64);
        }
        Self { offsets: Buffer::from_vec(offsets), bytes: Buffer::from_vec(bytes) }
    }
}

/// The values of an extra column of an episode that goes on.
#[derive(Debug)]
pub(crate) struct ExtraColumn {
    /// Where each text ends, after a 0; `None` where they are tensors.
    offsets: Option<Vec<i64>>,
    bytes: MutableBuffer,
}

impl ExtraColumn {
    pub(crate) fn new(spec: &ExtraSpec) -> Self {
        let offsets = matches!(spec.kind, ExtraKind::Text).then(|| vec![0]);
        Self { offsets, bytes: MutableBuffer::new(0) }
    }

    /// Those of `values`.
    pub(crate) fn of(values: &ExtraValues) -> Self {
        let mut bytes = MutableBuffer::new(0);
        match values {
            ExtraValues::Tensor(tensors) => {
                bytes.extend_from_slice(tensors);
                Self { offsets: None, bytes }
            }
            ExtraValues::Text(texts) => {
                let mut column = Self { offsets: Some(vec![0]), bytes };
                texts.iter().for_each(|text| column.push(text.as_bytes()));
                column
            }
        }
    }

    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        if let Some(offsets) = &mut self.offsets {
            offsets.push(self.bytes.len() as i64);
        }
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.offsets.as_ref().map_or(0, |offsets| (offsets.len() - 1) * size_of::<i32>())
    }

    /// Row `from` and all behind it, as a column of their own.
    pub(crate) fn tail(&self, spec: &ExtraSpec, from: usize) -> Self {
        let values = self.values();
        let rows = values.rows(spec).unwrap_or(from);
        Self::of(&values.slice(spec, from..rows))
    }

    /// A copy of what it holds.
    pub(crate) fn values(&self) -> ExtraValues {
        let bytes = Buffer::from(self.bytes.as_slice());
        match &self.offsets {
            None => ExtraValues::Tensor(bytes),
            Some(offsets) => ExtraValues::Text(Texts { offsets: offsets.iter().copied().collect(), bytes }),
        }
    }
}
