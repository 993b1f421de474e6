//! Lays record batches out as the messages of an Arrow IPC file, and packs their buffers.
//!
//! `arrow-ipc` writes arrays, which would have to be put together from the pieces of episodes first; and its LZ4 takes half
//! as much time again as the C library's. So only its tables are used here.

use std::io::{self, Write};

use arrow_ipc::{
    Block, BodyCompressionBuilder, BodyCompressionMethod, Buffer, CompressionType, FooterBuilder, MessageBuilder,
    MessageHeader, MetadataVersion, RecordBatchBuilder,
    convert::IpcSchemaEncoder,
    writer::{FileWriter, IpcWriteOptions},
};
use arrow_schema::{ArrowError, Schema};
use flatbuffers::FlatBufferBuilder;

use super::{
    Compression,
    batch::Body,
    message::{ALIGNMENT, CONTINUATION},
};

/// Stands before a buffer that is not packed, because that would not make it smaller.
const PLAIN: i64 = -1;

/// How much of a large buffer is packed to see whether that is worth it.
const SAMPLE: usize = 1 << 16;

/// Writes the messages of one file.
pub(crate) struct Encoder {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    blocks: Vec<Block>,
    /// Buffers in one piece, and packed.
    plain: Vec<u8>,
    packed: Vec<u8>,
    table: FlatBufferBuilder<'static>,
}

impl Encoder {
    pub(crate) fn new(compression: Compression) -> io::Result<Self> {
        // What other Arrow writers take.
        let zstd = (compression == Compression::Zstd).then(|| zstd::bulk::Compressor::new(1)).transpose()?;
        Ok(Self {
            compression,
            zstd,
            blocks: Vec::new(),
            plain: Vec::new(),
            packed: Vec::new(),
            table: FlatBufferBuilder::new(),
        })
    }

