//! Faults of a document, all of them in one report.

use std::fmt;
use std::ops::RangeInclusive;

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, as a key path: `group[0].spec[1].heads`. Empty for the document as a whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Everything that is wrong with a document; never empty where it is an error.
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

/// The most faults that are told one by one. Whoever mends that many reads the rest with the next
/// report, and a document of megabytes gives no report of megabytes.
const MOST_TOLD: usize = 100;

/// A report while it is written: faults in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    told: Vec<Fault>,
    /// How many there are beyond those.
    more: usize,
}

impl Report {
    /// Notes a fault.
    pub(crate) fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        if self.told.len() < MOST_TOLD {
            self.told.push(Fault { path: path.into(), problem: problem.into() });
        } else {
            self.more += 1;
        }
    }

    /// Notes a fault, unless something else is wrong with that very field already.
    pub(crate) fn add_once(&mut self, path: String, problem: impl Into<String>) {
        if !self.told.iter().any(|fault| fault.path == path) {
            self.add(path, problem);
        }
    }

    /// Notes that a list of tables has none, by the header that one has in TOML.
    pub(crate) fn lacks_table(&mut self, path: &str) {
        let steps = path.split('.');
        let keys = steps.map(|step| step.split_once('[').map_or(step, |(key, _)| key));
        let header = keys.collect::<Vec<_>>().join(".");
        let problem = format!("is missing: there has to be at least one [[{header}]]");
        self.add_once(path.to_owned(), problem);
    }

    /// How many faults there are.
    pub(crate) fn count(&self) -> usize {
        self.told.len() + self.more
    }

    /// Whether anything is wrong with a field or inside of it: then nothing can be said of what it has
    /// to do with others.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.told.iter().any(|fault| {
            let rest = fault.path.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// A number within bounds; `None` and a fault if it is not.
    pub(crate) fn in_range(&mut self, path: &str, value: u64, bounds: RangeInclusive<u64>) -> Option<u64> {
        if bounds.contains(&value) {
            return Some(value);
        }
        let (least, most) = bounds.into_inner();
        let problem = format!("has to be from {least} to {most}, not {value}");
        self.add_once(path.to_owned(), problem);
        None
    }

    /// Notes a list that has too many entries.
    pub(crate) fn at_most(&mut self, path: &str, count: usize, most: usize) {
        if count > most {
            let problem = format!("has {count} entries; {most} are the most");
            self.add_once(path.to_owned(), problem);
        }
    }

    /// The value, if there is one and nothing is wrong with it.
    pub(crate) fn unless<T>(mut self, value: Option<T>) -> Result<T, Faults> {
        match value {
            Some(value) if self.count() == 0 => return Ok(value),
            _ => {}
        }
        if self.more > 0 {
            self.told.push(Fault { path: String::new(), problem: format!("{} more faults are not listed", self.more) });
        }
        Err(Faults(self.told))
    }
}
