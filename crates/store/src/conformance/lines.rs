//! What a child and the process that started it write to each other: JSON, a line each.

use serde::{Deserialize, Serialize};

use super::outcome::Verdict;

/// Stands in front of a line on the stdout of a child, among whatever a library prints there. JSON escapes its first byte.
const MARK: &str = "\u{1e}kv-store ";

/// One line of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// The child is about to put this manifest, or may be: until it is gone, the parent has to remove it.
    Put(String),
    /// The child has removed it.
    Gone(String),
    /// What came of its item. Nothing follows.
    Finding { item: String, verdict: Verdict, seen: String },
}

impl Told {
    pub(super) fn line(&self) -> String {
        format!("{MARK}{}\n", json(self))
    }
}

/// The line that a child is told: to remove these manifests, or to run its item if there are none.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) remove: Vec<String>,
}

impl Task {
    pub(super) fn line(&self) -> String {
        json(self) + "\n"
    }

    /// `None` if it is no whole task: whoever writes it has ended.
    pub(super) fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_suffix('\n')?).ok()
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts and lists always encode")
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
    pub(super) fn add(&mut self, more: &[u8], told: &mut dyn FnMut(Told)) {
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
                    if let Ok(line) = serde_json::from_slice(&self.kept[mark.len()..end]) {
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

    fn of(seen: &str) -> Told {
        Told::Finding { item: "item".to_owned(), verdict: Verdict::Note, seen: seen.into() }
    }

    fn read(output: &str) -> Vec<Told> {
        let mut read = Vec::new();
        Search::default().add(output.as_bytes(), &mut |told| read.push(told));
        read
    }

    const TEXTS: [&str; 4] = ["", "plain", "two\nlines \u{1e} \"quoted\" \\ \u{1b} é", "\u{301}x"];

    #[test]
    fn lines_survive_the_way_from_a_child() {
        for text in TEXTS {
            let output = format!(
                "noise\ntest x ... {}{}{}more noise",
                Told::Put(text.to_owned()).line(),
                of(text).line(),
                Told::Gone(text.to_owned()).line()
            );
            let read = read(&output);
            let [Told::Put(put), Told::Finding { verdict, seen, .. }, Told::Gone(gone)] = &read[..] else {
                panic!("{read:?}");
            };
            assert_eq!([put, seen, gone], [text; 3]);
            assert_eq!(*verdict, Verdict::Note);
        }
        assert!(read("nothing here\n").is_empty());
    }

    #[test]
    fn a_task_survives_the_way_to_a_child() {
        let remove = TEXTS.map(str::to_owned).to_vec();
        let line = Task { remove: remove.clone() }.line();
        assert_eq!(Task::read(&line).unwrap().remove, remove);
        assert_eq!(line.lines().count(), 1);
        assert!(Task::read(line.trim_end()).is_none(), "half a line");
    }

    #[test]
    fn a_line_is_found_in_any_noise_and_noise_is_not_kept() {
        let line = of("well").line();
        let noise = [b'x'; 1 << 16];
        let find = |search: &mut Search, output: &[u8]| {
            let mut found = 0;
            search.add(output, &mut |told| {
                assert!(matches!(told, Told::Finding { seen, .. } if seen == "well"));
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
