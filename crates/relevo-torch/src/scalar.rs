//! Tensors as torch tells of them.

use relevo_abi::DType;

/// A number of `c10::ScalarType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scalar(pub(crate) i32);

impl Scalar {
    pub(crate) const BYTE: Self = Self(0);
    pub(crate) const CHAR: Self = Self(1);
    pub(crate) const SHORT: Self = Self(2);
    pub(crate) const INT: Self = Self(3);
    pub(crate) const LONG: Self = Self(4);
    pub(crate) const HALF: Self = Self(5);
    pub(crate) const FLOAT: Self = Self(6);
    pub(crate) const DOUBLE: Self = Self(7);
    pub(crate) const BOOL: Self = Self(11);

    /// The type outside of torch; float32 for those that no array has.
    pub(crate) fn dtype(self) -> DType {
        match self.0 {
            0 => DType::new(1, 8),
            1 => DType::new(0, 8),
            2 => DType::new(0, 16),
            3 => DType::new(0, 32),
            4 => DType::INT64,
            5 => DType::new(2, 16),
            7 => DType::new(2, 64),
            11 => DType::BOOL,
            27 => DType::new(1, 16),
            28 => DType::new(1, 32),
            29 => DType::new(1, 64),
            _ => DType::FLOAT32,
        }
    }

    /// The type of this name, of those that inputs have.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::FLOAT, Self::LONG, Self::BYTE, Self::BOOL, Self::CHAR, Self::SHORT, Self::INT, Self::HALF, Self::DOUBLE]
            .into_iter()
            .find(|scalar| scalar.name() == name)
    }

    pub(crate) fn name(self) -> String {
        let dtype = self.dtype();
        let kind = match dtype.code {
            0 => "int",
            1 => "uint",
            6 => return "bool".into(),
            _ => "float",
        };
        format!("{kind}{}", dtype.bits)
    }
}

/// A tensor's name, type and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) scalar: Scalar,
    pub(crate) shape: Vec<usize>,
}
