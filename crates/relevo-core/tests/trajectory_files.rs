//! What a run writes to disk comes back, whatever happened to the file in between.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{Int32Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::Schema;
use proptest::collection::vec;
use proptest::prelude::*;
use relevo_core::Error;
use relevo_core::spec::DType;
use relevo_core::trajectory::{
    ColumnSpec, Episode, ExtraKind, ExtraSpec, ExtraValues, ModelInfo, Piece, PolicyRun, Run, RunInfo, RunWriter,
    Selection, StepSchema, WriterOptions,
};
use tempfile::TempDir;
use uuid::Uuid;

fn info() -> RunInfo {
    let model = ModelInfo {
        policy: "pilot".into(),
        version: 1,
        head: "argmax".into(),
        path: "a/b.onnx".into(),
        sha256: "00".repeat(32),
        format: "onnx".into(),
    };
    RunInfo::new(7, serde_json::json!({ "actors": 64 }), vec![model])
}

fn dtype() -> impl Strategy<Value = DType> {
    use DType::*;
    prop::sample::select(vec![
        Bool, UInt8, Int8, UInt16, Int16, UInt32, Int32, UInt64, Int64, Float16, Float32, Float64,
    ])
}

fn column(key: &'static str) -> impl Strategy<Value = ColumnSpec> {
    (dtype(), vec(1..4_usize, 0..4)).prop_map(move |(dtype, shape)| ColumnSpec { key: key.into(), dtype, shape })
}

fn schema() -> impl Strategy<Value = Arc<StepSchema>> {
    let observations = prop_oneof![
        column("").prop_map(|only| vec![only]),
        (column("camera"), column("joint.angles"), column("é")).prop_map(|(a, b, c)| vec![a, b, c]),
    ];
    let actions = prop_oneof![
        column("").prop_map(|only| vec![only]),
        (column("move"), column("observation.é")).prop_map(|(a, b)| vec![a, b]),
    ];
    (observations, actions, prop::option::of(1..5_usize), any::<bool>(), any::<bool>(), extras()).prop_map(
        |(observations, actions, mask, log_prob, value, extras)| {
            Arc::new(StepSchema { observations, actions, mask, log_prob, value, extras })
        },
    )
}

/// None, or a tensor, a text and an observed text.
fn extras() -> impl Strategy<Value = Vec<ExtraSpec>> {
    let spec = |name: &str, kind, observed| ExtraSpec { name: name.into(), kind, observed };
    prop_oneof![
        Just(Vec::new()),
        column("").prop_map(move |column| vec![
            spec("goal", ExtraKind::Tensor(column), false),
            spec("nöte", ExtraKind::Text, false),
            spec("mission", ExtraKind::Text, true),
        ]),
    ]
}

fn extra_values(spec: &ExtraSpec, rows: usize) -> BoxedStrategy<ExtraValues> {
    match &spec.kind {
        ExtraKind::Tensor(column) => bytes(column.row_bytes() * rows).prop_map(ExtraValues::Tensor).boxed(),
        ExtraKind::Text => vec("[aé猫]{0,5}", rows)
            .prop_map(|texts| ExtraValues::Text(texts.iter().map(String::as_str).collect()))
            .boxed(),
    }
}

fn bytes(len: usize) -> impl Strategy<Value = Buffer> {
    vec(any::<u8>(), len).prop_map(Buffer::from_vec)
}

/// The end of an episode: whether it is complete, has a final observation, was terminated, was truncated.
fn end() -> impl Strategy<Value = [bool; 4]> {
    prop_oneof![
        1 => Just([false; 4]),
        4 => any::<[bool; 3]>().prop_map(|[last, terminated, truncated]| [true, last, terminated, truncated]),
    ]
}

fn policies(len: usize) -> impl Strategy<Value = Vec<PolicyRun>> {
    let names = prop::sample::select(vec!["pilot", "", "ünïcode"]);
    (vec((names, 0..3_u64), len), vec(prop::bool::weighted(0.2), len)).prop_map(|(policies, changes)| {
        let mut runs: Vec<PolicyRun> = Vec::new();
        for (from, ((policy, version), change)) in policies.into_iter().zip(changes).enumerate() {
            let new = runs.last().is_none_or(|run| (&*run.policy, run.version) != (policy, version));
            if from == 0 || change && new {
                runs.push(PolicyRun { from, policy: policy.into(), version });
            }
        }
        runs
    })
}

