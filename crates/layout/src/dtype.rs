//! Element types of a cache.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of one element of a cache's content.
///
/// Some formats pack several values into a byte, or values with their scales, and have no separate elements. Describe
/// these with the spec kinds `opaque`, `compressed` or `indexer`, which have sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it all
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4M3,
    F8E5M2,
    I32,
    I16,
    I8,
    U8,
}

impl Dtype {
    /// Every type with its name in documents.
    pub const ALL: [(Dtype, &'static str); 10] = [
        (Dtype::F64, "f64"),
        (Dtype::F32, "f32"),
        (Dtype::F16, "f16"),
        (Dtype::Bf16, "bf16"),
        (Dtype::F8E4M3, "f8e4m3"),
        (Dtype::F8E5M2, "f8e5m2"),
        (Dtype::I32, "i32"),
        (Dtype::I16, "i16"),
        (Dtype::I8, "i8"),
        (Dtype::U8, "u8"),
    ];

    /// The names of these types in torch and vLLM.
    pub const ALIASES: [(Dtype, &'static str); 15] = [
        (Dtype::F64, "float64"),
        (Dtype::F32, "float32"),
        (Dtype::F16, "float16"),
        (Dtype::F16, "half"),
        (Dtype::Bf16, "bfloat16"),
        (Dtype::F8E4M3, "fp8"),
        (Dtype::F8E4M3, "fp8_e4m3"),
        (Dtype::F8E4M3, "fp8_inc"),
        (Dtype::F8E4M3, "float8_e4m3fn"),
        (Dtype::F8E5M2, "fp8_e5m2"),
        (Dtype::F8E5M2, "float8_e5m2"),
        (Dtype::I32, "int32"),
        (Dtype::I16, "int16"),
        (Dtype::I8, "int8"),
        (Dtype::U8, "uint8"),
    ];

    /// Returns every known name. The names in documents come first.
    pub fn names() -> impl Iterator<Item = (&'static str, Self)> {
        let all = Self::ALL.iter().chain(&Self::ALIASES);
        all.map(|(dtype, name)| (*name, *dtype))
    }

    /// Returns the type of this name, as in documents (`bf16`), torch or vLLM (`bfloat16`).
    pub fn from_name(name: &str) -> Option<Self> {
        let mut names = Self::names();
        names.find(|(known, _)| *known == name).map(|(_, d)| d)
    }

    /// Returns the name in documents.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(d, _)| *d == self).map_or("unknown", |(_, n)| n)
    }

    /// Returns the size of one element in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::I8 | Dtype::U8 => 1,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
