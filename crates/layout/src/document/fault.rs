//! Faults of a document, collected in one report.

use std::fmt;
use std::ops::RangeInclusive;

/// A fault of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key path: `group[0].spec[1].heads`. Empty for the document as a whole.
    pub path: String,
    /// The fault, and what would be right.
    pub problem: String,
}

/// All faults of a document. As an error it is never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl std::error::Error for Faults {}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            if fault.path.is_empty() {
                f.write_str(&fault.problem)?;
            } else {
                write!(f, "{}: {}", fault.path, fault.problem)?;
            }
        }
        Ok(())
    }
}

/// The maximum number of listed faults keeps the report of a large document short; the next report shows the others.
const MAX_LISTED: usize = 100;

/// A report under construction, with faults in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    listed: Vec<Fault>,
    more: usize,
}

impl Report {
    pub(crate) fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(Fault { path: path.into(), problem: problem.into() });
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn add_once(&mut self, path: String, problem: impl Into<String>) {
        if !self.listed.iter().any(|fault| fault.path == path) {
            self.add(path, problem);
        }
    }

    /// Reports a list of tables that has no entry, by the TOML header of an entry.
    pub(crate) fn lacks_table(&mut self, path: &str) {
        let steps = path.split('.');
        let keys = steps.map(|step| step.split_once('[').map_or(step, |(key, _)| key));
        let header = keys.collect::<Vec<_>>().join(".");
        let problem = format!("is missing: there must be at least one [[{header}]]");
        self.add_once(path.to_owned(), problem);
    }

    pub(crate) fn count(&self) -> usize {
        self.listed.len() + self.more
    }

    /// Tells whether a field, or anything inside it, is faulty. Then it cannot be checked against other fields.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.listed.iter().any(|fault| {
            let rest = fault.path.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Returns a number within bounds. Otherwise reports a fault and returns `None`.
    pub(crate) fn in_range(&mut self, path: &str, value: u64, bounds: RangeInclusive<u64>) -> Option<u64> {
        if bounds.contains(&value) {
            return Some(value);
        }
        let (least, most) = bounds.into_inner();
        let problem = format!("must be from {least} to {most}, not {value}");
        self.add_once(path.to_owned(), problem);
        None
    }

    pub(crate) fn at_most(&mut self, path: &str, count: usize, most: usize) {
        if count > most {
            let problem = format!("has {count} entries; {most} are the most");
            self.add_once(path.to_owned(), problem);
        }
    }

    pub(crate) fn unless<T>(mut self, value: Option<T>) -> Result<T, Faults> {
        match value {
            Some(value) if self.count() == 0 => return Ok(value),
            _ => {}
        }
        if self.more > 0 {
            self.listed
                .push(Fault { path: String::new(), problem: format!("{} more faults are not listed", self.more) });
        }
        Err(Faults(self.listed))
    }
}
