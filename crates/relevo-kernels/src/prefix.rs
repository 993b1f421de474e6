//! Common prefixes of token sequences (EchoRL).

use crate::check;
use crate::error::Result;

/// Tokens that are compared between two looks at the outcome.
const CHUNK: usize = 64;

/// Length of the longest common prefix of two sequences of tokens.
///
/// ```
/// assert_eq!(relevo_kernels::prefix::prefix_match(&[5, 6, 7, 8], &[5, 6, 9]), 2);
/// ```
pub fn prefix_match<T: Copy + PartialEq>(a: &[T], b: &[T]) -> usize {
    let shorter = a.len().min(b.len());
    let (a, b) = (&a[..shorter], &b[..shorter]);
    let chunks = a.chunks_exact(CHUNK).zip(b.chunks_exact(CHUNK)).take_while(|(a, b)| a == b).count();
    let start = chunks * CHUNK;
    start + a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count()
}

/// [`prefix_match`] of each sequence of `a` with each of `b`, into `lengths`: `[a.len(), b.len()]`, row by row.
///
/// The sequences are sorted first. Then the common prefix of two of them is the shortest of those of the neighbours between
/// them, so a length costs the same however many tokens are shared. The working memory is of the size of `a` and `b`.
///
/// # Errors
/// An output of another length.
pub fn prefix_match_many<T: Copy + Ord>(a: &[&[T]], b: &[&[T]], lengths: &mut [i64]) -> Result<()> {
    check::length("lengths", lengths, a.len() * b.len(), "one for each pair")?;
    let sequence = |index: usize| a.get(index).or_else(|| b.get(index - a.len())).copied().unwrap_or_default();
    let mut order: Vec<usize> = (0..a.len() + b.len()).collect();
    order.sort_unstable_by(|left, right| sequence(*left).cmp(sequence(*right)));
    let with_next: Vec<usize> =
        order.windows(2).map(|pair| prefix_match(sequence(pair[0]), sequence(pair[1]))).collect();
    for (rank, index) in order.iter().enumerate().filter(|(_, index)| **index < a.len()) {
        let row = &mut lengths[index * b.len()..][..b.len()];
        let mut shortest = usize::MAX;
        for (other, shared) in order[rank + 1..].iter().zip(&with_next[rank..]) {
            shortest = shortest.min(*shared);
            if let Some(column) = other.checked_sub(a.len()) {
                row[column] = shortest as i64;
            }
        }
        shortest = usize::MAX;
        for (other, shared) in order[..rank].iter().zip(&with_next[..rank]).rev() {
            shortest = shortest.min(*shared);
            if let Some(column) = other.checked_sub(a.len()) {
                row[column] = shortest as i64;
            }
        }
    }
    Ok(())
}
