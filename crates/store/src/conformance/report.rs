//! What came of a check.

use std::fmt;

use super::item::{Item, Outcome, Source, Stop};
use super::options::Options;

/// What came of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It is as the item asks.
    Pass,
    /// It is not, and the contract asks for it.
    Fail,
    /// It is not, and the contract leaves it open.
    Note,
    /// It could not be tried.
    Skipped,
}

impl Verdict {
    /// `pass`, `fail`, `note` or `skipped`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Note => "note",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One item with what was seen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What was asked.
    pub item: &'static Item,
    /// The answer.
    pub verdict: Verdict,
    /// What was seen, or why nothing was tried.
    pub seen: String,
}

impl Finding {
    /// Stands in front of a finding on the stdout of a process, among whatever a library prints there.
    pub(super) const MARK: &str = "\u{1e}kv-store-finding ";

    pub(super) fn new(item: &'static Item, outcome: Outcome, options: &Options) -> Self {
        let (verdict, seen) = match outcome {
            Ok(seen) => (Verdict::Pass, seen),
            Err(Stop::Skip(why)) => (Verdict::Skipped, why),
            Err(Stop::Broken(seen)) if item.source == Source::Contract || options.strict => {
                (Verdict::Fail, seen)
            }
            Err(Stop::Broken(seen)) => (Verdict::Note, seen),
        };
        Self {
            item,
            verdict,
            seen,
        }
    }

    /// A failure, whatever the item's source: its process did not start, or did not get to an end.
    pub(super) fn untried(item: &'static Item, seen: String) -> Self {
        Self {
            item,
            verdict: Verdict::Fail,
            seen,
        }
    }

    /// One line for [`check_in_children`](super::check_in_children) to read from the stdout of a child.
    pub fn to_line(&self) -> String {
        let seen = self.seen.escape_debug();
        format!("{}{} {} {seen}\n", Self::MARK, self.item.name, self.verdict)
    }

    /// Finds the line of an item's finding in what a child printed.
    pub(super) fn from_output(item: &'static Item, output: &str) -> Option<Self> {
        let line = output.split(Self::MARK).nth(1)?.lines().next()?;
        let mut parts = line.splitn(3, ' ');
        if parts.next()? != item.name {
            return None;
        }
        let verdict = match parts.next()? {
            "pass" => Verdict::Pass,
            "fail" => Verdict::Fail,
            "note" => Verdict::Note,
            "skipped" => Verdict::Skipped,
            _ => return None,
        };
        Some(Self {
            item,
            verdict,
            seen: unescaped(parts.next()?),
        })
    }
}

/// The reverse of `escape_debug`.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('t') => plain.push('\t'),
            Some('0') => plain.push('\0'),
            Some('u') => {
                let digits: String = letters.by_ref().take_while(|&c| c != '}').skip(1).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                plain.extend(code.and_then(char::from_u32));
            }
            other => plain.extend(other),
        }
    }
    plain
}

/// Every item that was run, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed of random choices.
    pub seed: u64,
    /// What was found.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(seed: u64, findings: Vec<Finding>) -> Self {
        Self { seed, findings }
    }

    /// Of items that were run one by one, with [`run_item`](super::run_item) and the options of this seed.
    pub fn of(seed: u64, findings: Vec<Finding>) -> Self {
        Self::new(seed, findings)
    }

    /// How many items have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    }

    /// Whether the contract is kept, as far as could be tried.
    pub fn passed(&self) -> bool {
        self.count(Verdict::Fail) == 0
    }

    /// Whether everything is as our own backends have it.
    pub fn is_clean(&self) -> bool {
        self.passed() && self.count(Verdict::Note) == 0
    }

    /// The finding of one item.
    pub fn finding(&self, name: &str) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.item.name == name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding {
            item,
            verdict,
            seen,
        } in &self.findings
        {
            writeln!(f, "{verdict:<8}{:<24}{seen}", item.name)?;
            if matches!(verdict, Verdict::Fail | Verdict::Note) {
                writeln!(f, "{:32}asked for: {} ({})", "", item.asks, item.source)?;
            }
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
    use super::*;
    use crate::conformance::items;

    #[test]
    fn a_finding_survives_the_way_from_a_child() {
        let item = items().next().unwrap();
        for seen in [
            "",
            "plain",
            "two\nlines \u{1e} \"quoted\" \\ \u{0} é",
            "\u{301}x",
        ] {
            let finding = Finding {
                item,
                verdict: Verdict::Note,
                seen: seen.into(),
            };
            let output = format!("noise\ntest x ... {}more noise", finding.to_line());
            let read = Finding::from_output(item, &output).unwrap();
            assert_eq!((read.verdict, &*read.seen), (Verdict::Note, seen));
        }
        assert!(Finding::from_output(item, "nothing here").is_none());
    }

    #[test]
    fn names_of_items_are_unique() {
        let mut names: Vec<_> = items().map(|item| item.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
