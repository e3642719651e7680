//! Reads typed fields out of a table, and notes every fault with its key path.

use std::collections::HashSet;

use super::fault::Report;
use super::value::Value;

/// Reads one table. Fields that nobody asked for are faults once [`finish`](Self::finish) is called.
pub(super) struct Reader<'a> {
    path: String,
    fields: &'a [(String, Value)],
    asked: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    /// A reader of `value`, which has to be a table.
    pub(super) fn new(path: String, value: &'a Value, faults: &mut Report) -> Option<Self> {
        let Value::Table(fields) = value else {
            faults.add(path, format!("has to be a table, not {}", value.describe()));
            return None;
        };
        Some(Self {
            path,
            fields,
            asked: Vec::new(),
        })
    }

    /// The path of a field of this table.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The field's value, if it is there.
    pub(super) fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.asked.push(key);
        let mut found = self.fields.iter().filter(|(name, _)| name == key);
        found.next().map(|(_, value)| value)
    }

    /// A text that may be absent.
    pub(super) fn text(&mut self, key: &'static str, faults: &mut Report) -> Option<&'a str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            other => {
                let problem = format!("has to be text, not {}", other.describe());
                faults.add(self.path(key), problem);
                None
            }
        }
    }

    /// A whole number that may be absent; `Err` where it is there and is none.
    pub(super) fn optional(
        &mut self,
        key: &'static str,
        faults: &mut Report,
    ) -> Result<Option<u64>, Faulty> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value.whole_number().map(Some).map_err(|problem| {
            faults.add(self.path(key), problem);
            Faulty
        })
    }

    /// A whole number that has to be there.
    pub(super) fn number(&mut self, key: &'static str, faults: &mut Report) -> Result<u64, Faulty> {
        match self.optional(key, faults)? {
            Some(number) => Ok(number),
            None => {
                faults.add(self.path(key), "is missing: it has to be a whole number");
                Err(Faulty)
            }
        }
    }

    /// A whole number with a default.
    pub(super) fn number_or(
        &mut self,
        key: &'static str,
        default: u64,
        faults: &mut Report,
    ) -> Result<u64, Faulty> {
        Ok(self.optional(key, faults)?.unwrap_or(default))
    }

    /// A list of tables, with the path of each.
    pub(super) fn tables(&mut self, key: &'static str, faults: &mut Report) -> &'a [Value] {
        match self.get(key) {
            Some(Value::List(items)) if !items.is_empty() => items,
            Some(Value::List(_)) | None => {
                faults.lacks_table(&self.path(key));
                &[]
            }
            Some(other) => {
                let problem = format!("has to be a list of tables, not {}", other.describe());
                faults.add(self.path(key), problem);
                &[]
            }
        }
    }

    /// Reports fields that nobody asked for, and fields given twice.
    pub(super) fn finish(self, faults: &mut Report) {
        let mut seen = HashSet::with_capacity(self.fields.len());
        for (name, _) in self.fields {
            if !seen.insert(name.as_str()) {
                faults.add(self.path(name), "is given twice");
            } else if !self.asked.contains(&name.as_str()) {
                let mut problem = "is no field here".to_owned();
                if let Some(close) = closest(name, &self.asked) {
                    problem.push_str(&format!("; did you mean {close}?"));
                } else {
                    problem.push_str(&format!("; the fields are {}", self.asked.join(", ")));
                }
                faults.add(self.path(name), problem);
            }
        }
    }
}

/// A field that was there and wrong; the fault is already noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faulty;

/// The known name closest to `name`, if one is close.
pub(super) fn closest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let close = nearest(name, known).next();
    close.filter(|known| edit_distance(name, known) <= known.len().div_ceil(2))
}

/// All known names, those most like `name` first.
pub(crate) fn nearest<'n>(
    name: &str,
    known: &[&'n str],
) -> impl Iterator<Item = &'n str> + use<'n> {
    let mut known = known.to_vec();
    known.sort_by_cached_key(|known| edit_distance(name, known));
    known.into_iter()
}

/// Levenshtein distance; names longer than any field count as far away.
fn edit_distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
