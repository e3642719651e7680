//! A document as a tree of plain values, independent of the text format.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::placement::Allocation;

/// Beyond ±2^63, a float is a whole number that did not fit into 64 bits.
const BEYOND_64_BITS: f64 = 9_223_372_036_854_775_808.0;

/// A value of a document. It deserialises from any self-describing format (JSON, TOML), and serialises into it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// JSON's null.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// Fields in the order of the text, including repeated ones (so that they can be reported).
    Table(Vec<(String, Value)>),
}

impl Value {
    /// Describes the value for an error message.
    pub fn describe(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Integer(value) => value.to_string(),
            // Show a point or an exponent, so that 2.0 does not look like a whole number.
            Value::Float(value) => format!("{value:?}"),
            // Escape the text, so that a message has one line and no control characters.
            Value::Text(value) if value.chars().count() > 40 => {
                let start: String = value.chars().take(40).collect();
                let quoted = format!("{start:?}");
                format!("{}…\"", &quoted[..quoted.len() - 1])
            }
            Value::Text(value) => format!("{value:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
        }
    }
}

impl Value {
    /// Returns a field of a table. If it is repeated, the first counts.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Table(fields) = self else {
            return None;
        };
        let mut fields = fields.iter();
        fields.find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub(crate) fn whole_number(&self) -> Result<u64, String> {
        let beyond = |negative, shown: String| match negative {
            true => Err(format!("cannot be negative ({shown})")),
            false => Err(format!("is too large ({shown})")),
        };
        match self {
            Value::Integer(number) => match u64::try_from(*number) {
                Ok(number) => Ok(number),
                Err(_) => beyond(*number < 0, number.to_string()),
            },
            Value::Float(number) if number.is_finite() && number.abs() >= BEYOND_64_BITS => {
                beyond(number.is_sign_negative(), format!("{number:?}"))
            }
            other => Err(format!("must be a whole number, not {}", other.describe())),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Integer(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Value::Bool(flag)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<&[u64]> for Value {
    fn from(numbers: &[u64]) -> Self {
        Value::List(numbers.iter().map(|number| (*number).into()).collect())
    }
}

impl From<Allocation> for Value {
    fn from(allocation: Allocation) -> Self {
        match allocation {
            Allocation::One => "one".into(),
            Allocation::PerLayer => "per_layer".into(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            // Formats have numbers of at most 64 bits, so prefer these types.
            Value::Integer(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (_, Ok(value)) => serializer.serialize_i64(value),
                (Ok(value), _) => serializer.serialize_u64(value),
                _ => serializer.serialize_i128(*value),
            },
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Text(value) => serializer.serialize_str(value),
            Value::List(items) => serializer.collect_seq(items),
            Value::Table(fields) => serializer.collect_map(fields.iter().map(|(k, v)| (k, v))),
        }
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    /// A number beyond [`Value::Integer`] becomes a float, since no field accepts it anyway.
    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(i128::try_from(value).map_or(Value::Float(value as f64), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut table = Vec::new();
        while let Some(field) = fields.next_entry()? {
            table.push(field);
        }
        Ok(Value::Table(table))
    }
}
