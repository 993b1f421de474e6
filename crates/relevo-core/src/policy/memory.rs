//! What a recurrent model remembers of an actor: how many bytes, of which kind, and where they lie in a batch.

use super::{
    backend::StateLink,
    contract::{Batch, Contract},
    probe::fill_ones,
};
use crate::{
    error::{Error, Result},
    spec::{DType, shape_text},
    tensor::Tensor,
};

/// The states that a model hands on from step to step; none for a model without memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemorySpec {
    /// One for each link of [`Contract::states`], in its order.
    pub states: Vec<StateSpec>,
}

/// One state, and how the rows of several actors lie in a batch of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSpec {
    /// The input that takes it.
    pub input: usize,
    /// Where its next value comes from.
    pub next: NextValue,
    /// The bytes of one row at the start of an episode; empty for zeros.
    initial: Vec<u8>,
    /// The input's name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of one actor's row.
    pub row_shape: Vec<usize>,
    /// Which axis counts the actors.
    pub batch_axis: usize,
    /// A row is so many pieces, which lie apart in a batch: 1 where the actors come first, or the model takes one at a time.
    pieces: usize,
    /// Bytes of one piece.
    piece: usize,
}

/// Where the next value of a state comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextValue {
    /// From this output.
    Output(usize),
    /// From nowhere: after the first step of an episode every element is one, or zero.
    Always(bool),
}

impl MemorySpec {
    /// What a model with this contract remembers.
    ///
    /// # Errors
    /// [`Error::Contract`] where the model depends on a state whose next value no output gives, and where the backend tells
    /// of an initial state of another size.
    pub fn new(contract: &Contract) -> Result<Self> {
        if let Some(input) = contract.unlinked.first() {
            return Err(unlinked(contract, *input));
        }
        let states = contract.states.iter().map(|link| StateSpec::new(contract, link));
        let inputs = contract.inputs.iter().enumerate();
        let episodes = inputs.filter_map(|(at, input)| Some((at, input, input.role.first_and_next()?)));
        // Whether an episode goes on is remembered like a state, but no output gives it.
        let episodes = episodes.map(|(at, input, (first, next))| {
            let mut row = Tensor::zeros(input.spec.dtype, &input.row_shape);
            if first {
                fill_ones(&mut row, input.spec.dtype);
            }
            Ok(StateSpec::of_input(contract, at, NextValue::Always(next), row.bytes().to_vec()))
        });
        Ok(Self { states: states.chain(episodes).collect::<Result<_>>()? })
    }

    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Whether what was remembered with `other` can be handed to this model.
    pub fn fits(&self, other: &Self) -> bool {
        let kind = |state: &StateSpec| (state.dtype, state.row_shape.clone());
        self.states.iter().map(kind).eq(other.states.iter().map(kind))
    }

    /// In words: `h float32 (1, 64)`.
    pub fn describe(&self) -> String {
        let words = |state: &StateSpec| format!("{} {} {}", state.name, state.dtype, shape_text(&state.row_shape));
        match &self.states[..] {
            [] => "no states".into(),
            states => format!("the states {}", states.iter().map(words).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl StateSpec {
    fn new(contract: &Contract, link: &StateLink) -> Result<Self> {
        let input = &contract.inputs[link.input];
        if !link.initial.is_empty() && link.initial.len() != input.row_bytes() {
            return Err(Error::Contract(format!(
                "the state `{}` has {} bytes a row, but the backend begins it with {}; please report this",
                input.spec.name,
                input.row_bytes(),
                link.initial.len()
            )));
        }
        Ok(Self::of_input(contract, link.input, NextValue::Output(link.output), link.initial.clone()))
    }

    fn of_input(contract: &Contract, at: usize, next: NextValue, initial: Vec<u8>) -> Self {
        let input = &contract.inputs[at];
        let (name, axis) = (input.spec.name.clone(), input.batch_axis);
        let pieces = match contract.batch {
            Batch::One { .. } => 1,
            Batch::Dynamic { .. } => input.row_shape[..axis].iter().product::<usize>(),
        };
        Self {
            input: at,
            next,
            initial,
            name,
            dtype: input.spec.dtype,
            row_shape: input.row_shape.clone(),
            batch_axis: axis,
            pieces,
            piece: input.row_bytes() / pieces.max(1),
        }
    }

    /// The shape of `rows` rows.
    pub fn shape(&self, rows: usize) -> Vec<usize> {
        let mut shape = self.row_shape.clone();
        shape.insert(self.batch_axis, rows);
        shape
    }

    /// Bytes of one actor's row.
    pub fn row_bytes(&self) -> usize {
        self.pieces * self.piece
    }

    /// Whether the rows of a batch lie one behind the other.
    pub fn rows_come_first(&self) -> bool {
        self.pieces == 1
    }

    /// The actor that an element of a batch of `rows` belongs to.
    pub fn row_of(&self, element: usize, rows: usize) -> usize {
        element / (self.piece / self.dtype.size()).max(1) % rows
    }

    fn pieces_of(&self, rows: usize, row: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let piece = self.piece;
        (0..self.pieces).map(move |at| (at * rows + row) * piece..(at * rows + row + 1) * piece)
    }

    /// Writes one actor's row into a batch of `rows`; nothing stands for the state at the start of an episode.
    pub fn write_row(&self, batch: &mut [u8], rows: usize, row: usize, bytes: &[u8]) {
        let bytes = if bytes.is_empty() { &self.initial } else { bytes };
        for (at, place) in self.pieces_of(rows, row).enumerate() {
            match bytes.get(at * self.piece..(at + 1) * self.piece) {
                Some(piece) => batch[place].copy_from_slice(piece),
                None => batch[place].fill(0),
            }
        }
    }

    /// Copies one actor's row out of a batch of `rows`.
    pub fn read_row(&self, batch: &[u8], rows: usize, row: usize, bytes: &mut [u8]) {
        for (at, place) in self.pieces_of(rows, row).enumerate() {
            bytes[at * self.piece..(at + 1) * self.piece].copy_from_slice(&batch[place]);
        }
    }
}

fn unlinked(contract: &Contract, input: usize) -> Error {
    let input = &contract.inputs[input];
    let words = |output: &super::OutputContract| {
        let shape = output.batch_axis.map_or_else(|| "the same for all".into(), |_| shape_text(&output.row_shape));
        format!("`{}` ({} {shape}, {})", output.spec.name, output.spec.dtype, output.role)
    };
    let (name, outputs) = (&input.spec.name, contract.outputs.iter().map(words).collect::<Vec<_>>().join(", "));
    Error::Contract(format!(
        "the model depends on the state `{name}` ({} {}), but which output gives its value for the next step does not show: \
         it has {outputs}. Name it by roles={{\"{name}\": \"state:OUTPUT\"}}; it must be of the same kind and shape. If \
         `{name}` is no state, say so: roles={{\"{name}\": \"observation\"}}",
        input.spec.dtype,
        shape_text(&input.row_shape)
    ))
}
