//! Faults of a document, all of them in one report.

use std::fmt;

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

impl Faults {
    pub(crate) fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Fault {
            path: path.into(),
            problem: problem.into(),
        });
    }
}

impl Faults {
    /// The value, if there is one and nothing is wrong with it.
    pub(crate) fn unless<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self),
        }
    }
}

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
