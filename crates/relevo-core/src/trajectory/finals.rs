//! The final observations of a block.

use super::block::Block;

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

    /// The bytes of the observation that followed `row` of `column`.
    pub(crate) fn get(&self, row: usize, column: usize) -> Option<&'a [u8]> {
        let place = (row as u32, column as u32);
        let index = self.places.binary_search_by_key(&place, |(row, column, _)| (*row, *column)).ok()?;
        let (at, size) = (self.places[index].2, self.block.final_size());
        self.block.final_bytes.get(at * size..(at + 1) * size)
    }
}
