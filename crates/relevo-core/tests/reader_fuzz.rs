//! Fuzzing of the reader: run folders whose files are cut, overwritten, spliced and made up. Nothing may panic, and whatever is
//! given as an episode is one that was recorded, as long as either the steps or their checksums are what was written.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    ops::Range,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_buffer::Buffer;
use proptest::{
    collection::vec,
    prelude::*,
    sample::Index,
    test_runner::{Config, TestRunner},
};
use relevo_core::{
    spec::DType,
    trajectory::{
        ColumnSpec, Compression, Episode, ExtraKind, ExtraSpec, ExtraValues, Piece, PolicyRun, Run, RunInfo, RunWriter,
        Selection, StepSchema, WriterOptions, repair,
    },
};
use tempfile::TempDir;
use uuid::Uuid;

/// The test goes on for so many seconds, `RELEVO_FUZZ_SECONDS` or 15; what was not tried then is tried by other runs.
fn time() -> Duration {
    let seconds = std::env::var("RELEVO_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(15))
}

/// An edit of a file.
#[derive(Debug, Clone)]
enum Edit {
    Flip(Index, u8),
    Overwrite(Index, Vec<u8>),
    Insert(Index, Vec<u8>),
    Cut(Index),
    Remove(Index, usize),
    /// Some bytes of the file again, elsewhere.
    Repeat(Index, usize, Index),
    Replace(Vec<u8>),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    // Lengths and offsets are where a reader trusts most.
    let number = prop_oneof![any::<u32>(), Just(u32::MAX), Just(i32::MAX as u32), 0..64_u32];
    let bytes = prop_oneof![
        number.prop_map(|number| number.to_le_bytes().to_vec()),
        any::<u64>().prop_map(|number| number.to_le_bytes().to_vec()),
        vec(any::<u8>(), 1..40),
    ];
    prop_oneof![
        4 => (at(), 1..=255_u8).prop_map(|(at, bits)| Edit::Flip(at, bits)),
        4 => (at(), bytes.clone()).prop_map(|(at, bytes)| Edit::Overwrite(at, bytes)),
        2 => (at(), bytes).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => at().prop_map(Edit::Cut),
        2 => (at(), 1..200_usize).prop_map(|(at, count)| Edit::Remove(at, count)),
        2 => (at(), 1..400_usize, at()).prop_map(|(from, count, to)| Edit::Repeat(from, count, to)),
        1 => vec(any::<u8>(), 0..200).prop_map(Edit::Replace),
    ]
}

impl Edit {
    fn apply(&self, file: &mut Vec<u8>) {
        let len = file.len();
        let range = |at: &Index, count: usize| -> Range<usize> {
            let start = at.index(len + 1);
            start..(start + count).min(len)
        };
        match self {
            Self::Flip(at, bits) if len > 0 => file[at.index(len)] ^= bits,
            Self::Flip(..) => {}
            Self::Overwrite(at, bytes) => {
                let range = range(at, bytes.len());
                let count = range.len();
                file[range].copy_from_slice(&bytes[..count]);
            }
            Self::Insert(at, bytes) => drop(file.splice(range(at, 0), bytes.iter().copied())),
            Self::Cut(at) => file.truncate(at.index(len + 1)),
            Self::Remove(at, count) => drop(file.drain(range(at, *count))),
            Self::Repeat(from, count, to) => {
                let bytes = file[range(from, *count)].to_vec();
                let to = range(to, 0);
                drop(file.splice(to, bytes));
            }
            Self::Replace(bytes) => file.clone_from(bytes),
        }
    }
}

/// An episode that tells its number in each step, in numbers and in texts.
fn episode(number: u64, len: usize, complete: bool) -> Episode {
    let column = |dtype, shape: &[usize]| ColumnSpec { key: String::new(), dtype, shape: shape.to_vec() };
    let rows = len + usize::from(complete);
    let texts = |rows: usize| {
        let texts: Vec<_> = (0..rows).map(|row| format!("é{number}/{row}")).collect();
        ExtraValues::Text(texts.iter().map(String::as_str).collect())
    };
    let text = |name: &str, observed| ExtraSpec { name: name.into(), kind: ExtraKind::Text, observed };
    let schema = StepSchema {
        observations: vec![column(DType::Float32, &[3])],
        actions: vec![column(DType::Int64, &[])],
        mask: Some(2),
        log_prob: true,
        value: false,
        extras: vec![text("note", false), text("mission", true)],
    };
    Episode {
        number,
        actor_id: Uuid::from_u128(u128::from(number % 2)),
        schema: Arc::new(schema),
        len,
        observations: vec![Buffer::from_vec(vec![number as f32; 3 * rows])],
        has_final_observation: complete,
        actions: vec![Buffer::from_vec(vec![number; len])],
        masks: Some(Buffer::from_vec(vec![1_u8; 2 * len])),
        rewards: Buffer::from_vec(vec![number as f64; len]),
        reward_known: None,
        log_probs: Some(Buffer::from_vec(vec![-0.5_f32; len])),
        values: None,
        extras: vec![texts(len), texts(rows)],
        policies: vec![PolicyRun { from: 0, policy: "pilot".into(), version: number }],
        timestamps: Buffer::from_vec(vec![1_700_000_000_000_000_000_i64; len]),
        terminated: complete,
        truncated: false,
        complete,
    }
}

/// The bytes of a segment and of its sidecar, and the episodes in them.
fn recorded(compression: Compression, closed: bool) -> ([Vec<u8>; 2], Vec<Episode>) {
    let folder = TempDir::new().unwrap();
    let info = RunInfo::new(7, serde_json::Value::Null, Vec::new());
    let options = WriterOptions { compression, ..WriterOptions::default() };
    let mut writer = RunWriter::create(folder.path(), &info, options).unwrap();
    let all: Vec<_> = (0..6).map(|number| episode(number, 1 + number as usize % 3, number != 4)).collect();
    for pair in all.chunks(2) {
        for one in pair {
            writer.push(Piece::whole(Arc::new(one.clone()), 0, 0)).unwrap();
        }
        writer.flush().unwrap();
    }
    if closed {
        writer.close(&[]).unwrap();
    }
    drop(writer);
    (files(folder.path()).map(|path| fs::read(path).unwrap()), all)
}

fn files(folder: &Path) -> [std::path::PathBuf; 2] {
    ["arrow", "index"].map(|suffix| folder.join(format!("segments/000000.{suffix}")))
}

/// Reads all there is to read of a run; the episodes come back.
fn read_everything(folder: &Path) -> Vec<Episode> {
    let Ok(run) = Run::open(folder) else { return Vec::new() };
    let run = Arc::new(run);
    let mut found: Vec<_> = run.episodes(&Selection::default()).filter_map(Result::ok).collect();
    found.extend((0..7).filter_map(|number| run.episode(number).ok().flatten()));
    run.steps(None, &Selection::default()).into_iter().flatten().for_each(drop);
    drop(run.verify(&mut |_| Ok(())));
    found
}

#[test]
fn reader_fuzz() {
    let sources: Vec<_> = [Compression::None, Compression::Lz4, Compression::Zstd]
        .into_iter()
        .flat_map(|compression| [true, false].map(|closed| recorded(compression, closed)))
        .collect();
    let folder = TempDir::new().unwrap();
    drop(RunWriter::create(
        folder.path(),
        &RunInfo::new(7, serde_json::Value::Null, Vec::new()),
        WriterOptions::default(),
    ));
    let (begin, time) = (Instant::now(), time());
    let strategy = (any::<Index>(), vec(edit(), 0..4), vec(edit(), 0..4), any::<bool>());
    let config = || Config { cases: 100, failure_persistence: None, ..Config::default() };
    while begin.elapsed() < time {
        let tried = TestRunner::new(config()).run(&strategy, |(source, of_segment, of_index, mends)| {
            let (whole, episodes) = source.get(&sources);
            let mut written = whole.clone();
            for (file, edits) in written.iter_mut().zip([&of_segment, &of_index]) {
                for edit in edits {
                    edit.apply(file);
                }
            }
            for (path, bytes) in files(folder.path()).iter().zip(&written) {
                fs::write(path, bytes).unwrap();
            }
            let mut found = read_everything(folder.path());
            if mends && repair(folder.path(), &mut |_| Ok(())).is_ok() {
                found.extend(read_everything(folder.path()));
            }
            for entry in fs::read_dir(folder.path().join("segments")).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
            // Where both are other than they were, steps may be other ones, too.
            if written[0] == whole[0] || written[1] == whole[1] {
                for episode in found {
                    prop_assert!(episodes.contains(&episode), "{episode:?} was never recorded");
                }
            }
            Ok(())
        });
        tried.unwrap();
    }
}