fn episode(schema: Arc<StepSchema>) -> impl Strategy<Value = Episode> {
    (1..20_usize, end()).prop_flat_map(move |(len, [complete, has_final_observation, terminated, truncated])| {
        let rows = len + usize::from(has_final_observation);
        let observations: Vec<_> = schema.observations.iter().map(|column| bytes(column.row_bytes() * rows)).collect();
        let optional = |row_bytes: Option<usize>| match row_bytes {
            None => Just(None).boxed(),
            Some(row_bytes) => bytes(row_bytes * len).prop_map(Some).boxed(),
        };
        let known = prop_oneof![Just(vec![true; len]), vec(any::<bool>(), len)].prop_map(|known| {
            let unknown = known.contains(&false);
            unknown.then(|| Buffer::from_vec(known.into_iter().map(u8::from).collect::<Vec<_>>()))
        });
        let extras: Vec<_> = schema
            .extras
            .iter()
            .map(|spec| extra_values(spec, len + usize::from(spec.observed && has_final_observation)))
            .collect();
        let schema = schema.clone();
        (
            (
                any::<u128>(),
                observations,
                schema.actions.iter().map(|column| bytes(column.row_bytes() * len)).collect::<Vec<_>>(),
                optional(schema.mask),
            ),
            (bytes(8 * len), known, optional(schema.log_prob.then_some(4)), optional(schema.value.then_some(4))),
            (policies(len), bytes(8 * len), extras),
        )
            .prop_map(move |(given, earned, when)| Episode {
                number: 0,
                actor_id: Uuid::from_u128(given.0),
                schema: schema.clone(),
                len,
                observations: given.1,
                has_final_observation,
                actions: given.2,
                masks: given.3,
                rewards: earned.0,
                reward_known: earned.1,
                log_probs: earned.2,
                values: earned.3,
                policies: when.0,
                timestamps: when.1,
                extras: when.2,
                terminated,
                truncated,
                complete,
            })
    })
}

/// Episodes of one schema, numbered in order.
fn episodes() -> impl Strategy<Value = Vec<Arc<Episode>>> {
    schema().prop_flat_map(|schema| vec(episode(schema), 1..8)).prop_map(|episodes| {
        let number = |(number, episode)| Arc::new(Episode { number: number as u64, ..episode });
        episodes.into_iter().enumerate().map(number).collect()
    })
}

/// An episode of a few steps, which tells its number in each of them.
fn plain(number: u64, len: usize) -> Arc<Episode> {
    let column = |dtype, shape: &[usize]| ColumnSpec { key: String::new(), dtype, shape: shape.to_vec() };
    let schema = StepSchema {
        observations: vec![column(DType::Float32, &[2])],
        actions: vec![column(DType::Int64, &[])],
        mask: Some(3),
        log_prob: true,
        value: true,
        extras: vec![ExtraSpec { name: "note".into(), kind: ExtraKind::Text, observed: false }],
    };
    Arc::new(Episode {
        number,
        actor_id: Uuid::from_u128(u128::from(number % 2)),
        schema: Arc::new(schema),
        len,
        observations: vec![Buffer::from_vec(vec![number as f32; 2 * (len + 1)])],
        has_final_observation: true,
        actions: vec![Buffer::from_vec(vec![number; len])],
        masks: Some(Buffer::from_vec(vec![1_u8; 3 * len])),
        rewards: Buffer::from_vec(vec![1.0_f64; len]),
        reward_known: None,
        log_probs: Some(Buffer::from_vec(vec![-0.5_f32; len])),
        values: Some(Buffer::from_vec(vec![2.0_f32; len])),
        extras: vec![ExtraValues::Text(vec![""; len].into_iter().collect())],
        policies: vec![PolicyRun { from: 0, policy: "pilot".into(), version: number }],
        timestamps: Buffer::from_vec(vec![1_700_000_000_000_000_000_i64; len]),
        terminated: true,
        truncated: false,
        complete: true,
    })
}

/// Writes each of the groups as one batch. The writer is dropped unclosed where `close` is false, as if killed.
fn write(path: &Path, batches: &[Vec<Arc<Episode>>], close: bool) {
    let mut writer = RunWriter::create(path, &info(), WriterOptions::default()).unwrap();
    for batch in batches {
        for episode in batch {
            writer.push(whole(episode.clone())).unwrap();
        }
        writer.flush().unwrap();
    }
    let count: usize = batches.iter().map(Vec::len).sum();
    assert_eq!(writer.episodes_written(), count as u64);
    assert_eq!(writer.steps_written(), batches.iter().flatten().map(|episode| episode.len as u64).sum::<u64>());
    if close {
        writer.close(&[]).unwrap();
    }
}

