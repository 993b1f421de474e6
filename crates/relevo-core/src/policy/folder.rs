//! A folder with `metadata.json`, which names a model file and says what it takes: how RelayRL 0.5 keeps models.
//!
//! What the file says of shapes and types is the exporter's word. It fills in what the model file does not declare; where a
//! forward pass shows something else, the forward pass is right and the contract says that they differ.

use std::{
    fs::File,
    io::Read,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de};

use super::contract::{Contract, InputContract};
use crate::{
    error::{Error, Result},
    policy::InputRole,
    spec::{DType, shape_text},
};

/// The name of the file.
const NAME: &str = "metadata.json";

/// A larger file is none of these.
const MOST_BYTES: u64 = 1 << 20;

/// More axes, or more elements in a row, are a slip.
const MOST_AXES: usize = 16;
const MOST_ELEMENTS: usize = 1 << 30;

/// What a folder says of the model in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    /// The model file.
    pub(crate) file: PathBuf,
    /// The format's name, as backends call it.
    pub(crate) format: &'static str,
    /// Shape of an observation, without a batch axis; `None` where the folder does not say.
    pub(crate) observation: Option<Vec<usize>>,
    input_dtype: Option<DType>,
    output: Option<Vec<usize>>,
    output_dtype: Option<DType>,
    device: Option<String>,
}

/// The device that the model at `path` is meant for, for callers who name none: what a folder's `metadata.json` says,
/// otherwise the CPU.
///
/// # Errors
/// [`Error::ModelLoad`] for a `metadata.json` that cannot be understood.
pub fn default_device(path: &Path) -> Result<String> {
    Ok(Folder::at(path)?.and_then(|folder| folder.device).unwrap_or_else(|| "cpu".into()))
}

/// The model file that `path` leads to: itself, or the one that the `metadata.json` of a folder names.
///
/// # Errors
/// [`Error::ModelLoad`] for a `metadata.json` that cannot be understood.
pub fn model_file(path: &Path) -> Result<PathBuf> {
    Ok(Folder::at(path)?.map_or_else(|| path.to_owned(), |folder| folder.file))
}

/// The JSON, field by field. What only describes the model may be left out, or be null.
#[derive(Deserialize)]
struct Metadata {
    model_file: PathBuf,
    model_type: ModelType,
    input_dtype: Option<ElementType>,
    output_dtype: Option<ElementType>,
    input_shape: Option<Vec<usize>>,
    output_shape: Option<Vec<usize>>,
    default_device: Option<DeviceName>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum ModelType {
    Pt,
    Onnx,
}

/// `{"NdArray": "F32"}`, `{"Tch": "F32"}` or `"F32"`; `None` for a type that Relevo does not have.
struct ElementType(Option<DType>);

impl<'de> Deserialize<'de> for ElementType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Plain(String),
            OfBackend(std::collections::BTreeMap<String, String>),
        }
        let name = match Written::deserialize(deserializer)? {
            Written::Plain(name) => name,
            Written::OfBackend(names) if names.len() == 1 => names.into_values().next().unwrap_or_default(),
            Written::OfBackend(_) => {
                return Err(de::Error::custom("a type is one name, such as {\"NdArray\": \"F32\"}"));
            }
        };
        Ok(Self(match name.to_ascii_lowercase().as_str() {
            "f16" => Some(DType::Float16),
            "f32" => Some(DType::Float32),
            "f64" => Some(DType::Float64),
            "i8" => Some(DType::Int8),
            "i16" => Some(DType::Int16),
            "i32" => Some(DType::Int32),
            "i64" => Some(DType::Int64),
            "u8" => Some(DType::UInt8),
            "bf16" => None,
            other => Some(DType::from_name(other).ok_or_else(|| {
                de::Error::custom(format!("`{name}` is no element type; F32 and I64 are, for example"))
            })?),
        }))
    }
}

