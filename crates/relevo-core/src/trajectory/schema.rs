//! The columns of a segment: an Arrow schema from a [`StepSchema`], and back.

use std::collections::HashMap;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, Schema, TimeUnit};

use super::{ColumnSpec, ExtraKind, ExtraSpec, StepSchema};
use crate::error::{Error, Result as CheckResult};
use crate::spec::DType;

pub(crate) const ACTOR_ID: &str = "actor_id";
pub(crate) const EPISODE: &str = "episode";
pub(crate) const STEP: &str = "step";
pub(crate) const OBSERVATION: &str = "observation";
pub(crate) const ACTION: &str = "action";
pub(crate) const ACTION_MASK: &str = "action_mask";
pub(crate) const REWARD: &str = "reward";
pub(crate) const TERMINATED: &str = "terminated";
pub(crate) const TRUNCATED: &str = "truncated";
pub(crate) const LOG_PROB: &str = "log_prob";
pub(crate) const VALUE: &str = "value";
pub(crate) const POLICY: &str = "policy";
pub(crate) const POLICY_VERSION: &str = "policy_version";
pub(crate) const TIMESTAMP: &str = "timestamp";
pub(crate) const EXTRA: &str = "extra";

/// The timestamps' time zone.
pub(crate) const UTC: &str = "UTC";

/// Bytes of an actor's id.
pub(crate) const ACTOR_ID_BYTES: i32 = 16;

/// Field metadata that tells `bool` from the `uint8` it is stored as: Arrow's booleans are bits, which do not become
/// NumPy tensors.
const DTYPE_KEY: &str = "relevo.dtype";

/// Name of the column of this `kind`, [`OBSERVATION`] or [`ACTION`], that has this key.
pub(crate) fn keyed_name(kind: &str, key: &str) -> String {
    if key.is_empty() { kind.into() } else { format!("{kind}.{key}") }
}

/// The key of the column with this name, if it is one of this `kind`.
pub(crate) fn key_of<'a>(kind: &str, name: &'a str) -> Option<&'a str> {
    let rest = name.strip_prefix(kind)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('.') }
}

/// Fails, with the name of the first column that is missing, where these columns are not those of a segment.
pub(crate) fn check_names(names: &[&str]) -> Result<(), String> {
    let needed = [ACTOR_ID, EPISODE, STEP, REWARD, TERMINATED, TRUNCATED, POLICY, POLICY_VERSION, TIMESTAMP];
    if let Some(missing) = needed.into_iter().find(|needed| !names.contains(needed)) {
        return Err(format!("the column `{missing}` is missing: not a segment of a run"));
    }
    for kind in [OBSERVATION, ACTION] {
        if !names.iter().any(|name| key_of(kind, name).is_some()) {
            return Err(format!("the column `{kind}` is missing: not a segment of a run"));
        }
    }
    Ok(())
}

/// The Arrow schema of steps with these columns. Fails where two columns have one name or a shape is too large.
pub(crate) fn to_arrow(steps: &StepSchema) -> Result<Schema, String> {
    let actor_id = Field::new(ACTOR_ID, DataType::FixedSizeBinary(ACTOR_ID_BYTES), false)
        .with_metadata(extension("arrow.uuid", String::new()));
    let mut fields =
        vec![actor_id, Field::new(EPISODE, DataType::UInt64, false), Field::new(STEP, DataType::UInt32, false)];
    for observation in &steps.observations {
        fields.push(tensor_field(keyed_name(OBSERVATION, &observation.key), observation)?);
    }
    for action in &steps.actions {
        fields.push(tensor_field(keyed_name(ACTION, &action.key), action)?);
    }
    if let Some(width) = steps.mask {
        fields.push(tensor_field(ACTION_MASK.into(), &mask_column(width))?);
    }
    fields.push(Field::new(REWARD, DataType::Float64, true));
    fields.push(Field::new(TERMINATED, DataType::Boolean, false));
    fields.push(Field::new(TRUNCATED, DataType::Boolean, false));
    if steps.log_prob {
        fields.push(Field::new(LOG_PROB, DataType::Float32, true));
    }
    if steps.value {
        fields.push(Field::new(VALUE, DataType::Float32, true));
    }
    fields.push(Field::new(POLICY, DataType::Utf8, false));
    fields.push(Field::new(POLICY_VERSION, DataType::UInt64, false));
    fields.push(Field::new(TIMESTAMP, DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into())), false));
    for extra in &steps.extras {
        fields.push(match &extra.kind {
            ExtraKind::Tensor(column) => tensor_field(extra_name(extra), column)?,
            ExtraKind::Text => Field::new(extra_name(extra), DataType::Utf8, true),
        });
    }
    for (index, field) in fields.iter().enumerate() {
        if fields[..index].iter().any(|other| other.name() == field.name()) {
            return Err(format!("two columns of the steps would be called `{}`; rename one", field.name()));
        }
    }
    Ok(Schema::new(fields))
}

