//! The rows of an episode in CSV files, with the columns of RelayRL.
//!
//! Row t holds observation and action t, and the reward of action t − 1. A last row, without an action, holds the last reward.
//! What has no column of its own is in `aux_data`, in the form of RelayRL's `{"name": {"F32": 0.5}}`.

use serde_json::{Map, Value, json};

use super::{ColumnSpec, ExtraKind, ExtraValues, Piece, StepSchema, schema};
use crate::spec::DType;

/// The columns, in their order.
pub(crate) const HEADER: [&str; 21] = [
    "backend",
    "actor_id",
    "timestamp",
    "obs_dtype",
    "obs_shape",
    "obs_f32",
    "obs_f64",
    "obs_binary",
    "act_dtype",
    "act_shape",
    "act_f32",
    "act_f64",
    "act_binary",
    "mask_dtype",
    "mask_shape",
    "mask_f32",
    "mask_f64",
    "mask_binary",
    "reward",
    "done",
    "aux_data",
];

/// The cells of a row.
pub(crate) type Row = Vec<String>;

/// Fails where RelayRL has no name for the type of a tensor.
pub(crate) fn check(steps: &StepSchema) -> Result<(), String> {
    for (_, column) in tensors(steps) {
        if name_of(column.dtype).is_none() {
            let dtype = column.dtype;
            return Err(format!(
                "RelayRL, whose columns CSV files have, has no tensors of {dtype}; write Arrow or Parquet"
            ));
        }
    }
    Ok(())
}

/// The rows of a piece. `before` is the reward of the action before the first, where there is one in an earlier piece.
pub(crate) fn rows(piece: &Piece, before: Option<LastReward>) -> Vec<Row> {
    let episode = &piece.episode;
    let writer = Writer { piece, backend: backend(&episode.schema) };
    let rewards: &[f64] = episode.rewards.typed_data();
    let known = |step: usize| episode.reward_known.as_ref().is_none_or(|known| known[step] != 0);
    let earned = |row: usize| match row.checked_sub(1) {
        None => before,
        Some(step) => Some(LastReward { reward: rewards[step], known: known(step) }),
    };
    (0..episode.len + usize::from(piece.last)).map(|row| writer.row(row, earned(row))).collect()
}

/// The reward of the last step of a piece that others follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastReward {
    reward: f64,
    known: bool,
}

impl LastReward {
    pub(crate) fn of(piece: &Piece) -> Option<Self> {
        let episode = &piece.episode;
        let reward = *episode.rewards.typed_data::<f64>().last()?;
        Some(Self { reward, known: episode.reward_known.as_ref().is_none_or(|known| known.last() != Some(&0)) })
    }
}

/// Makes the rows of one piece.
struct Writer<'a> {
    piece: &'a Piece,
    backend: &'static str,
}