fn whole(episode: Arc<Episode>) -> Piece {
    Piece::whole(episode, 0, 0)
}

fn segment(path: &Path, number: usize) -> PathBuf {
    path.join(format!("segments/{number:06}.arrow"))
}

fn read(path: &Path) -> Vec<Result<Episode, Error>> {
    Arc::new(Run::open(path).unwrap()).episodes(&Selection::default()).collect()
}

/// The run's episodes that are not lost.
fn found(path: &Path) -> Vec<Episode> {
    read(path).into_iter().filter_map(Result::ok).collect()
}

/// The run's episodes, of which none may be an error.
fn read_all(path: &Path) -> Vec<Episode> {
    read(path).into_iter().collect::<Result<_, _>>().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn episodes_come_back_as_they_were(first in episodes(), second in episodes(), close in any::<bool>()) {
        let folder = TempDir::new().unwrap();
        let (early, late) = first.split_at(first.len() / 2);
        write(folder.path(), &[early.to_vec(), [late, &second[..]].concat()], close);
        let expected: Vec<_> = first.iter().chain(&second).map(|episode| Episode::clone(episode)).collect();
        prop_assert!(read_all(folder.path()) == expected);
    }
}

#[test]
fn an_unclosed_segment_cut_anywhere_gives_the_whole_batches_before_the_cut() {
    let folder = TempDir::new().unwrap();
    let batches: Vec<Vec<_>> = vec![vec![plain(0, 2), plain(1, 1)], vec![plain(2, 3)], vec![plain(3, 1)]];
    let mut writer = RunWriter::create(folder.path(), &info(), WriterOptions::default()).unwrap();
    let path = segment(folder.path(), 0);
    let mut ends = Vec::new();
    for batch in &batches {
        for episode in batch {
            writer.push(whole(episode.clone())).unwrap();
        }
        writer.flush().unwrap();
        ends.push(fs::metadata(&path).unwrap().len() as usize);
    }
    drop(writer);
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), ends[2]);
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let expected: Vec<_> =
            batches.iter().zip(&ends).filter(|(_, end)| **end <= cut).flat_map(|(batch, _)| batch).collect();
        let expected: Vec<_> = expected.into_iter().map(|episode| Episode::clone(episode)).collect();
        assert!(found(folder.path()) == expected, "cut at {cut} of {}", whole.len());
    }
}

#[test]
fn a_closed_segment_cut_anywhere_gives_the_whole_batches_before_the_cut() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &[vec![plain(0, 2)], vec![plain(1, 1)]], true);
    let path = segment(folder.path(), 0);
    let whole = fs::read(&path).unwrap();
    let mut before = 0;
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let episodes = found(folder.path());
        assert!(
            episodes.len() >= before
                && episodes.iter().zip(0..).all(|(episode, n)| *episode == *plain(n, 2 - n as usize))
        );
        before = episodes.len();
    }
    assert_eq!(before, 2);
}

#[test]
fn no_damaged_byte_makes_the_reader_panic() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &[vec![plain(0, 2), plain(1, 1)]], true);
    let path = segment(folder.path(), 0);
    let whole = fs::read(&path).unwrap();
    let mut errors = 0;
    for position in 0..whole.len() {
        for damage in [0x01, 0xff] {
            let mut damaged = whole.clone();
            damaged[position] ^= damage;
            fs::write(&path, damaged).unwrap();
            errors += usize::from(read(folder.path()).iter().any(Result::is_err));
        }
    }
    assert!(errors > 1_000, "only {errors} damaged files were noticed");
}

#[test]
fn damage_is_told_with_the_file_and_the_batch_and_hides_nothing_else() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &[vec![plain(0, 2)], vec![plain(1, 1)], vec![plain(2, 1)]], true);
    let path = segment(folder.path(), 0);
    let mut bytes = fs::read(&path).unwrap();
    // The second batch begins at the third continuation mark: the schema's is the first.
    let marks: Vec<_> = (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(&[0xff; 4])).collect();
    bytes[marks[2]] = 0;
    fs::write(&path, &bytes).unwrap();
    // One without a sidecar.
    fs::copy(&path, segment(folder.path(), 1)).unwrap();
    let read = read(folder.path());
    let (found, told): (Vec<_>, Vec<_>) = read.into_iter().partition(Result::is_ok);
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert!(found == [plain(0, 2), plain(2, 1), plain(0, 2)].map(|episode| Episode::clone(&episode)));
    let told: Vec<_> = told.into_iter().map(|error| error.unwrap_err().to_string()).collect();
    assert!(told[0].contains("000000.arrow") && told[0].contains("batch 1, at byte"), "{told:?}");
    assert!(told[1].contains("000001.arrow") && told[1].contains("what follows is lost"), "{told:?}");
}

