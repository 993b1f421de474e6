//! What can go wrong with a replay buffer.

/// Result of the operations of a replay buffer.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a replay buffer. Nothing has changed in it then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is out of its range, or contradicts another one.
    #[error("{0}")]
    Config(String),
    /// Values that are added, or priorities, are not those that the buffer takes.
    #[error("{0}")]
    Contract(String),
    /// There is not yet enough in the buffer for what is asked for.
    #[error("{0}")]
    NotReady(String),
    /// There is not enough memory.
    #[error("{0}")]
    Memory(String),
}
