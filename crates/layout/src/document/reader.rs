//! Reading of typed fields from a table, with every fault reported at its key path.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::fault::Report;
use super::field::{Field, Form, Need};
use super::near::closest;
use super::value::Value;

/// Reads one table and records which fields were requested.
/// Code that reads a table requests every possible field, whatever the table contains. Fields that were not requested
/// are unknown, and the requested ones form the table's schema.
pub(super) struct Reader<'a, 'f> {
    path: String,
    fields: &'a [(String, Value)],
    requested: Vec<Field>,
    faults: &'f mut Report,
}

/// The error for a missing or wrong field. The fault is already reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faulty;

impl<'a, 'f> Reader<'a, 'f> {
    /// Reads `value`, which must be a table, with `read`. If `read` cannot determine the fields and returns `None`,
    /// unknown fields are not reported.
    pub(super) fn read<T>(
        path: String,
        value: &'a Value,
        faults: &'f mut Report,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let Value::Table(fields) = value else {
            faults.add(path, format!("must be a table, not {}", value.describe()));
            return None;
        };
        let mut reader = Self { path, fields, requested: Vec::new(), faults };
        let read = read(&mut reader)?;
        reader.finish();
        Some(read)
    }

    /// Returns the fields that `read` requests, in order.
    pub(super) fn requested_by<T>(read: impl FnOnce(&mut Reader<'_, '_>) -> T) -> Vec<Field> {
        let mut reader =
            Reader { path: String::new(), fields: &[], requested: Vec::new(), faults: &mut Report::default() };
        read(&mut reader);
        reader.requested
    }

    /// Records a field and returns its value, if there is one. The caller checks the value's form.
    pub(super) fn request(
        &mut self,
        key: &'static str,
        form: Form,
        need: Need,
        about: &'static str,
    ) -> Option<&'a Value> {
        self.requested.push(Field { key, about, form, need });
        self.peek(key)
    }

    pub(super) fn peek(&self, key: &str) -> Option<&'a Value> {
        let mut found = self.fields.iter().filter(|(name, _)| name == key);
        found.next().map(|(_, value)| value)
    }

    pub(super) fn text(&mut self, key: &'static str, about: &'static str) -> Result<&'a str, Faulty> {
        let value = self.request(key, Form::Text, Need::Required, about);
        self.typed_text(key, value)?.ok_or_else(|| self.missing(key, about))
    }

    pub(super) fn optional_text(&mut self, key: &'static str, about: &'static str) -> Result<Option<&'a str>, Faulty> {
        let value = self.request(key, Form::Text, Need::Optional, about);
        self.typed_text(key, value)
    }

    fn typed_text(&mut self, key: &str, value: Option<&'a Value>) -> Result<Option<&'a str>, Faulty> {
        match value {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => {
                let problem = format!("must be text, not {}", other.describe());
                Err(self.fault(key, problem))
            }
        }
    }

    pub(super) fn constant(
        &mut self,
        key: &'static str,
        text: &'static str,
        about: &'static str,
    ) -> Result<(), Faulty> {
        match self.request(key, Form::Constant(text), Need::Required, about) {
            Some(Value::Text(found)) if found == text => Ok(()),
            Some(other) => {
                let problem = format!("must be \"{text}\", not {}", other.describe());
                Err(self.fault(key, problem))
            }
            None => Err(self.fault(key, format!("is missing: {key} = \"{text}\""))),
        }
    }

    pub(super) fn name<T: Copy>(
        &mut self,
        key: &'static str,
        names: &[(&'static str, T)],
        about: &'static str,
    ) -> Result<T, Faulty> {
        let form = Form::Name(names.iter().map(|(name, _)| *name).collect());
        let value = self.request(key, form, Need::Required, about);
        self.named(key, value, names)
    }

    pub(super) fn name_or<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        names: &[(&'static str, T)],
        about: &'static str,
    ) -> Result<T, Faulty> {
        let form = Form::Name(names.iter().map(|(name, _)| *name).collect());
        let name = names.iter().find(|(_, named)| *named == default);
        let need = name.map_or(Need::Optional, |(name, _)| Need::Default(Value::Text((*name).to_owned())));
        match self.request(key, form, need, about) {
            None => Ok(default),
            value => self.named(key, value, names),
        }
    }

    fn named<T: Copy>(&mut self, key: &str, value: Option<&Value>, names: &[(&'static str, T)]) -> Result<T, Faulty> {
        if let Some(Value::Text(text)) = value
            && let Some((_, named)) = names.iter().find(|(name, _)| name == text)
        {
            return Ok(*named);
        }
        let found = value.map_or("missing".to_owned(), Value::describe);
        let all: Vec<String> = names.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let problem = format!("must be one of {}; it is {found}", all.join(", "));
        Err(self.fault(key, problem))
    }

    /// Reads a field that is false by default.
    pub(super) fn flag(&mut self, key: &'static str, about: &'static str) -> Result<bool, Faulty> {
        match self.request(key, Form::Flag, Need::Default(Value::Bool(false)), about) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.fault(key, format!("must be true or false, not {}", other.describe()))),
        }
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<u64>,
        about: &'static str,
    ) -> Result<u64, Faulty> {
        let value = self.request(key, Form::Number(bounds.clone()), Need::Required, about);
        match value {
            Some(value) => self.bounded(key, value, bounds),
            None => Err(self.missing(key, about)),
        }
    }

    pub(super) fn optional(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<u64>,
        about: &'static str,
    ) -> Result<Option<u64>, Faulty> {
        let value = self.request(key, Form::Number(bounds.clone()), Need::Optional, about);
        value.map(|value| self.bounded(key, value, bounds)).transpose()
    }

    pub(super) fn number_or(
        &mut self,
        key: &'static str,
        default: u64,
        bounds: RangeInclusive<u64>,
        about: &'static str,
    ) -> Result<u64, Faulty> {
        let need = Need::Default(Value::Integer(default.into()));
        let value = self.request(key, Form::Number(bounds.clone()), need, about);
        value.map_or(Ok(default), |value| self.bounded(key, value, bounds))
    }

    pub(super) fn numbers(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<u64>,
        about: &'static str,
    ) -> Result<Option<Vec<u64>>, Faulty> {
        match self.request(key, Form::Numbers(bounds.clone()), Need::Optional, about) {
            None => Ok(None),
            Some(Value::List(items)) if !items.is_empty() => {
                let numbers = items.iter().enumerate();
                let numbers = numbers.map(|(i, item)| self.bounded(&format!("{key}[{i}]"), item, bounds.clone()));
                numbers.collect::<Result<_, _>>().map(Some)
            }
            Some(other) => {
                let found = match other {
                    Value::List(_) => "an empty one".to_owned(),
                    other => other.describe(),
                };
                let problem = format!("must be a list of whole numbers, not {found}");
                Err(self.fault(key, problem))
            }
        }
    }

    fn bounded(&mut self, key: &str, value: &Value, bounds: RangeInclusive<u64>) -> Result<u64, Faulty> {
        let number = value.whole_number();
        let number = number.map_err(|problem| self.fault(key, problem))?;
        let path = self.path(key);
        self.faults.in_range(&path, number, bounds).ok_or(Faulty)
    }

    /// Reads a list of 1 to `most` tables; an optional one may be absent. A table that could not be read yields `None`.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        need: Need,
        most: usize,
        about: &'static str,
        mut read: impl FnMut(&mut Reader<'_, '_>) -> Option<T>,
    ) -> Vec<Option<T>> {
        let optional = matches!(need, Need::Optional);
        let value = self.request(key, Form::Tables(most), need, about);
        let path = self.path(key);
        let items = match value {
            None if optional => &[],
            Some(Value::List(items)) if !items.is_empty() => items.as_slice(),
            Some(Value::List(_)) | None => {
                self.faults.lacks_table(&path);
                &[]
            }
            Some(other) => {
                let problem = format!("must be a list of tables, not {}", other.describe());
                self.fault(key, problem);
                &[]
            }
        };
        self.faults.at_most(&path, items.len(), most);
        let items = items.iter().take(most).enumerate();
        items.map(|(i, item)| Reader::read(format!("{path}[{i}]"), item, self.faults, &mut read)).collect()
    }

    pub(super) fn fault(&mut self, key: &str, problem: impl Into<String>) -> Faulty {
        self.faults.add(self.path(key), problem);
        Faulty
    }

    fn missing(&mut self, key: &str, about: &str) -> Faulty {
        self.fault(key, format!("is missing: {about}"))
    }

    pub(super) fn faults(&self) -> usize {
        self.faults.count()
    }

    fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn finish(self) {
        let known: Vec<&str> = self.requested.iter().map(|field| field.key).collect();
        let mut seen = HashSet::with_capacity(self.fields.len());
        for (name, _) in self.fields {
            let path = || match self.path.as_str() {
                "" => name.clone(),
                table => format!("{table}.{name}"),
            };
            if !seen.insert(name.as_str()) {
                self.faults.add(path(), "is given twice");
            } else if !known.contains(&name.as_str()) {
                let mut problem = "is not a field here".to_owned();
                if let Some(close) = closest(name, &known) {
                    problem.push_str(&format!("; did you mean {close}?"));
                } else {
                    problem.push_str(&format!("; the fields are {}", known.join(", ")));
                }
                self.faults.add(path(), problem);
            }
        }
    }
}