#[test]
fn a_batch_missing_from_a_closed_segment_is_told() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &[vec![plain(0, 2)], vec![plain(1, 1)]], true);
    let path = segment(folder.path(), 0);
    let mut bytes = fs::read(&path).unwrap();
    let marks: Vec<_> = (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(&[0xff; 4])).collect();
    // A length of 0 is an end mark.
    bytes[marks[2] + 4..marks[2] + 8].fill(0);
    fs::write(&path, &bytes).unwrap();
    let read = read(folder.path());
    let text = read[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("batch 1, at byte") && text.contains("not those that were written"), "{text}");
}

#[test]
fn large_episodes_are_written_without_a_flush() {
    let folder = TempDir::new().unwrap();
    let mut writer = RunWriter::create(folder.path(), &info(), WriterOptions::default()).unwrap();
    writer.push(whole(plain(0, 1))).unwrap();
    assert_eq!(writer.episodes_written(), 0);
    writer.push(whole(plain(1, 200_000))).unwrap();
    assert_eq!((writer.episodes_written(), writer.steps_written()), (2, 200_001));
    drop(writer);
    assert_eq!(read_all(folder.path()), [Episode::clone(&plain(0, 1)), Episode::clone(&plain(1, 200_000))]);
}

#[test]
fn a_run_that_is_still_written_can_be_read() {
    let folder = TempDir::new().unwrap();
    let mut writer = RunWriter::create(folder.path(), &info(), WriterOptions::default()).unwrap();
    assert!(read_all(folder.path()).is_empty());
    for number in 0..3 {
        writer.push(whole(plain(number, 1))).unwrap();
        assert_eq!(read_all(folder.path()).len() as u64, number);
        writer.flush().unwrap();
        assert_eq!(read_all(folder.path()).len() as u64, number + 1);
    }
}

#[test]
fn an_actor_that_begins_another_episode_has_left_the_one_before() {
    let folder = TempDir::new().unwrap();
    let left = |number| {
        let episode = Episode::clone(&plain(number, 2));
        let observations = vec![episode.observations[0].slice_with_length(0, 16)];
        Arc::new(Episode { observations, has_final_observation: false, terminated: false, complete: false, ..episode })
    };
    let batch = vec![left(0), left(1), plain(2, 1)];
    write(folder.path(), std::slice::from_ref(&batch), true);
    let expected: Vec<_> = batch.iter().map(|episode| Episode::clone(episode)).collect();
    assert!(read_all(folder.path()) == expected);
}

/// An Arrow file whose stream begins after 8 bytes, as a segment's does.
fn arrow_writer(path: &Path, schema: &Schema) -> FileWriter<fs::File> {
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).unwrap();
    FileWriter::try_new_with_options(fs::File::create(path).unwrap(), schema, options).unwrap()
}

