//! How batches are packed.

use arrow_ipc::{CompressionType, MetadataVersion, writer::IpcWriteOptions};
use arrow_schema::ArrowError;

use super::message::ALIGNMENT;

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

    pub(crate) fn options(self) -> Result<IpcWriteOptions, ArrowError> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        match self {
            Self::None => Ok(options),
            Self::Lz4 => options.try_with_compression(Some(CompressionType::LZ4_FRAME)),
            Self::Zstd => {
                options.try_with_compression(Some(CompressionType::ZSTD))?.try_with_compression_level(Some(1))
            }
        }
    }
}
