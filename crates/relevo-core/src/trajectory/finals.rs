//! The final observations of a block.

use super::block::Block;

/// The observation after an episode's last action.
#[derive(Debug, Clone, Copy)]
pub struct LastObservation<'a> {
    /// The bytes of all observation columns, one behind the other.
    pub bytes: &'a [u8],
    /// The observed texts, in the order of the extra columns.
    pub texts: &'a [String],
}

/// The final observations of a block, found by row and column.
pub(crate) struct Finals<'a> {
    block: &'a Block,
    /// (row, column, position among the finals), sorted.
    places: Vec<(u32, u32, usize)>,
}

impl<'a> Finals<'a> {
    pub(crate) fn new(block: &'a Block) -> Self {
        let mut places: Vec<_> =
            block.finals.iter().enumerate().map(|(at, last)| (last.row, last.column, at)).collect();
        places.sort_unstable();
        Self { block, places }
    }

    /// The observation that followed `row` of `column`.
    pub(crate) fn get(&self, row: usize, column: usize) -> Option<LastObservation<'a>> {
        let place = (row as u32, column as u32);
        let index = self.places.binary_search_by_key(&place, |(row, column, _)| (*row, *column)).ok()?;
        let (at, size, texts) = (self.places[index].2, self.block.final_size(), self.block.observed_texts());
        let bytes = self.block.final_bytes.get(at * size..(at + 1) * size)?;
        Some(LastObservation { bytes, texts: self.block.final_texts.get(at * texts..(at + 1) * texts)? })
    }
}
