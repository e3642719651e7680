//! What a child and the process that started it write to each other, a line each.

use std::collections::BTreeSet;

use super::item::Item;
use super::report::{Finding, Verdict};
use crate::name::ManifestName;

/// Stands in front of a line on the stdout of a child, among whatever a library prints there.
const MARK: &str = "\u{1e}kv-store ";

/// One line of a child.
#[derive(Debug)]
pub(super) enum Told {
    /// It is about to put this manifest, or may be.
    Put(ManifestName),
    /// It has removed it.
    Gone(ManifestName),
    /// What came of its item. Nothing follows.
    Finding(Finding),
}

pub(super) fn put(name: &ManifestName) -> String {
    format!("{MARK}put {}\n", name.as_str().escape_debug())
}

pub(super) fn gone(name: &ManifestName) -> String {
    format!("{MARK}gone {}\n", name.as_str().escape_debug())
}

pub(super) fn finding(finding: &Finding) -> String {
    let Finding {
        item,
        verdict,
        seen,
        ..
    } = finding;
    let seen = seen.escape_debug();
    format!("{MARK}finding {} {verdict} {seen}\n", item.name)
}

/// What a child is told: to remove these manifests, or to run its item if there are none.
pub(super) fn task(remove: &BTreeSet<ManifestName>) -> String {
    let remove = remove
        .iter()
        .map(|name| format!("remove {}\n", name.as_str().escape_debug()));
    remove.chain(["go\n".to_owned()]).collect()
}

/// One line of a task.
pub(super) enum Task {
    Remove(ManifestName),
    Go,
}

impl Task {
    /// `None` if it is no line of a task.
    pub(super) fn read(line: &str) -> Option<Self> {
        match line.strip_suffix('\n')? {
            "go" => Some(Self::Go),
            line => Some(Self::Remove(name(line.strip_prefix("remove ")?)?)),
        }
    }
}

impl Told {
    /// Reads what follows a mark.
    fn read(item: &'static Item, line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "put" => Some(Self::Put(name(rest)?)),
            "gone" => Some(Self::Gone(name(rest)?)),
            "finding" => {
                let mut parts = rest.splitn(3, ' ');
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
                Some(Self::Finding(Finding {
                    item,
                    verdict,
                    seen: unescaped(parts.next()?),
                    left: Vec::new(),
                }))
            }
            _ => None,
        }
    }
}

fn name(escaped: &str) -> Option<ManifestName> {
    ManifestName::new(unescaped(escaped)).ok()
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

/// How much of an unfinished line to keep. A line is shorter by far; what a library prints may be anything.
const LONGEST: usize = 1 << 20;

/// The search for lines in what comes piece by piece.
#[derive(Default)]
pub(super) struct Search {
    /// From the last mark on, or what may be the beginning of one.
    kept: Vec<u8>,
}

impl Search {
    pub(super) fn add(&mut self, item: &'static Item, more: &[u8], told: &mut dyn FnMut(Told)) {
        self.kept.extend_from_slice(more);
        let mark = MARK.as_bytes();
        loop {
            let Some(at) = self.kept.windows(mark.len()).position(|part| part == mark) else {
                let useless = self.kept.len().saturating_sub(mark.len() - 1);
                self.kept.drain(..useless);
                return;
            };
            self.kept.drain(..at);
            match self.kept.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    let line = String::from_utf8_lossy(&self.kept[mark.len()..end]);
                    if let Some(line) = Told::read(item, &line) {
                        told(line);
                    }
                }
                None if self.kept.len() <= LONGEST => return,
                None => {}
            }
            // It is read, or was none.
            self.kept.drain(..mark.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::items;

    fn item() -> &'static Item {
        items().next().unwrap()
    }

    fn of(seen: &str) -> Finding {
        Finding {
            item: item(),
            verdict: Verdict::Note,
            seen: seen.into(),
            left: Vec::new(),
        }
    }

    fn read(output: &str) -> Vec<Told> {
        let mut read = Vec::new();
        Search::default().add(item(), output.as_bytes(), &mut |told| read.push(told));
        read
    }

    const TEXTS: [&str; 4] = [
        "",
        "plain",
        "two\nlines \u{1e} \"quoted\" \\ \u{1b} é",
        "\u{301}x",
    ];

    #[test]
    fn lines_survive_the_way_from_a_child() {
        for text in TEXTS {
            let name = ManifestName::new(text).unwrap();
            let output = format!(
                "noise\ntest x ... {}{}{}more noise",
                put(&name),
                finding(&of(text)),
                gone(&name)
            );
            let read = read(&output);
            let [Told::Put(put), Told::Finding(finding), Told::Gone(gone)] = &read[..] else {
                panic!("{read:?}");
            };
            assert_eq!((put, gone), (&name, &name));
            assert_eq!((finding.verdict, &*finding.seen), (Verdict::Note, text));
        }
        assert!(read("nothing here\n").is_empty());
    }

    #[test]
    fn a_task_survives_the_way_to_a_child() {
        let names: BTreeSet<_> = TEXTS.map(|text| ManifestName::new(text).unwrap()).into();
        let mut read = BTreeSet::new();
        let mut ends = 0;
        for line in task(&names).split_inclusive('\n') {
            match Task::read(line).unwrap() {
                Task::Remove(name) => assert!(read.insert(name)),
                Task::Go => ends += 1,
            }
        }
        assert_eq!((read, ends), (names, 1));
        assert!(Task::read("go").is_none(), "half a line");
    }

    #[test]
    fn a_line_is_found_in_any_noise_and_noise_is_not_kept() {
        let line = finding(&of("well"));
        let noise = [b'x'; 1 << 16];
        let find = |search: &mut Search, output: &[u8]| {
            let mut found = 0;
            search.add(item(), output, &mut |told| {
                assert!(matches!(told, Told::Finding(finding) if finding.seen == "well"));
                found += 1;
            });
            found
        };
        // In pieces of any length.
        for len in [1, 7, 64, 1000] {
            let mut search = Search::default();
            let output = [&noise[..100], line.as_bytes(), b"more"].concat();
            let found: i32 = output.chunks(len).map(|part| find(&mut search, part)).sum();
            assert_eq!(found, 1, "{len}");
        }
        let mut search = Search::default();
        for _ in 0..64 {
            assert_eq!(find(&mut search, &noise), 0);
            assert!(search.kept.len() < 100);
        }
        // After a mark that no line follows, not for ever; and a mark in the noise hides nothing.
        assert_eq!(find(&mut search, MARK.as_bytes()), 0);
        for _ in 0..64 {
            assert_eq!(find(&mut search, &noise), 0);
            assert!(search.kept.len() <= LONGEST);
        }
        assert_eq!(find(&mut search, MARK.as_bytes()), 0);
        assert_eq!(find(&mut search, line.as_bytes()), 1);
    }
}