#[test]
fn episodes_may_go_on_in_later_batches_side_by_side() {
    let folder = TempDir::new().unwrap();
    let policies = [0, 2].map(|from| PolicyRun { from, policy: "pilot".into(), version: from as u64 }).to_vec();
    let reward_known = Some(Buffer::from_vec(vec![1_u8, 0, 1]));
    let first = Arc::new(Episode { policies, reward_known, ..Episode::clone(&plain(0, 3)) });
    let second = plain(1, 3);
    write(folder.path(), &[vec![first.clone(), second.clone()]], true);
    let path = segment(folder.path(), 0);
    let whole = FileReader::try_new(fs::File::open(&path).unwrap(), None).unwrap().next().unwrap().unwrap();
    assert_eq!(whole.num_rows(), 8);
    fs::remove_file(path.with_extension("index")).unwrap();
    let mut writer = arrow_writer(&path, &whole.schema());
    for (row, rows) in [(0, 1), (4, 1), (1, 1), (5, 1), (6, 2), (2, 2)] {
        writer.write(&whole.slice(row, rows)).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(read_all(folder.path()), [Episode::clone(&second), Episode::clone(&first)]);

    // A step that is missing is not passed over.
    let mut writer = arrow_writer(&path, &whole.schema());
    for row in [0, 2] {
        writer.write(&whole.slice(row, 1)).unwrap();
    }
    writer.finish().unwrap();
    let read = read(folder.path());
    assert_eq!(read[0].as_ref().unwrap().len, 1);
    let text = read[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("batch 1 holds steps of episode 0 from step 2 on"), "{text}");
}

#[test]
fn an_episode_that_contradicts_itself_is_refused_alone() {
    let folder = TempDir::new().unwrap();
    let mut writer = RunWriter::create(folder.path(), &info(), WriterOptions::default()).unwrap();
    writer.push(whole(plain(0, 1))).unwrap();
    let good = Episode::clone(&plain(1, 2));
    let short = || Buffer::from_vec(vec![0_u8; 3]);
    for bad in [
        Episode { len: 0, ..good.clone() },
        Episode { len: 3, ..good.clone() },
        Episode { rewards: short(), ..good.clone() },
        Episode { actions: vec![short()], ..good.clone() },
        Episode { timestamps: short(), ..good.clone() },
        Episode { masks: None, ..good.clone() },
        Episode { values: Some(short()), ..good.clone() },
        Episode { reward_known: Some(short()), ..good.clone() },
        Episode { observations: vec![], ..good.clone() },
        Episode { extras: vec![], ..good.clone() },
        Episode { extras: vec![ExtraValues::Text(["one"].into_iter().collect())], ..good.clone() },
        Episode { extras: vec![ExtraValues::Tensor(short())], ..good.clone() },
        Episode { has_final_observation: false, ..good.clone() },
        Episode { complete: false, ..good.clone() },
        Episode { policies: vec![], ..good.clone() },
        Episode { policies: vec![PolicyRun { from: 1, policy: "pilot".into(), version: 0 }], ..good.clone() },
        Episode { policies: [0, 2].map(|from| PolicyRun { from, ..good.policies[0].clone() }).into(), ..good.clone() },
    ] {
        let text = writer.push(whole(Arc::new(bad))).unwrap_err().to_string();
        assert!(text.contains("episode 1 cannot be recorded"), "{text}");
    }
    writer.push(whole(Arc::new(good.clone()))).unwrap();
    writer.close(&[]).unwrap();
    assert_eq!(read_all(folder.path()), [Episode::clone(&plain(0, 1)), good]);
}

#[test]
fn a_foreign_file_is_told_by_its_missing_column() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &[vec![plain(0, 1)]], true);
    let path = segment(folder.path(), 1);
    let batch = RecordBatch::try_from_iter([("actor_id", Arc::new(Int32Array::from(vec![1])) as _)]).unwrap();
    let mut writer = arrow_writer(&path, &batch.schema());
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    for (content, expected) in [(None, "column `episode` is missing"), (Some("PAR1"), "not an Arrow IPC file")] {
        if let Some(content) = content {
            fs::write(&path, content).unwrap();
        }
        let read = read(folder.path());
        assert_eq!(read.len(), 2);
        let text = read[1].as_ref().unwrap_err().to_string();
        assert!(text.contains("000001.arrow") && text.contains(expected), "{text}");
    }
}

#[test]
fn run_folders_are_told_apart() {
    let folder = TempDir::new().unwrap();
    let reason = |result: Result<Run, Error>| match result {
        Err(error @ Error::Trajectory { .. }) => error.to_string(),
        other => panic!("a trajectory error was expected, and there came {other:?}"),
    };
    assert!(reason(Run::open(folder.path())).contains("run.json was looked for"));

    let info = info();
    RunWriter::create(folder.path(), &info, WriterOptions::default()).unwrap().close(&[]).unwrap();
    let run = Run::open(folder.path()).unwrap();
    assert_eq!(*run.info(), info);
    assert_eq!(Arc::new(run).episodes(&Selection::default()).count(), 0);

    let Err(error) = RunWriter::create(folder.path(), &info, WriterOptions::default()) else {
        panic!("the folder holds a run already")
    };
    assert!(error.to_string().contains("another folder"), "{error}");

    let description = folder.path().join("run.json");
    fs::write(&description, r#"{"format_version": 2, "something": "new"}"#).unwrap();
    let text = reason(Run::open(folder.path()));
    assert!(text.contains("format version 2") && text.contains("up to 1"), "{text}");
    fs::write(&description, r#"{"format_version": 1}"#).unwrap();
    assert!(reason(Run::open(folder.path())).contains("run_id"));
    fs::write(&description, "{").unwrap();
    assert!(reason(Run::open(folder.path())).contains("not the description of a run"));
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let Err(error) = RunWriter::create(&file.join("run"), &info(), WriterOptions::default()) else {
        panic!("a file is no folder")
    };
    assert!(error.to_string().contains("cannot create the run's folder: "), "{error}");
}
