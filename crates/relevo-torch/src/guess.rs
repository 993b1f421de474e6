//! What shape an input may have, judged by the module's weights, its name, and what errors say.

use std::collections::BTreeMap;

use relevo_abi::{Device, Tensor};

use crate::scalar::{Scalar, Shown};

/// Sides of square images, the usual ones first.
const USUAL_SIDES: [usize; 14] = [84, 64, 96, 32, 36, 40, 42, 48, 80, 128, 16, 20, 224, 28];
const MOST_SIDE: usize = 128;
/// Names of inputs that tell whether an episode goes on or begins, where there are states.
const EPISODES: [&str; 13] = [
    "mask",
    "masks",
    "episode_mask",
    "episode_masks",
    "not_done",
    "not_dones",
    "nonterminal",
    "nonterminals",
    "episode_start",
    "episode_starts",
    "is_first",
    "done",
    "dones",
];
/// Larger numbers in an error are no width.
const MOST_WIDTH: usize = 1 << 20;

/// Made-up rows of this number and above are a hundred times larger than the others.
pub(crate) const LARGE_ROW: usize = 100;
const LARGE: f64 = 100.0;

/// The type and shape of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guess {
    pub(crate) scalar: Scalar,
    /// Sizes of one row.
    pub(crate) row: Vec<usize>,
    /// Where the rows are counted.
    pub(crate) axis: usize,
}

/// What an input is for, as far as shapes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Observation,
    Mask,
    State,
    /// Whether an episode goes on, or begins: one number a row beside states.
    Episode,
}

/// What the module's tensors say of widths.
#[derive(Debug, Clone)]
pub(crate) struct Hints {
    pub(crate) scalar: Scalar,
    /// Widths of observations.
    pub(crate) widths: Vec<usize>,
    /// Widths of masks.
    choices: Vec<usize>,
    /// Channels of images, and of sequences.
    channels: [Vec<usize>; 2],
    /// Layers and width of recurrent layers; no layers for cells.
    memories: Vec<(Option<usize>, usize)>,
    /// Whether errors are all that tells of widths.
    is_blind: bool,
}

impl Guess {
    pub(crate) fn shape(&self, rows: usize) -> Vec<i64> {
        let mut shape: Vec<_> = self.row.iter().map(|size| *size as i64).collect();
        shape.insert(self.axis, rows as i64);
        shape
    }
}

impl Purpose {
    /// Those of all inputs; `states` are given as such. Beside states, some names tell of episodes.
    pub(crate) fn all(names: &[String], states: &[String]) -> Vec<Self> {
        let own = |name: &String| {
            if states.contains(name) { Self::State } else { Self::of(name, name.contains('.')) }
        };
        let mut purposes: Vec<_> = names.iter().map(own).collect();
        if purposes.contains(&Self::State) {
            for (name, purpose) in names.iter().zip(&mut purposes) {
                if *purpose != Self::State && EPISODES.contains(&&*name.to_ascii_lowercase()) {
                    *purpose = Self::Episode;
                }
            }
        }
        purposes
    }

    /// By name. `in_tuple` says that the input is a part of a tuple, as states of LSTMs are.
    pub(crate) fn of(name: &str, in_tuple: bool) -> Self {
        let name = name.split('.').next().unwrap_or(name).to_ascii_lowercase();
        let holds = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        let is = |names: &[&str]| names.contains(&name.as_str());
        if name.contains("mask") && !holds(&["done"]) {
            return Self::Mask;
        }
        let state = holds(&["hidden", "rnn_state", "recurrent", "memory", "lstm", "carry", "cell_state"])
            || name.contains("hxs")
            || is(&[
                "h",
                "c",
                "hc",
                "hx",
                "cx",
                "h0",
                "c0",
                "hc0",
                "h_in",
                "c_in",
                "state_in",
                "state_ins",
                "core_state",
            ]);
        let observation = name.starts_with("obs") || is(&["x", "input", "inputs"]);
        if state || (in_tuple && !observation) { Self::State } else { Self::Observation }
    }
}