/// `"cpu"`, `"Cpu"`, `{"Cuda": 0}`, `"Mps"`, or a name as Relevo has them.
struct DeviceName(String);

impl<'de> Deserialize<'de> for DeviceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Plain(String),
            Numbered {
                #[serde(alias = "cuda")]
                #[serde(rename = "Cuda")]
                cuda: u32,
            },
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Plain(name) => name.to_ascii_lowercase(),
            Written::Numbered { cuda } => format!("cuda:{cuda}"),
        }))
    }
}

impl Folder {
    /// What the folder at `path` says, or the `metadata.json` at `path`; `None` where `path` is neither.
    pub(crate) fn at(path: &Path) -> Result<Option<Self>> {
        let metadata = if path.is_dir() {
            path.join(NAME)
        } else if path.file_name().is_some_and(|name| name.eq_ignore_ascii_case(NAME)) {
            path.to_owned()
        } else {
            return Ok(None);
        };
        if !metadata.exists() {
            let reason = format!("it is a folder without {NAME}; name the model file in it");
            return Err(Error::model_load(path, reason));
        }
        check_regular(&metadata)?;
        let fault = |reason: String| Error::model_load(&metadata, reason);
        let mut text = Vec::new();
        let file = File::open(&metadata).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut text));
        file.map_err(|error| fault(format!("{error}; check that it can be read")))?;
        let folder = metadata.parent().unwrap_or(Path::new(""));
        Self::read(&text, folder).map(Some).map_err(fault)
    }

    /// What this JSON says of a model file in `folder`.
    fn read(text: &[u8], folder: &Path) -> std::result::Result<Self, String> {
        if text.len() as u64 > MOST_BYTES {
            return Err(format!(
                "it has more than {MOST_BYTES} bytes, so it is no description of a model; write it again"
            ));
        }
        // Editors on Windows begin a file with the mark of UTF-8.
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        let metadata: Metadata = serde_json::from_slice(text).map_err(|error| {
            format!(
                "it does not say what RelayRL's {NAME} does ({error}); it needs model_file and model_type (\"pt\" or \"onnx\"), and \
                 takes input_dtype, output_dtype, input_shape, output_shape and default_device"
            )
        })?;
        let file = &metadata.model_file;
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if file.file_name().is_none() || !file.components().all(inside) || file.to_string_lossy().contains('\\') {
            return Err(format!(
                "model_file is {:?}, which is not the name of a file in this folder; put the model beside {NAME}",
                file.display()
            ));
        }
        Ok(Self {
            file: folder.join(file),
            format: match metadata.model_type {
                ModelType::Pt => "torchscript",
                ModelType::Onnx => "onnx",
            },
            observation: metadata.input_shape.map(|shape| row("input_shape", &shape)).transpose()?,
            input_dtype: metadata.input_dtype.and_then(|dtype| dtype.0),
            output: metadata.output_shape.map(|shape| row("output_shape", &shape)).transpose()?,
            output_dtype: metadata.output_dtype.and_then(|dtype| dtype.0),
            device: metadata.default_device.map(|device| device.0),
        })
    }

    /// Says in the contract where the model takes or gives something else than the folder says.
    pub(crate) fn compare(&self, contract: &mut Contract) {
        let observation = |input: &&mut InputContract| input.role == InputRole::Observation;
        let mut observations: Vec<_> = contract.inputs.iter_mut().filter(observation).collect();
        if let [input] = &mut observations[..]
            && let Some(said) =
                difference(self.observation.as_deref(), self.input_dtype, &input.row_shape, input.spec.dtype)
        {
            tell(&input.spec.name, &said);
            input.reason = format!("{}; {said}", input.reason);
        }
        let differs = |shape: &[usize], dtype| difference(self.output.as_deref(), self.output_dtype, shape, dtype);
        if contract.outputs.iter().all(|output| differs(&output.row_shape, output.spec.dtype).is_some())
            && let Some(output) = contract.outputs.first_mut()
            && let Some(said) = differs(&output.row_shape, output.spec.dtype)
        {
            tell(&output.spec.name, &said);
            output.reason = format!("{}; {said}", output.reason);
        }
    }
}

