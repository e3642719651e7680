//! Values of a spec's fields.

use std::fmt;

use crate::dtype::Dtype;

/// The value of a field that both sides must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FieldValue {
    /// A count or size.
    Number(u64),
    /// A name.
    Text(String),
    /// An optional field that is absent.
    Absent,
}

impl From<u64> for FieldValue {
    fn from(value: u64) -> Self {
        FieldValue::Number(value)
    }
}

impl From<Option<u64>> for FieldValue {
    fn from(value: Option<u64>) -> Self {
        value.map_or(FieldValue::Absent, FieldValue::Number)
    }
}

impl From<Dtype> for FieldValue {
    fn from(value: Dtype) -> Self {
        FieldValue::Text(value.name().to_owned())
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldValue::Number(n) => write!(f, "{n}"),
            FieldValue::Text(text) => f.write_str(text),
            FieldValue::Absent => f.write_str("not given"),
        }
    }
}