impl Hints {
    pub(crate) fn of(tensors: &[Shown]) -> Self {
        let mut hints = Self {
            scalar: tensors
                .iter()
                .map(|tensor| tensor.scalar)
                .find(|scalar| is_float(*scalar))
                .unwrap_or(Scalar::FLOAT),
            widths: Vec::new(),
            choices: Vec::new(),
            channels: [Vec::new(), Vec::new()],
            memories: Vec::new(),
            is_blind: false,
        };
        let mut layers: BTreeMap<(String, usize), usize> = BTreeMap::new();
        for tensor in tensors {
            match tensor.shape[..] {
                [_, width] if tensor.name.contains("weight_hh_l") => {
                    let layer = tensor.name.split("weight_hh_l").next().unwrap_or_default();
                    *layers.entry((layer.to_owned(), width)).or_default() += 1;
                }
                [_, width] if tensor.name.ends_with("weight_hh") => hints.memories.push((None, width)),
                [_, width] if tensor.name.contains("weight_ih_l") && !tensor.name.contains("weight_ih_l0") => {
                    let _ = width; // what the layer below gives
                }
                [_, width] => add(&mut hints.widths, width),
                [_, channels, _] => add(&mut hints.channels[1], channels),
                [_, channels, _, _] => add(&mut hints.channels[0], channels),
                _ => {}
            }
        }
        hints.memories.extend(layers.into_iter().map(|((_, width), layers)| (Some(layers), width)));
        // Weights that stand on the right, normalisation, biases: less likely, but all that some modules have.
        for tensor in tensors {
            if let [width] | [width, _] | [1, 1, width] = tensor.shape[..] {
                add(&mut hints.widths, width);
            }
        }
        for tensor in tensors.iter().rev() {
            if let [width] | [width, _] = tensor.shape[..] {
                add(&mut hints.choices, width);
            }
        }
        hints
    }

    /// Takes in the widths that an error names, before all others; those of `tried` are its own words.
    pub(crate) fn learn(&mut self, error: &str, tried: &[usize]) -> bool {
        let before = self.widths.clone();
        for width in numbers(error).into_iter().rev().filter(|width| !tried.contains(width) && *width > 1) {
            self.widths.retain(|known| *known != width);
            self.widths.insert(0, width);
        }
        if self.is_blind && error.contains("3-D") {
            // Any of them may be that of a recurrent layer, which asks for a state with an axis for layers; how many there are, its
            // next error tells.
            let known = self.memories.clone();
            let new = self.widths.iter().map(|width| (Some(1), *width)).filter(|memory| !known.contains(memory));
            self.memories.extend(new);
        }
        let memory = expected_memory(error).filter(|memory| !self.memories.contains(memory));
        self.memories.extend(memory);
        memory.is_some() || self.widths.iter().any(|width| !before.contains(width))
    }

    /// Whether the module's tensors tell of no width at all, as those of a frozen one.
    pub(crate) fn tells_nothing(&self) -> bool {
        self.widths.is_empty() && self.memories.is_empty()
    }

    /// Takes a width that cannot be for that of everything, so that errors tell the true ones.
    pub(crate) fn pretend(&mut self, width: usize) {
        self.is_blind = true;
        self.widths.push(width);
        self.memories.push((Some(1), width));
    }

    /// Guesses for an input, the likeliest first.
    pub(crate) fn guesses(&self, purpose: Purpose) -> Vec<Guess> {
        let guess = |scalar, row: &[usize], axis| Guess { scalar, row: row.to_vec(), axis };
        let mut guesses = Vec::new();
        match purpose {
            Purpose::Mask | Purpose::Episode => {
                if purpose == Purpose::Episode {
                    for row in [&[1][..], &[]] {
                        guesses.extend([self.scalar, Scalar::BOOL].map(|scalar| guess(scalar, row, 0)));
                    }
                }
                for scalar in [self.scalar, Scalar::BOOL] {
                    guesses.extend(self.choices.iter().map(|width| guess(scalar, &[*width], 0)));
                }
            }
            Purpose::State => {
                for (layers, width) in &self.memories {
                    if let Some(layers) = *layers {
                        guesses.push(guess(self.scalar, &[layers, *width], 1));
                        guesses.push(guess(self.scalar, &[layers, *width], 0));
                        guesses.push(guess(self.scalar, &[layers * width], 0));
                    }
                    guesses.push(guess(self.scalar, &[*width], 0));
                }
                guesses.extend(self.widths.iter().map(|width| guess(self.scalar, &[*width], 0)));
            }
            Purpose::Observation => {
                for channels in &self.channels[0] {
                    let sides =
                        USUAL_SIDES.into_iter().chain((1..=MOST_SIDE).filter(|side| !USUAL_SIDES.contains(side)));
                    guesses.extend(sides.map(|side| guess(self.scalar, &[*channels, side, side], 0)));
                }
                guesses.extend(self.widths.iter().map(|width| guess(self.scalar, &[*width], 0)));
                guesses.extend(self.widths.iter().map(|width| guess(self.scalar, &[1, *width], 0)));
                for channels in &self.channels[1] {
                    guesses.extend((1..=MOST_SIDE).map(|length| guess(self.scalar, &[*channels, length], 0)));
                }
                // Numbers of things, as embeddings take them.
                guesses.push(guess(Scalar::LONG, &[], 0));
                guesses.extend([1].iter().chain(&self.widths).map(|width| guess(Scalar::LONG, &[*width], 0)));
            }
        }
        guesses
    }

