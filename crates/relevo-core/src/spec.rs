//! What tensors look like: element types, dimensions, names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are NumPy's")]
pub enum DType {
    Bool,
    UInt8,
    Int8,
    UInt16,
    Int16,
    UInt32,
    Int32,
    UInt64,
    Int64,
    Float16,
    Float32,
    Float64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::UInt8 | Self::Int8 => 1,
            Self::UInt16 | Self::Int16 | Self::Float16 => 2,
            Self::UInt32 | Self::Int32 | Self::Float32 => 4,
            Self::UInt64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    /// NumPy's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::UInt8 => "uint8",
            Self::Int8 => "int8",
            Self::UInt16 => "uint16",
            Self::Int16 => "int16",
            Self::UInt32 => "uint32",
            Self::Int32 => "int32",
            Self::UInt64 => "uint64",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// The type with NumPy's `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Bool,
            Self::UInt8,
            Self::Int8,
            Self::UInt16,
            Self::Int16,
            Self::UInt32,
            Self::Int32,
            Self::UInt64,
            Self::Int64,
            Self::Float16,
            Self::Float32,
            Self::Float64,
        ]
        .into_iter()
        .find(|dtype| dtype.name() == name)
    }

    /// The type in DLPack's terms.
    pub fn dlpack(self) -> relevo_abi::DType {
        let code = match self {
            Self::Bool => 6,
            Self::Float16 | Self::Float32 | Self::Float64 => 2,
            Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64 => 1,
            Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64 => 0,
        };
        relevo_abi::DType::new(code, self.size() as u8 * 8)
    }

    /// The type that DLPack calls so, if there is one.
    pub fn from_dlpack(dtype: relevo_abi::DType) -> Option<Self> {
        Some(match (dtype.lanes, dtype.code, dtype.bits) {
            (1, 6, 8) => Self::Bool,
            (1, 1, 8) => Self::UInt8,
            (1, 0, 8) => Self::Int8,
            (1, 1, 16) => Self::UInt16,
            (1, 0, 16) => Self::Int16,
            (1, 1, 32) => Self::UInt32,
            (1, 0, 32) => Self::Int32,
            (1, 1, 64) => Self::UInt64,
            (1, 0, 64) => Self::Int64,
            (1, 2, 16) => Self::Float16,
            (1, 2, 32) => Self::Float32,
            (1, 2, 64) => Self::Float64,
            _ => return None,
        })
    }

    /// Whether the type holds floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// One dimension as a model file declares it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A fixed size.
    Fixed(usize),
    /// A size that is known only when the model runs; the name is the file's, and may be empty.
    Dynamic(String),
}

impl fmt::Display for Dim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(formatter, "{size}"),
            Self::Dynamic(name) if name.is_empty() => formatter.write_str("?"),
            Self::Dynamic(name) => formatter.write_str(name),
        }
    }
}

/// An input or output of a model, as its file declares it. The declaration may be wrong: see
/// [`Contract`](crate::policy::Contract) for what a forward pass showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The tensor's name in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, the batch axis included.
    pub shape: Vec<Dim>,
}

/// `(3, 4)`, `(8,)`, `()`: a shape in Python's notation, for messages.
pub fn shape_text(shape: &[usize]) -> String {
    match shape {
        [] => "()".into(),
        [size] => format!("({size},)"),
        _ => format!("({})", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["bool", "uint8", "int64", "float16", "float32", "float64"] {
            assert_eq!(DType::from_name(name).map(DType::name), Some(name));
        }
        assert_eq!(DType::from_name("complex64"), None);
    }

    #[test]
    fn shapes_read_like_python() {
        assert_eq!(shape_text(&[]), "()");
        assert_eq!(shape_text(&[8]), "(8,)");
        assert_eq!(shape_text(&[2, 3]), "(2, 3)");
    }
}