    /// What stands before the first batch.
    pub(crate) fn preamble(schema: &Schema) -> Result<Vec<u8>, ArrowError> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        FileWriter::try_new_with_options(Vec::new(), schema, options).map(|writer| writer.get_ref().clone())
    }

    /// Writes a batch, whose message begins at `offset`.
    pub(crate) fn batch(&mut self, body: &Body, offset: u64, file: &mut impl Write) -> io::Result<()> {
        let codec = match self.compression {
            Compression::None => None,
            Compression::Lz4 => Some(CompressionType::LZ4_FRAME),
            Compression::Zstd => Some(CompressionType::ZSTD),
        };
        let mut places = Vec::with_capacity(body.buffers.len());
        let mut end = 0;
        self.packed.clear();
        for chunks in &body.buffers {
            let mut length: usize = chunks.iter().map(|chunk| body.bytes(chunk).len()).sum();
            if codec.is_some() && length > 0 {
                self.plain.clear();
                for chunk in chunks {
                    self.plain.extend_from_slice(body.bytes(chunk));
                }
                length = self.pack()?;
            }
            places.push(Buffer::new(end as i64, length as i64));
            end += length.next_multiple_of(ALIGNMENT);
        }
        let metadata = self.metadata(body, &places, end, codec);
        self.blocks.push(Block::new(offset as i64, metadata as i32, end as i64));
        let table = self.table.finished_data();
        file.write_all(&CONTINUATION)?;
        file.write_all(&((metadata - 8) as u32).to_le_bytes())?;
        file.write_all(table)?;
        file.write_all(&[0; ALIGNMENT][..metadata - 8 - table.len()])?;
        if codec.is_some() {
            return file.write_all(&self.packed);
        }
        for (chunks, place) in body.buffers.iter().zip(&places) {
            chunks.iter().try_for_each(|chunk| file.write_all(body.bytes(chunk)))?;
            let length = place.length() as usize;
            file.write_all(&[0; ALIGNMENT][..length.next_multiple_of(ALIGNMENT) - length])?;
        }
        Ok(())
    }

    /// Writes a message as it was written before: its table ends at byte `metadata`.
    pub(crate) fn copy(
        &mut self,
        message: &[u8],
        metadata: usize,
        offset: u64,
        file: &mut impl Write,
    ) -> io::Result<()> {
        self.blocks.push(Block::new(offset as i64, metadata as i32, (message.len() - metadata) as i64));
        file.write_all(message)
    }

    /// Writes the end mark and the footer.
    pub(crate) fn finish(&mut self, schema: &Schema, file: &mut impl Write) -> io::Result<()> {
        file.write_all(&CONTINUATION)?;
        file.write_all(&0_u32.to_le_bytes())?;
        let table = &mut self.table;
        table.reset();
        let dictionaries = table.create_vector::<Block>(&[]);
        let batches = table.create_vector(&self.blocks);
        let schema = IpcSchemaEncoder::new().schema_to_fb_offset(table, schema);
        let mut footer = FooterBuilder::new(table);
        footer.add_version(MetadataVersion::V5);
        footer.add_schema(schema);
        footer.add_dictionaries(dictionaries);
        footer.add_recordBatches(batches);
        let footer = footer.finish();
        table.finish(footer, None);
        let footer = table.finished_data();
        file.write_all(footer)?;
        file.write_all(&(footer.len() as u32).to_le_bytes())?;
        file.write_all(b"ARROW1")
    }

    /// Makes the table of a batch; gives where the body begins in its message.
    fn metadata(&mut self, body: &Body, places: &[Buffer], end: usize, codec: Option<CompressionType>) -> usize {
        let table = &mut self.table;
        table.reset();
        let nodes = table.create_vector(&body.nodes);
        let buffers = table.create_vector(places);
        let compression = codec.map(|codec| {
            let mut compression = BodyCompressionBuilder::new(table);
            compression.add_method(BodyCompressionMethod::BUFFER);
            compression.add_codec(codec);
            compression.finish()
        });
        let mut batch = RecordBatchBuilder::new(table);
        batch.add_length(body.rows as i64);
        batch.add_nodes(nodes);
        batch.add_buffers(buffers);
        if let Some(compression) = compression {
            batch.add_compression(compression);
        }
        let batch = batch.finish().as_union_value();
        let mut message = MessageBuilder::new(table);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::RecordBatch);
        message.add_bodyLength(end as i64);
        message.add_header(batch);
        let message = message.finish();
        table.finish(message, None);
        (8 + table.finished_data().len()).next_multiple_of(ALIGNMENT)
    }

    /// Packs the buffer that lies in one piece, behind those before it; gives its length. One that packing makes hardly smaller
    /// stays plain, which a part of it tells.
    fn pack(&mut self) -> io::Result<usize> {
        let start = self.packed.len();
        let sample = &self.plain[..self.plain.len().min(SAMPLE)];
        self.packed.extend_from_slice(&(self.plain.len() as i64).to_le_bytes());
        let is_whole = sample.len() == self.plain.len();
        let worth = pack(self.compression, &mut self.zstd, sample, &mut self.packed)? * 100 < sample.len() * 97;
        if worth && !is_whole {
            self.packed.truncate(start + 8);
            pack(self.compression, &mut self.zstd, &self.plain, &mut self.packed)?;
        }
        if !worth {
            self.packed.truncate(start);
            self.packed.extend_from_slice(&PLAIN.to_le_bytes());
            self.packed.extend_from_slice(&self.plain);
        }
        let length = self.packed.len() - start;
        self.packed.resize(start + length.next_multiple_of(ALIGNMENT), 0);
        Ok(length)
    }
}

/// Appends `plain`, packed; gives how many bytes that takes.
fn pack(
    compression: Compression,
    zstd: &mut Option<zstd::bulk::Compressor<'static>>,
    plain: &[u8],
    packed: &mut Vec<u8>,
) -> io::Result<usize> {
    let start = packed.len();
    if let Some(zstd) = zstd {
        packed.resize(start + zstd::zstd_safe::compress_bound(plain.len()), 0);
        let length = zstd.compress_to_buffer(plain, &mut packed[start..])?;
        packed.truncate(start + length);
    } else if compression == Compression::Lz4 {
        // The sidecar has a checksum already. Blocks that do not look back at each other spare the library copies.
        let mut frame = lz4::EncoderBuilder::new()
            .checksum(lz4::ContentChecksum::NoChecksum)
            .block_checksum(lz4_sys::BlockChecksum::NoBlockChecksum)
            .block_mode(lz4::BlockMode::Independent)
            .block_size(lz4::BlockSize::Max256KB)
            .auto_flush(true)
            .build(&mut *packed)?;
        frame.write_all(plain)?;
        frame.finish().1?;
    }
    Ok(packed.len() - start)
}