/// Name of an extra column.
pub(crate) fn extra_name(extra: &ExtraSpec) -> String {
    keyed_name(if extra.observed { OBSERVATION } else { EXTRA }, &extra.name)
}

/// Refuses extra columns that steps of this schema cannot have.
pub(crate) fn check_extras(steps: &StepSchema, extras: &[ExtraSpec]) -> CheckResult<()> {
    if extras.iter().any(|extra| extra.name.is_empty()) {
        return Err(Error::Config("an extra column needs a name".into()));
    }
    let steps = StepSchema { extras: extras.to_vec(), ..steps.clone() };
    to_arrow(&steps).map(drop).map_err(Error::Config)
}

/// The columns of the steps in a segment with this schema. Fails, with the column's name, where it has none of ours.
pub(crate) fn from_arrow(schema: &Schema) -> Result<StepSchema, String> {
    check_names(&schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>())?;
    let optional = |name: &str| schema.column_with_name(name).map(|(_, field)| field);
    let keyed = |kind| {
        let fields = schema.fields().iter().filter_map(move |field| Some((field, key_of(kind, field.name())?)));
        let fields = fields.filter(|(field, _)| *field.data_type() != DataType::Utf8);
        fields.map(|(field, key)| read_tensor_field(field, key)).collect::<Result<Vec<_>, _>>()
    };
    let mask = match optional(ACTION_MASK) {
        None => None,
        Some(field) => match read_tensor_field(field, "")?.shape[..] {
            [width] => Some(width),
            _ => return Err(format!("the column `{ACTION_MASK}` is not a list of masks: not a segment of a run")),
        },
    };
    let steps = StepSchema {
        observations: keyed(OBSERVATION)?,
        actions: keyed(ACTION)?,
        mask,
        log_prob: optional(LOG_PROB).is_some(),
        value: optional(VALUE).is_some(),
        extras: schema.fields().iter().filter_map(|field| read_extra(field).transpose()).collect::<Result<_, _>>()?,
    };
    for field in to_arrow(&steps)?.fields() {
        let found = schema.field_with_name(field.name()).map_err(|error| error.to_string())?;
        if found.data_type() != field.data_type() || found.is_nullable() != field.is_nullable() {
            return Err(format!(
                "the column `{}` is {} where a segment has {}: not a segment of a run",
                field.name(),
                describe(found),
                describe(field)
            ));
        }
    }
    Ok(steps)
}

/// The extra column in a field, if it is one.
fn read_extra(field: &Field) -> Result<Option<ExtraSpec>, String> {
    let is_text = *field.data_type() == DataType::Utf8;
    let (name, observed) = match (key_of(EXTRA, field.name()), key_of(OBSERVATION, field.name())) {
        (Some(name), _) if !name.is_empty() => (name, false),
        (_, Some(name)) if is_text => (name, true),
        _ => return Ok(None),
    };
    let kind = if is_text { ExtraKind::Text } else { ExtraKind::Tensor(read_tensor_field(field, "")?) };
    Ok(Some(ExtraSpec { name: name.into(), kind, observed }))
}