    /// Guesses for an input whose row is known to be one of these.
    pub(crate) fn given(&self, rows: &[Vec<usize>], purpose: Purpose) -> Vec<Guess> {
        rows.iter().flat_map(|row| self.given_row(row, purpose)).collect()
    }

    fn given_row(&self, row: &[usize], purpose: Purpose) -> Vec<Guess> {
        let mut scalars = match purpose {
            Purpose::Mask | Purpose::Episode => vec![self.scalar, Scalar::BOOL, Scalar::LONG],
            Purpose::State => vec![self.scalar],
            Purpose::Observation => {
                vec![self.scalar, Scalar::LONG, Scalar::BYTE, Scalar::BOOL, Scalar::CHAR, Scalar::SHORT, Scalar::INT]
            }
        };
        // The first weight need not be one that observations meet.
        if purpose == Purpose::Observation && self.scalar != Scalar::FLOAT {
            scalars.push(Scalar::FLOAT);
        }
        // States of torch's recurrent layers count the rows behind the layers.
        let positions: &[usize] = if purpose == Purpose::State && row.len() > 1 { &[1, 0] } else { &[0] };
        let each = |axis: usize| scalars.iter().map(move |scalar| Guess { scalar: *scalar, row: row.to_vec(), axis });
        positions.iter().flat_map(|axis| each(*axis)).collect()
    }
}

pub(crate) fn is_float(scalar: Scalar) -> bool {
    [Scalar::HALF, Scalar::FLOAT, Scalar::DOUBLE].contains(&scalar)
}

fn add(widths: &mut Vec<usize>, width: usize) {
    if !widths.contains(&width) {
        widths.push(width);
    }
}

/// The layers and the width of a recurrent layer's state, where its error tells them: `Expected hidden size (2, 1, 12), got [1, 1,
/// 7919]`.
fn expected_memory(error: &str) -> Option<(Option<usize>, usize)> {
    let (_, behind) = error.split_once("xpected hidden")?;
    let (_, behind) = behind.split_once('(')?;
    let (inside, _) = behind.split_once(')')?;
    match numbers_in_order(inside)[..] {
        [layers, _, width] if layers > 0 && width > 0 => Some((Some(layers), width)),
        _ => None,
    }
}

fn numbers_in_order(text: &str) -> Vec<usize> {
    text.split(',').filter_map(|word| word.trim().parse().ok()).filter(|number| *number <= MOST_WIDTH).collect()
}

/// The whole numbers in a text that may be sizes: `1x8` holds two, `mat1` none.
fn numbers(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if end == at {
            at += 1;
            continue;
        }
        let before = if at == 0 { b' ' } else { bytes[at - 1] };
        let is_size = before == b'x' || !(before.is_ascii_alphanumeric() || before == b'.' || before == b'_');
        if is_size && let Some(number) = text[at..end].parse().ok().filter(|number| *number <= MOST_WIDTH) {
            add(&mut found, number);
        }
        at = end;
    }
    found
}

/// A made-up input of some rows. What is in a row depends on its number alone, so that rows may be compared across batches.
pub(crate) struct Example {
    shape: Vec<i64>,
    scalar: Scalar,
    /// Of eight bytes each, so that they are aligned for every type.
    words: Vec<u64>,
}

impl Example {
    pub(crate) fn new(guess: &Guess, purpose: Purpose, rows: &[usize]) -> Self {
        let shape = guess.shape(rows.len());
        let size = guess.scalar.dtype().size();
        let elements: usize = shape.iter().map(|size| *size as usize).product();
        let mut words = vec![0_u64; (elements * size).div_ceil(8)];
        let inner: usize = guess.row[guess.axis..].iter().product();
        for index in 0..elements {
            let (outer, rest) = (index / (inner * rows.len()), index % (inner * rows.len()));
            let (row, within) = (rows[rest / inner], outer * inner + rest % inner);
            let bytes = value(guess.scalar, purpose, row, within);
            let start = index * size;
            for (offset, byte) in bytes[..size].iter().enumerate() {
                let at = start + offset;
                words[at / 8] |= u64::from(*byte) << (8 * (at % 8));
            }
        }
        Self { shape, scalar: guess.scalar, words: words.into_iter().map(u64::to_le).collect() }
    }

