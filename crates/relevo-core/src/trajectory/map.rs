//! A file as memory.
#![expect(unsafe_code, reason = "mapping a file is unsafe: whoever shortens it kills those that read it")]

use std::{fs::File, io, path::Path};

use arrow_buffer::Buffer;
use bytes::Bytes;
use memmap2::Mmap;

/// The file's bytes, read when they are touched. Only for a segment that was closed: nothing of ours writes to it any more, and
/// whoever removes it leaves the bytes to those that have it open.
pub(crate) fn map(path: &Path) -> io::Result<Buffer> {
    let file = File::open(path)?;
    // SAFETY: a closed segment is not written again; a repair writes another file and renames it. Programs that change it all
    // the same would change it under any reader.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Buffer::from(Bytes::from_owner(map)))
}