/// Fails for what is neither a file nor a folder: reading a pipe waits for whoever writes to it, and a device may have no end.
pub(super) fn check_regular(path: &Path) -> Result<()> {
    match path.metadata() {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            Err(Error::model_load(path, "it is a pipe, a socket or a device, and no file; name a file"))
        }
        // What cannot be read is told by whoever reads it.
        _ => Ok(()),
    }
}

fn tell(name: &str, said: &str) {
    tracing::warn!(tensor = name, "`{name}`: {said}");
}

/// What to say where a row is not what the folder says; one number may be written with or without an axis.
fn difference(said: Option<&[usize]>, said_dtype: Option<DType>, shape: &[usize], dtype: DType) -> Option<String> {
    let said = said.unwrap_or(shape);
    let same_shape = said == shape || (said == [1] && shape.is_empty());
    if same_shape && said_dtype.is_none_or(|said| said == dtype) {
        return None;
    }
    let said_dtype = said_dtype.unwrap_or(dtype);
    Some(format!(
        "{NAME} says {said_dtype} {} a row, a forward pass shows {dtype} {}, which holds",
        shape_text(said),
        shape_text(shape)
    ))
}

/// The shape of one row: a leading 1 is the batch axis, unless it is all there is.
fn row(field: &str, shape: &[usize]) -> std::result::Result<Vec<usize>, String> {
    let elements = shape.iter().try_fold(1_usize, |elements, &size| elements.checked_mul(size));
    if shape.is_empty() || shape.len() > MOST_AXES || !elements.is_some_and(|size| (1..=MOST_ELEMENTS).contains(&size))
    {
        return Err(format!(
            "{field} is {}, which no tensor has; write the shape that the model takes",
            shape_text(shape)
        ));
    }
    Ok(match shape {
        [1, row @ ..] if !row.is_empty() => row.to_vec(),
        row => row.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RelayRL's own example, with one field exchanged.
    fn metadata(field: &str, value: &str) -> Vec<u8> {
        let fields = [
            ("model_file", r#""client_model.pt""#),
            ("model_type", r#""pt""#),
            ("input_dtype", r#"{ "NdArray": "F32" }"#),
            ("output_dtype", r#"{ "NdArray": "F32" }"#),
            ("input_shape", "[1, 4]"),
            ("output_shape", "[1, 2]"),
            ("default_device", r#""cpu""#),
        ];
        let write = |(name, known): (&str, &str)| format!("\"{name}\": {}", if name == field { value } else { known });
        format!("{{{}}}", fields.map(write).join(",\n")).into_bytes()
    }

    fn read(field: &str, value: &str) -> std::result::Result<Folder, String> {
        Folder::read(&metadata(field, value), Path::new("models"))
    }

    #[test]
    fn the_example_of_relayrl_is_understood() {
        let folder = read("", "").unwrap();
        assert_eq!(folder.file, Path::new("models/client_model.pt"));
        assert_eq!((folder.format, folder.device.as_deref()), ("torchscript", Some("cpu")));
        assert_eq!((folder.observation, folder.output), (Some(vec![4]), Some(vec![2])));
        assert_eq!((folder.input_dtype, folder.output_dtype), (Some(DType::Float32), Some(DType::Float32)));
    }

    #[test]
    fn values_may_be_written_in_several_ways() {
        for (written, device) in [
            (r#""Cpu""#, Some("cpu")),
            (r#"{"Cuda": 1}"#, Some("cuda:1")),
            (r#""cuda:1""#, Some("cuda:1")),
            (r#""Mps""#, Some("mps")),
            ("null", None),
        ] {
            assert_eq!(read("default_device", written).unwrap().device.as_deref(), device, "{written}");
        }
        for (written, dtype) in [
            (r#"{"Tch": "F64"}"#, Some(DType::Float64)),
            (r#""I64""#, Some(DType::Int64)),
            (r#"{"Tch": "Bf16"}"#, None),
            (r#"{"NdArray": "Bool"}"#, Some(DType::Bool)),
        ] {
            assert_eq!(read("input_dtype", written).unwrap().input_dtype, dtype, "{written}");
        }
        for (written, row) in
            [("[4]", vec![4]), ("[1]", vec![1]), ("[1, 3, 8, 8]", vec![3, 8, 8]), ("[5, 4]", vec![5, 4])]
        {
            assert_eq!(read("input_shape", written).unwrap().observation, Some(row), "{written}");
        }
    }

    #[test]
    fn what_only_describes_the_model_may_be_left_out() {
        for field in ["input_shape", "output_shape", "input_dtype", "output_dtype", "default_device"] {
            let known = read("", "").unwrap();
            let null = read(field, "null").unwrap();
            assert_ne!(null, known, "{field}");
            let text = String::from_utf8(metadata(field, "null")).unwrap();
            let absent =
                text.replace(&format!("\"{field}\": null,\n"), "").replace(&format!(",\n\"{field}\": null"), "");
            assert!(!absent.contains(field));
            assert_eq!(Folder::read(absent.as_bytes(), Path::new("models")).unwrap(), null, "{field}");
        }
        for field in ["model_file", "model_type"] {
            let reason = read(field, "null").unwrap_err();
            assert!(reason.contains("it needs model_file and model_type"), "{reason}");
        }
    }

    #[test]
    fn a_mark_of_utf_8_is_passed_over() {
        let marked = [b"\xEF\xBB\xBF", &metadata("", "")[..]].concat();
        assert_eq!(Folder::read(&marked, Path::new("models")).unwrap(), read("", "").unwrap());
    }

    #[test]
    fn files_outside_the_folder_are_refused() {
        for file in ["../x.onnx", "/etc/passwd", "a/../../x.onnx", "", ".", "..", "..\\\\x.onnx"] {
            let reason = read("model_file", &format!("\"{file}\"")).unwrap_err();
            assert!(reason.contains("not the name of a file in this folder"), "{file}: {reason}");
        }
        assert_eq!(read("model_file", r#""./sub/x.onnx""#).unwrap().file, Path::new("models/./sub/x.onnx"));
    }

    #[test]
    fn what_no_model_has_is_refused() {
        for (field, value, word) in [
            ("input_shape", "[]", "input_shape is ()"),
            ("output_shape", "[0, 2]", "output_shape is (0, 2)"),
            ("input_shape", "[4294967296, 4294967296]", "no tensor has"),
            ("input_shape", "[-1, 4]", "integer `-1`"),
            ("model_type", r#""pickle""#, "pickle"),
            ("input_dtype", r#""F33""#, "`F33` is no element type"),
            ("input_dtype", "7", "input_dtype"),
        ] {
            let reason = read(field, value).unwrap_err();
            assert!(reason.contains(word), "{field} {value}: {reason}");
        }
        assert!(Folder::read(b"not json", Path::new("")).unwrap_err().contains("model_file"));
        assert!(Folder::read(&vec![b' '; 2 << 20], Path::new("")).unwrap_err().contains("more than"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the bytes: no panic, and what is understood lies in the folder and has a shape.
        #[test]
        fn any_bytes_are_refused_or_safe(
            place in 0..400_usize,
            length in 0..20_usize,
            with in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut text = metadata("", "");
            let start = place.min(text.len());
            let end = (start + length).min(text.len());
            text.splice(start..end, with);
            if let Ok(folder) = Folder::read(&text, Path::new("models")) {
                prop_assert!(folder.file.starts_with("models"));
                prop_assert!(!folder.file.components().any(|part| part == Component::ParentDir));
                prop_assert!(folder.observation.is_none_or(|shape| shape.iter().product::<usize>() > 0));
            }
        }
    }
}
