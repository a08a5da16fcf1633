//! The 16-bit types of matrix products.

use burn::tensor::FloatDType;

/// A 16-bit type of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The upper half of a float32.
    Bfloat16,
    /// IEEE 754 binary16.
    Float16,
}

impl Half {
    /// The type of tensors.
    pub fn dtype(self) -> FloatDType {
        match self {
            Half::Bfloat16 => FloatDType::BF16,
            Half::Float16 => FloatDType::F16,
        }
    }

    /// The value of `--precision`.
    pub fn name(self) -> &'static str {
        match self {
            Half::Bfloat16 => "bfloat16",
            Half::Float16 => "float16",
        }
    }
}