impl Writer<'_> {
    fn row(&self, row: usize, earned: Option<LastReward>) -> Row {
        let Piece { episode, .. } = self.piece;
        let is_step = row < episode.len;
        let mut aux = if is_step { self.facts(row) } else { self.end() };
        let time = episode.timestamps.typed_data::<i64>()[row.min(episode.len - 1)];
        aux.insert("timestamp_ns".into(), json!({ "I64": time }));
        if earned.is_some_and(|earned| !earned.known) {
            aux.insert("reward_known".into(), json!({ "Bool": false }));
        }
        let reward = earned.map_or(0.0, |earned| if earned.known { earned.reward } else { f64::NAN });
        let observed = is_step || episode.has_final_observation;
        let mut cells =
            vec![self.backend.into(), episode.actor_id.to_string(), (time.div_euclid(1_000_000_000)).to_string()];
        let columns = [
            (&episode.schema.observations, &episode.observations, schema::OBSERVATION, observed),
            (&episode.schema.actions, &episode.actions, schema::ACTION, is_step),
        ];
        for (specs, buffers, kind, there) in columns {
            let mut own = None;
            for (spec, buffer) in specs.iter().zip(buffers).filter(|_| there) {
                let bytes = &buffer[row * spec.row_bytes()..][..spec.row_bytes()];
                if spec.key.is_empty() {
                    own = Some(self.cells(spec, bytes));
                } else {
                    // Several have no columns.
                    aux.insert(schema::keyed_name(kind, &spec.key), self.tensor(spec, bytes));
                }
            }
            cells.extend(own.unwrap_or_default());
        }
        cells.extend(match (episode.schema.mask, &episode.masks) {
            (Some(width), Some(masks)) if is_step => {
                let column = ColumnSpec { dtype: DType::Bool, ..schema::mask_column(width) };
                self.cells(&column, &masks[row * width..][..width])
            }
            _ => Default::default(),
        });
        for (spec, values) in episode.schema.extras.iter().zip(&episode.extras) {
            let value = match (&spec.kind, values) {
                (ExtraKind::Tensor(column), ExtraValues::Tensor(bytes)) if is_step => {
                    self.tensor(column, &bytes[row * column.row_bytes()..][..column.row_bytes()])
                }
                (ExtraKind::Text, ExtraValues::Text(texts)) if row < texts.len() => json!({ "String": texts.get(row) }),
                _ => continue,
            };
            aux.insert(schema::extra_name(spec), value);
        }
        let done = !is_step && episode.complete;
        cells.extend([number(reward), done.to_string(), Value::Object(aux).to_string()]);
        cells
    }

    /// What has no column, of one step.
    fn facts(&self, step: usize) -> Map<String, Value> {
        let episode = &self.piece.episode;
        let run = episode.policies.iter().rev().find(|run| run.from <= step);
        let mut facts = Map::new();
        if let Some(run) = run {
            facts.insert("policy".into(), json!({ "String": &*run.policy }));
            let version = match i64::try_from(run.version) {
                Ok(version) => json!({ "I64": version }),
                Err(_) => json!({ "String": run.version.to_string() }),
            };
            facts.insert("policy_version".into(), version);
        }
        for (name, column) in [("log_prob", &episode.log_probs), ("value", &episode.values)] {
            let Some(column) = column else { continue };
            let told = column.typed_data::<f32>()[step];
            // JSON has neither NaN nor infinities.
            let told = if told.is_finite() { json!({ "F32": told }) } else { json!({ "String": number(told.into()) }) };
            facts.insert(name.into(), told);
        }
        facts
    }

    /// What has no column, of the episode.
    fn end(&self) -> Map<String, Value> {
        let episode = &self.piece.episode;
        let flags =
            [("terminated", episode.terminated), ("truncated", episode.truncated), ("complete", episode.complete)];
        let mut facts: Map<_, _> =
            flags.into_iter().map(|(name, flag)| (name.to_owned(), json!({ "Bool": flag }))).collect();
        facts.insert("episode".into(), json!({ "I64": episode.number }));
        facts
    }

    /// The five cells of a tensor: type, shape, and its elements as float32, as float64 or as bytes in little-endian order.
    fn cells(&self, column: &ColumnSpec, bytes: &[u8]) -> [String; 5] {
        let dtype = format!("{}({})", self.backend, name_of(column.dtype).unwrap_or_default());
        let shape = json!(column.shape).to_string();
        let empty = String::new;
        let floats = match column.dtype {
            DType::Float32 => finite_text(bytes, f32::from_le_bytes, |number| number.is_finite()),
            DType::Float64 => finite_text(bytes, f64::from_le_bytes, |number| number.is_finite()),
            _ => None,
        };
        match floats {
            Some(numbers) if column.dtype == DType::Float32 => [dtype, shape, numbers, empty(), empty()],
            Some(numbers) => [dtype, shape, empty(), numbers, empty()],
            // RelayRL's reader takes floats from bytes as well, and JSON has no NaN.
            None => [dtype, shape, empty(), empty(), json!(bytes).to_string()],
        }
    }

    /// A tensor as `aux_data` has it.
    fn tensor(&self, column: &ColumnSpec, bytes: &[u8]) -> Value {
        let dtype = Map::from_iter([(self.backend.to_owned(), json!(name_of(column.dtype)))]);
        json!({ "Tensor": { "shape": column.shape, "dtype": dtype, "data": bytes, "supported_backend": self.backend } })
    }
}

/// The numbers in these bytes, each as the shortest decimal that is read as the same; `None` where one is not finite.
fn finite_text<T: serde::Serialize, const SIZE: usize>(
    bytes: &[u8],
    number: impl Fn([u8; SIZE]) -> T,
    is_finite: impl Fn(&T) -> bool,
) -> Option<String> {
    let numbers: Vec<T> = bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect();
    if numbers.iter().all(is_finite) { serde_json::to_string(&numbers).ok() } else { None }
}

/// All tensors of a step.
fn tensors(steps: &StepSchema) -> impl Iterator<Item = (&str, &ColumnSpec)> {
    let extras = steps.extras.iter().filter_map(|extra| match &extra.kind {
        ExtraKind::Tensor(column) => Some((extra.name.as_str(), column)),
        ExtraKind::Text => None,
    });
    steps.observations.iter().chain(&steps.actions).map(|column| (column.key.as_str(), column)).chain(extras)
}

/// RelayRL's backend whose types the tensors have: all rows of a file must name the same.
fn backend(steps: &StepSchema) -> &'static str {
    if tensors(steps).any(|(_, column)| column.dtype == DType::UInt8) { "Tch" } else { "NdArray" }
}

/// RelayRL's name of a type; that of uint8 is one of its other backend alone.
fn name_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Float16 => "F16",
        DType::Float32 => "F32",
        DType::Float64 => "F64",
        DType::Int8 => "I8",
        DType::Int16 => "I16",
        DType::Int32 => "I32",
        DType::Int64 => "I64",
        DType::Bool => "Bool",
        DType::UInt8 => "U8",
        DType::UInt16 | DType::UInt32 | DType::UInt64 => return None,
    })
}

/// As Rust reads it: NaN, inf, -inf, or the shortest decimal.
fn number(value: f64) -> String {
    if value.is_finite() { json!(value).to_string() } else { value.to_string() }
}