    /// One whose every number has these bytes.
    pub(crate) fn filled(guess: &Guess, rows: &[usize], bytes: &[u8]) -> Self {
        let mut example = Self::new(guess, Purpose::State, rows);
        let size = guess.scalar.dtype().size();
        let whole: Vec<u8> = bytes[..size].iter().copied().cycle().take(example.words.len() * 8).collect();
        for (word, bytes) in example.words.iter_mut().zip(whole.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)).to_le();
        }
        example
    }

    pub(crate) fn tensor(&self) -> Tensor {
        Tensor {
            data: self.words.as_ptr().cast_mut().cast(),
            device: Device::CPU,
            ndim: self.shape.len() as i32,
            dtype: self.scalar.dtype(),
            shape: self.shape.as_ptr(),
            strides: std::ptr::null(),
            byte_offset: 0,
        }
    }
}

/// The bytes of an element, little-endian.
fn value(scalar: Scalar, purpose: Purpose, row: usize, within: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    let real = match purpose {
        Purpose::Mask => 1.0,
        Purpose::Episode => f64::from(u8::from(row % 3 != 1)),
        _ => ((within * 7919 + row * 104_729) % 2001) as f64 / 1000.0 - 1.0,
    };
    let real = if row >= LARGE_ROW && purpose == Purpose::Observation { LARGE * real } else { real };
    match scalar {
        Scalar::FLOAT => bytes[..4].copy_from_slice(&(real as f32).to_le_bytes()),
        Scalar::DOUBLE => bytes.copy_from_slice(&real.to_le_bytes()),
        // One, with the sign: a half has no type here.
        Scalar::HALF => bytes[1] = if real < 0.0 { 0xBC } else { 0x3C },
        _ if purpose == Purpose::Episode => bytes[0] = u8::from(row % 3 != 1),
        _ => bytes[0] = u8::from(purpose == Purpose::Mask || (within + row) % 2 == 1),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_torchs_words() {
        assert_eq!(numbers("mat1 and mat2 shapes cannot be multiplied (1x7919 and 45x512)"), [1, 7919, 45, 512]);
        assert_eq!(numbers("input.size(-1) must be equal to input_size. Expected 47, got 7919"), [1, 47, 7919]);
    }

    #[test]
    fn memories_in_torchs_words() {
        let told = |text| expected_memory(text);
        assert_eq!(told("Expected hidden size (2, 1, 12), got [1, 1, 7919]"), Some((Some(2), 12)));
        assert_eq!(told("Expected hidden[0] size (1, 1, 6), got [1, 1, 5]"), Some((Some(1), 6)));
        for other in ["Expected hidden size", "Expected 5, got 7919", "Expected hidden size (x), got 1"] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn purposes_by_name() {
        assert_eq!(Purpose::of("hc0.0", true), Purpose::State);
        assert_eq!(Purpose::of("x", false), Purpose::Observation);
        assert_eq!(Purpose::of("obs.1", true), Purpose::Observation);
        assert_eq!(Purpose::of("action_mask", false), Purpose::Mask);
        let all = |names: &[&str], states: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
            Purpose::all(&owned(names), &owned(states))
        };
        let whole = [Purpose::Observation, Purpose::State, Purpose::Episode];
        assert_eq!(all(&["inputs", "rnn_hxs", "masks"], &[]), whole);
        assert_eq!(all(&["inputs", "carried", "done"], &["carried"]), whole);
        assert_eq!(all(&["inputs", "mask"], &[]), [Purpose::Observation, Purpose::Mask]);
    }

    #[test]
    fn rows_are_the_same_in_every_batch() {
        let guess = Guess { scalar: Scalar::FLOAT, row: vec![2, 3], axis: 1 };
        let floats = |rows: &[usize]| {
            let example = Example::new(&guess, Purpose::State, rows);
            example.words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect::<Vec<_>>()
        };
        let (both, second) = (floats(&[0, 5]), floats(&[5]));
        // [layer, row, width]
        assert_eq!(both[3..6], second[..3]);
        assert_eq!(both[9..12], second[3..6]);
    }
}
