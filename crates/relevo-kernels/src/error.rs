//! What a kernel refuses.

use std::fmt;

/// Shorthand for a result that fails with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a kernel refused its input. Nothing was written: outputs are as they were.
///
/// Each says what was expected, what came and where. [`Error::is_of_data`] tells the two kinds apart.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A slice is longer or shorter than it must be.
    #[error("{name} must have {expected} elements ({reason}), but {came} came")]
    Length {
        /// The argument.
        name: &'static str,
        /// How many elements it must have.
        expected: usize,
        /// How many it has.
        came: usize,
        /// What makes it that many.
        reason: &'static str,
    },

    /// A slice has no elements, or none that counts.
    #[error("{name} must hold {expected}, but there is none")]
    Empty {
        /// The argument.
        name: &'static str,
        /// What must be in it.
        expected: &'static str,
    },

    /// An element is not what it must be.
    #[error("{name} must be {expected}, but {came} came at {place}")]
    Element {
        /// The argument.
        name: &'static str,
        /// What each element must be.
        expected: &'static str,
        /// The first that is not.
        came: f64,
        /// Where it is.
        place: Place,
    },

    /// A number that holds for the whole call is not what it must be.
    #[error("{name} must be {expected}, but {came} came")]
    Setting {
        /// The argument.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        came: f64,
    },

    /// More is said to be reused than there is.
    #[error("reuse_len must not exceed seq_len, but {reuse_len} of {seq_len} tokens came")]
    Reuse {
        /// Tokens that are reused.
        reuse_len: u64,
        /// Tokens that there are.
        seq_len: u64,
    },

    /// An index points past the end.
    #[error("indices must be below {count}, the number of items, but {came} came at {place}")]
    Index {
        /// The index.
        came: usize,
        /// How many items there are.
        count: usize,
        /// Where it stands among the indices.
        place: Place,
    },

    /// A division by zero.
    #[error("{what} is zero{}; {advice}", place.map(|place| format!(" at {place}")).unwrap_or_default())]
    ZeroDenominator {
        /// What is zero.
        what: &'static str,
        /// Where, if there are several.
        place: Option<Place>,
        /// What to do.
        advice: &'static str,
    },
}

impl Error {
    /// Whether the data is at fault (a slice, an element), not a setting such as a discount.
    #[must_use]
    pub fn is_of_data(&self) -> bool {
        !matches!(self, Self::Setting { .. })
    }
}

/// Where an element stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a slice of single items.
    Position(usize),
    /// In a slice of steps by streams, `[T, N]`.
    Step {
        /// 0 to T − 1.
        step: usize,
        /// 0 to N − 1.
        stream: usize,
    },
    /// In a slice of rows.
    Row {
        /// Which row.
        row: usize,
        /// Which of its numbers.
        column: usize,
    },
}

impl Place {
    /// The place of the element `index` of a slice with rows of `streams`.
    pub(crate) fn in_rows(index: usize, streams: usize) -> Self {
        Self::Step { step: index / streams, stream: index % streams }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Position(position) => write!(formatter, "position {position}"),
            Self::Step { step, stream } => write!(formatter, "step {step} of stream {stream}"),
            Self::Row { row, column } => write!(formatter, "row {row}, column {column}"),
        }
    }
}
