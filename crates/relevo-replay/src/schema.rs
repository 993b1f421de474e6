//! The columns of a buffer, and how one step lies in memory.

use relevo_core::{
    spec::{DType, shape_text},
    trajectory::ColumnSpec,
};

use crate::error::{Error, Result};

/// Bytes of a word, in which steps are counted in memory.
pub(crate) const WORD: usize = 8;

/// The columns of a buffer: the observation comes first, action and whatever else behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    columns: Vec<ColumnSpec>,
    /// The column that is observed, whose value after the step is asked for, too.
    observation: usize,
    /// The column of rewards, which steps over several add up.
    reward: Option<usize>,
    layout: Layout,
}

/// Where the columns of a step lie, in words from its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Layout {
    offsets: Vec<usize>,
    words: usize,
}

impl Schema {
    /// A schema of these columns, by name; `observation` and `reward` are the names of two of them.
    ///
    /// # Errors
    /// [`Error::Config`] where a name is there twice or missing, or the reward is no single float32 or float64.
    pub fn new(columns: Vec<ColumnSpec>, observation: &str, reward: Option<&str>) -> Result<Self> {
        let place = |name: &str| columns.iter().position(|column| column.key == name);
        for (index, column) in columns.iter().enumerate() {
            if place(&column.key) != Some(index) {
                return Err(Error::Config(format!(
                    "two columns are named `{}`; give each a name of its own",
                    column.key
                )));
            }
        }
        let names = || columns.iter().map(|column| column.key.as_str()).collect::<Vec<_>>().join(", ");
        let missing = |what: &str, name: &str| {
            Error::Config(format!("there is no column `{name}` for the {what}; there are {}", names()))
        };
        let observed = place(observation).ok_or_else(|| missing("observation", observation))?;
        let reward = match reward {
            None => None,
            Some(name) => Some(place(name).ok_or_else(|| missing("reward", name))?),
        };
        if let Some(column) = reward.map(|at| &columns[at])
            && (!matches!(column.dtype, DType::Float32 | DType::Float64) || !column.shape.is_empty())
        {
            return Err(Error::Config(format!(
                "the reward `{}` must be one float32 or float64 a step, but is {} of shape {}",
                column.key,
                column.dtype,
                shape_text(&column.shape)
            )));
        }
        let mut layout = Layout::default();
        for column in &columns {
            layout.offsets.push(layout.words);
            layout.words += column.row_bytes().div_ceil(WORD);
        }
        Ok(Self { columns, observation: observed, reward, layout })
    }

    /// The columns, in their order.
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    /// Position of the observed column.
    pub fn observation(&self) -> usize {
        self.observation
    }

    /// Position of the reward.
    pub fn reward(&self) -> Option<usize> {
        self.reward
    }

    /// Words of a step.
    pub(crate) fn words(&self) -> usize {
        self.layout.words
    }

    /// Where a column begins, in words.
    pub(crate) fn offset(&self, column: usize) -> usize {
        self.layout.offsets[column]
    }

    /// Words of an observation.
    pub(crate) fn observation_words(&self) -> usize {
        self.columns[self.observation].row_bytes().div_ceil(WORD)
    }
}
