//! How batches are packed.

/// How the buffers of a batch are packed on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all: the steps can be read without a copy.
    #[default]
    None,
    /// LZ4 frames: fast.
    Lz4,
    /// Zstandard at level 1, which is what other Arrow writers take: small.
    Zstd,
}

impl Compression {
    /// The names by which users choose.
    pub const NAMES: [(&str, Self); 3] = [("none", Self::None), ("lz4", Self::Lz4), ("zstd", Self::Zstd)];
}
