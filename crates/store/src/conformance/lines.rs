//! The messages between a child and its parent: JSON, one line each.

use serde::{Deserialize, Serialize};

use super::outcome::Verdict;

/// The prefix of a message on a child's stdout, where a library may print other text. JSON escapes its first byte.
const MARK: &str = "\u{1e}kv-store ";

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The child may be about to put this manifest, so the parent must clean it up unless it is gone.
    Put(String),
    /// The child has removed this manifest.
    Gone(String),
    /// The outcome of the item. Nothing follows.
    Finding { item: String, verdict: Verdict, seen: String },
}

impl Message {
    pub(super) fn line(&self) -> String {
        format!("{MARK}{}\n", json(self))
    }
}

/// The task of a child: remove these manifests, or run its item if there are none.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) remove: Vec<String>,
}

impl Task {
    pub(super) fn line(&self) -> String {
        json(self) + "\n"
    }

    /// Parses a line. Returns `None` if it is incomplete, because the parent has ended.
    pub(super) fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_suffix('\n')?).ok()
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts and lists always encode")
}

/// The maximum length of an unfinished line. Messages are much shorter, but a library may print anything.
const LONGEST: usize = 1 << 20;

/// A parser that finds messages in output that arrives in pieces.
#[derive(Default)]
pub(super) struct Search {
    /// The output from the last mark on, or what may be the beginning of a mark.
    buffer: Vec<u8>,
}

impl Search {
    pub(super) fn add(&mut self, more: &[u8], message: &mut dyn FnMut(Message)) {
        self.buffer.extend_from_slice(more);
        let mark = MARK.as_bytes();
        loop {
            let Some(at) = self.buffer.windows(mark.len()).position(|part| part == mark) else {
                let useless = self.buffer.len().saturating_sub(mark.len() - 1);
                self.buffer.drain(..useless);
                return;
            };
            self.buffer.drain(..at);
            match self.buffer.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    if let Ok(line) = serde_json::from_slice(&self.buffer[mark.len()..end]) {
                        message(line);
                    }
                }
                None if self.buffer.len() <= LONGEST => return,
                None => {}
            }
            // The message was read, or it was not one.
            self.buffer.drain(..mark.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seen: &str) -> Message {
        Message::Finding { item: "item".to_owned(), verdict: Verdict::Note, seen: seen.into() }
    }

    fn read(output: &str) -> Vec<Message> {
        let mut read = Vec::new();
        Search::default().add(output.as_bytes(), &mut |message| read.push(message));
        read
    }

    const TEXTS: [&str; 4] = ["", "plain", "two\nlines \u{1e} \"quoted\" \\ \u{1b} é", "\u{301}x"];

    #[test]
    fn lines_survive_the_way_from_a_child() {
        for text in TEXTS {
            let output = format!(
                "noise\ntest x ... {}{}{}more noise",
                Message::Put(text.to_owned()).line(),
                of(text).line(),
                Message::Gone(text.to_owned()).line()
            );
            let read = read(&output);
            let [Message::Put(put), Message::Finding { verdict, seen, .. }, Message::Gone(gone)] = &read[..] else {
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
            search.add(output, &mut |message| {
                assert!(matches!(message, Message::Finding { seen, .. } if seen == "well"));
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
            assert!(search.buffer.len() < 100);
        }
        // After a mark that no line follows, not for ever; and a mark in the noise hides nothing.
        assert_eq!(find(&mut search, MARK.as_bytes()), 0);
        for _ in 0..64 {
            assert_eq!(find(&mut search, &noise), 0);
            assert!(search.buffer.len() <= LONGEST);
        }
        assert_eq!(find(&mut search, MARK.as_bytes()), 0);
        assert_eq!(find(&mut search, line.as_bytes()), 1);
    }
}
