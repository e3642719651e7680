//! JSON that is readable for people: indented, with lists inside lists on one line each.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

/// Writes a value while it is serialised, so that a list of a billion chunks needs no memory.
pub(crate) fn write<W: Write>(to: W, value: &impl Serialize) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    let mut serializer = Serializer::with_formatter(&mut to, Readable::default());
    value.serialize(&mut serializer)?;
    to.write_all(b"\n")?;
    to.flush()
}

#[derive(Default)]
struct Readable {
    pretty: PrettyFormatter<'static>,
    /// Whether each open bracket is that of a list.
    open: Vec<bool>,
}

impl Readable {
    /// Returns whether the position is inside a list within a list.
    fn on_one_line(&self) -> bool {
        self.open.ends_with(&[true, true])
    }
}

/// Calls the compact or the indenting formatter, depending on the position.
macro_rules! either {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        if $self.on_one_line() {
            CompactFormatter.$method($($argument),*)
        } else {
            $self.pretty.$method($($argument),*)
        }
    };
}

impl Formatter for Readable {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open.push(true);
        either!(self.begin_array(to))
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        let result = either!(self.end_array(to));
        self.open.pop();
        result
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        either!(self.begin_array_value(to, first))
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        either!(self.end_array_value(to))
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open.push(false);
        self.pretty.begin_object(to)
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open.pop();
        self.pretty.end_object(to)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.pretty.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.pretty.end_object_value(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_in_lists_stay_on_one_line() {
        let value = serde_json::json!({"a": [1, [2, 3], {"b": [[4], []]}], "c": []});
        let mut text = Vec::new();
        write(&mut text, &value).expect("it is written");
        let text = String::from_utf8(text).expect("text");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), value);
        let expected = r#"{
  "a": [
    1,
    [2,3],
    {
      "b": [
        [4],
        []
      ]
    }
  ],
  "c": []
}
"#;
        assert_eq!(text, expected);
    }
}
