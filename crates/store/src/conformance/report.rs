//! The report of a check.

use std::fmt;

use super::item::{Item, Source};
use super::options::Options;
use super::outcome::{Outcome, Stop, Verdict};
use crate::name::ManifestName;

/// The outcome of one item.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The item that was run.
    pub item: &'static Item,
    /// The verdict.
    pub verdict: Verdict,
    /// The observation, or the reason why nothing was tried.
    pub seen: String,
    /// Manifests of the item that could not be removed.
    pub left: Vec<ManifestName>,
}

impl Finding {
    pub(super) fn new(item: &'static Item, outcome: Outcome, options: &Options) -> Self {
        let (verdict, seen) = match outcome {
            Ok(seen) => (Verdict::Pass, seen),
            Err(Stop::Skip(why)) => (Verdict::Skipped, why),
            Err(Stop::Broken(seen)) if item.source == Source::Contract || options.strict => (Verdict::Fail, seen),
            Err(Stop::Broken(seen)) => (Verdict::Note, seen),
        };
        Self { item, verdict, seen, left: Vec::new() }
    }

    /// Returns a failure, whatever the item's source, for a process that did not start or did not finish.
    pub(super) fn untried(item: &'static Item, seen: String) -> Self {
        Self { item, verdict: Verdict::Fail, seen, left: Vec::new() }
    }
}

/// The findings of all items that were run, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed of random choices.
    pub seed: u64,
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(seed: u64, findings: Vec<Finding>) -> Self {
        Self { seed, findings }
    }

    /// Returns how many items have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// Tells whether the backend keeps the contract, as far as could be tried.
    pub fn passed(&self) -> bool {
        self.count(Verdict::Fail) == 0
    }

    /// Tells whether there is neither a failure nor a note.
    pub fn is_clean(&self) -> bool {
        self.passed() && self.count(Verdict::Note) == 0
    }

    /// Returns the manifests that could not be removed.
    pub fn left(&self) -> impl Iterator<Item = &ManifestName> {
        self.findings.iter().flat_map(|finding| &finding.left)
    }

    /// Returns the finding of one item.
    pub fn finding(&self, name: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.item.name == name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { item, verdict, seen, .. } in &self.findings {
            writeln!(f, "{verdict:<8}{:<24}{seen}", item.name)?;
            if matches!(verdict, Verdict::Fail | Verdict::Note) {
                writeln!(f, "{:32}asked for: {} ({})", "", item.asks, item.source)?;
            }
        }
        for name in self.left() {
            writeln!(f, "left behind: manifest {:?}", name.as_str())?;
        }
        write!(
            f,
            "{} passed, {} failed, {} notes, {} skipped; seed {}",
            self.count(Verdict::Pass),
            self.count(Verdict::Fail),
            self.count(Verdict::Note),
            self.count(Verdict::Skipped),
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::conformance::items;

    #[test]
    fn names_of_items_are_unique() {
        let mut names: Vec<_> = items().map(|item| item.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
