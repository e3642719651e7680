//! Configurations: YAML or JSON whose keys are the names of flags.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::failure::Failure;

/// A configuration: names of flags, each with its values as text.
pub(super) struct Document(pub(super) Vec<(String, Vec<String>)>);

impl Document {
    /// Parses a text. Errors call it `name`.
    pub(super) fn read(name: &str, text: &str) -> Result<Self, Failure> {
        let options = serde_saphyr::options! { with_snippet: false };
        let read: Result<Option<Self>, _> = serde_saphyr::from_str_with_options(text, options);
        match read {
            Ok(document) => Ok(document.unwrap_or(Self(Vec::new()))),
            Err(error) => Err(Failure::input(
                format!(
                    "{name} is not a valid configuration: {}",
                    error.render_with_formatter(&serde_saphyr::UserMessageFormatter)
                ),
                "write YAML or JSON with one key per flag: port: 8000",
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Document;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys with values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, Values(values))) = map.next_entry::<String, Values>()? {
                    pairs.push((key, values));
                }
                Ok(Document(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

struct Values(Vec<String>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalars;

        fn one<E>(value: impl ToString) -> Result<Values, E> {
            Ok(Values(vec![value.to_string()]))
        }

        impl<'de> Visitor<'de> for Scalars {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Values, E> {
                one(value)
            }

            fn visit_i64<E>(self, value: i64) -> Result<Values, E> {
                one(value)
            }

            fn visit_u64<E>(self, value: u64) -> Result<Values, E> {
                one(value)
            }

            fn visit_f64<E>(self, value: f64) -> Result<Values, E> {
                one(value)
            }

            fn visit_str<E>(self, value: &str) -> Result<Values, E> {
                one(value)
            }

            fn visit_unit<E>(self) -> Result<Values, E> {
                Ok(Values(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(Values(value)) = list.next_element()? {
                    values.extend(value);
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_any(Scalars)
    }
}
