//! Random operators inside a graph: every session gets seeds of its own.
//!
//! ONNX Runtime seeds an operator without a `seed` attribute by the process and the node, so two sessions of one file draw the
//! same numbers, call for call; with the attribute they do so by the file's word. Its C API has no other way to seed them.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    graph::RANDOM_OPS,
    rewrite::{standard_operator, tag},
    wire::{self, Field, Patch, messages, text},
};

/// Number of an attribute that is one float.
const FLOAT: u64 = 1;

/// Seeds are numbers of this many bits, which a float32 holds exactly.
const SEED_BITS: u32 = 24;

/// The seeds of a graph's random operators.
#[derive(Debug)]
pub(crate) struct Noise {
    /// Where the seeds stand in the file's bytes.
    places: Vec<Range<usize>>,
    /// The number that the first seed is made of.
    base: u32,
    /// Seeds that were given away.
    given: AtomicU32,
}

impl Noise {
    /// Gives each random operator of a file a `seed` attribute: the edited file, and what its seeds are made of.
    ///
    /// Where the file seeds all of them, that is these seeds, so that a run can be repeated; otherwise a number that differs from
    /// load to load. Operators in functions that the file defines stay as they are: a function that is called twice would draw
    /// the same numbers both times.
    pub(crate) fn new(bytes: &[u8]) -> Result<(Vec<u8>, Self), String> {
        let mut patch = Patch::new(bytes);
        for graph in messages(bytes, 0..bytes.len(), tag::MODEL_GRAPH)? {
            patch.inside(&graph, |patch| place_seeds(patch, bytes, graph.body.clone()))?;
        }
        let mut own = Vec::new();
        let mut operators = 0;
        for graph in messages(bytes, 0..bytes.len(), tag::MODEL_GRAPH)? {
            operators += find_seeds(bytes, graph.body, &mut own)?;
        }
        let base = if own.len() == operators && operators > 0 {
            own.iter().fold(0, |mixed: u32, seed| {
                let bits = bytes[seed.clone()].iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
                mixed.wrapping_mul(0x0100_0193) ^ bits ^ bits >> 8
            })
        } else {
            RandomState::new().build_hasher().finish() as u32
        };
        let edited = patch.finish();
        let mut places = Vec::new();
        for graph in messages(&edited, 0..edited.len(), tag::MODEL_GRAPH)? {
            find_seeds(&edited, graph.body, &mut places)?;
        }
        Ok((edited, Self { places, base, given: AtomicU32::new(0) }))
    }

    /// The file for the next session: no two of 16 million operators of sessions have the same seed.
    pub(crate) fn seeded(&self, bytes: &[u8]) -> Vec<u8> {
        let mut seeded = bytes.to_vec();
        let count = self.places.len() as u32;
        let first = self.given.fetch_add(count, Ordering::Relaxed);
        for (place, ordinal) in self.places.iter().zip(0..count) {
            let seed = scattered(self.base.wrapping_add(first).wrapping_add(ordinal));
            // ONNX Runtime takes the float as an unsigned number, and a generator that likes to start with a large one.
            let seed = (u64::from(seed) << (31 - SEED_BITS)) as f32;
            seeded[place.clone()].copy_from_slice(&seed.to_le_bytes());
        }
        seeded
    }
}

/// A number of [`SEED_BITS`] bits; different ones give different ones, which neither follow nor resemble each other.
fn scattered(number: u32) -> u32 {
    const MASK: u32 = (1 << SEED_BITS) - 1;
    let mut mixed = number & MASK;
    // Each step can be undone: multiplication by an odd number, and what is above mixed into what is below.
    for odd in [0x00C2_B2AF, 0x0085_EBCB, 0x009E_3779] {
        mixed ^= mixed >> 13;
        mixed = mixed.wrapping_mul(odd) & MASK;
    }
    mixed ^ mixed >> 11
}

fn is_random(bytes: &[u8], node: Range<usize>) -> Result<bool, String> {
    Ok(standard_operator(bytes, node)?.is_some_and(|op| RANDOM_OPS.contains(&op)))
}

/// Exchanges the `seed` attribute of every random operator in a graph for one that stands at the end of the node.
fn place_seeds(patch: &mut Patch<'_>, bytes: &[u8], graph: Range<usize>) -> Result<(), String> {
    for node in messages(bytes, graph, tag::GRAPH_NODE)? {
        let random = is_random(bytes, node.body.clone())?;
        patch.inside(&node, |patch| {
            for attribute in messages(bytes, node.body.clone(), tag::NODE_ATTRIBUTE)? {
                if random && is_seed(bytes, &attribute)? {
                    patch.replace(attribute.whole, Vec::new());
                    continue;
                }
                patch.inside(&attribute, |patch| {
                    for graph in graphs(bytes, &attribute)? {
                        patch.inside(&graph, |patch| place_seeds(patch, bytes, graph.body.clone()))?;
                    }
                    Ok(())
                })?;
            }
            if random {
                let mut attribute = wire::message(tag::ATTRIBUTE_NAME, b"seed");
                // The tag of a number of four bytes, and its place.
                attribute.extend(wire::written(tag::ATTRIBUTE_FLOAT << 3 | 5));
                attribute.extend([0; 4]);
                attribute.extend(wire::number(tag::ATTRIBUTE_TYPE, FLOAT));
                patch.replace(node.body.end..node.body.end, wire::message(tag::NODE_ATTRIBUTE, &attribute));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Finds the seeds of a graph's random operators, and how many of these there are.
fn find_seeds(bytes: &[u8], graph: Range<usize>, found: &mut Vec<Range<usize>>) -> Result<usize, String> {
    let mut operators = 0;
    for node in messages(bytes, graph, tag::GRAPH_NODE)? {
        let random = is_random(bytes, node.body.clone())?;
        operators += usize::from(random);
        for attribute in messages(bytes, node.body, tag::NODE_ATTRIBUTE)? {
            if random && is_seed(bytes, &attribute)? {
                let fields = wire::fields(bytes, attribute.body)?.into_iter();
                let is_float = |field: &Field| field.number == tag::ATTRIBUTE_FLOAT && field.body.len() == 4;
                found.extend(fields.filter(is_float).map(|field| field.body).next_back());
                continue;
            }
            for graph in graphs(bytes, &attribute)? {
                operators += find_seeds(bytes, graph.body, found)?;
            }
        }
    }
    Ok(operators)
}

fn is_seed(bytes: &[u8], attribute: &Field) -> Result<bool, String> {
    Ok(text(bytes, attribute.body.clone(), tag::ATTRIBUTE_NAME)? == "seed")
}

/// The graphs that an attribute holds.
fn graphs(bytes: &[u8], attribute: &Field) -> Result<Vec<Field>, String> {
    let mut graphs = messages(bytes, attribute.body.clone(), tag::ATTRIBUTE_GRAPH)?;
    graphs.extend(messages(bytes, attribute.body.clone(), tag::ATTRIBUTE_GRAPHS)?);
    Ok(graphs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_numbers_are_all_different() {
        let mut met = vec![false; 1 << SEED_BITS];
        for number in 0..1 << SEED_BITS {
            assert!(!std::mem::replace(&mut met[scattered(number) as usize], true), "{number}");
        }
    }
}