fn describe(field: &Field) -> String {
    format!("{}{}", if field.is_nullable() { "nullable " } else { "" }, field.data_type())
}

fn extension(name: &str, metadata: String) -> HashMap<String, String> {
    HashMap::from([
        (EXTENSION_TYPE_NAME_KEY.to_owned(), name.to_owned()),
        (EXTENSION_TYPE_METADATA_KEY.to_owned(), metadata),
    ])
}

/// The column of masks `width` wide.
pub(crate) fn mask_column(width: usize) -> ColumnSpec {
    ColumnSpec { key: String::new(), dtype: DType::UInt8, shape: vec![width] }
}

/// A column of scalars, or of tensors that lie flat in fixed-size lists. Nullable, for the closing row's sake.
fn tensor_field(name: String, column: &ColumnSpec) -> Result<Field, String> {
    let mut data_type = arrow_type(column.dtype);
    let mut metadata = HashMap::new();
    if !column.shape.is_empty() {
        let size = column.shape.iter().try_fold(1_usize, |size, dimension| size.checked_mul(*dimension));
        let Some(size) = size.and_then(|size| i32::try_from(size).ok()) else {
            let shape = crate::spec::shape_text(&column.shape);
            return Err(format!("the column `{name}` of shape {shape} has over 2^31 elements in a row"));
        };
        data_type = DataType::new_fixed_size_list(data_type, size, false);
        let shape = serde_json::json!({ "shape": column.shape });
        metadata = extension("arrow.fixed_shape_tensor", shape.to_string());
    }
    if column.dtype == DType::Bool {
        metadata.insert(DTYPE_KEY.into(), column.dtype.name().into());
    }
    Ok(Field::new(name, data_type, true).with_metadata(metadata))
}

pub(crate) fn read_tensor_field(field: &Field, key: &str) -> Result<ColumnSpec, String> {
    let (element, shape) = match field.data_type() {
        DataType::FixedSizeList(element, _) => (element.data_type(), tensor_shape(field)),
        scalar => (scalar, Some(Vec::new())),
    };
    let (Some(shape), Some(stored)) = (shape, dtype(element)) else {
        return Err(format!("the column `{}` is not one of tensors: not a segment of a run", field.name()));
    };
    let declared = field.metadata().get(DTYPE_KEY).and_then(|name| DType::from_name(name));
    Ok(ColumnSpec { key: key.into(), dtype: declared.unwrap_or(stored), shape })
}

/// The shape in the metadata of an `arrow.fixed_shape_tensor` column.
fn tensor_shape(field: &Field) -> Option<Vec<usize>> {
    let metadata: serde_json::Value = serde_json::from_str(field.metadata().get(EXTENSION_TYPE_METADATA_KEY)?).ok()?;
    serde_json::from_value(metadata.get("shape")?.clone()).ok()
}

/// How elements are stored.
fn arrow_type(dtype: DType) -> DataType {
    match dtype {
        DType::Bool | DType::UInt8 => DataType::UInt8,
        DType::Int8 => DataType::Int8,
        DType::UInt16 => DataType::UInt16,
        DType::Int16 => DataType::Int16,
        DType::UInt32 => DataType::UInt32,
        DType::Int32 => DataType::Int32,
        DType::UInt64 => DataType::UInt64,
        DType::Int64 => DataType::Int64,
        DType::Float16 => DataType::Float16,
        DType::Float32 => DataType::Float32,
        DType::Float64 => DataType::Float64,
    }
}

/// The inverse of [`arrow_type`], but for `bool`.
fn dtype(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::UInt8 => DType::UInt8,
        DataType::Int8 => DType::Int8,
        DataType::UInt16 => DType::UInt16,
        DataType::Int16 => DType::Int16,
        DataType::UInt32 => DType::UInt32,
        DataType::Int32 => DType::Int32,
        DataType::UInt64 => DType::UInt64,
        DataType::Int64 => DType::Int64,
        DataType::Float16 => DType::Float16,
        DataType::Float32 => DType::Float32,
        DataType::Float64 => DType::Float64,
        _ => return None,
    })
}
