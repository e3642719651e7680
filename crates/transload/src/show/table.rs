//! Tables for the terminal: a bold header over a rule, numbers to the right, no boxes.

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, TableStyle};

use super::terminal;

const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none())
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none());

#[derive(Debug)]
pub(crate) struct Table {
    inner: comfy_table::Table,
    alignments: Vec<CellAlignment>,
}

impl Table {
    /// Creates a table. `columns` has the names separated by bars; a name that begins with `>` makes its column
    /// right-aligned.
    pub(crate) fn new(columns: &str) -> Self {
        let mut inner = comfy_table::Table::new();
        inner
            .load_style(STYLE)
            .set_content_arrangement(ContentArrangement::Disabled)
            // Colours are always produced here; the writer of stdout drops them if necessary.
            .enforce_styling();
        if let Some(width) = terminal::width(std::io::stdout()) {
            // Long texts wrap within their column.
            inner.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        let columns = columns.split('|').map(|name| match name.strip_prefix('>') {
            Some(name) => (name, CellAlignment::Right),
            None => (name, CellAlignment::Left),
        });
        let (names, alignments): (Vec<_>, Vec<_>) = columns.unzip();
        let header = names.into_iter().zip(&alignments);
        let header = header.map(|(name, alignment)| cell(name, *alignment).add_attribute(Attribute::Bold));
        inner.set_header(header);
        Self { inner, alignments }
    }

    /// Adds a row; one text per column.
    pub(crate) fn row<T: AsRef<str>>(&mut self, texts: impl IntoIterator<Item = T>) {
        let alignments = self.alignments.iter().copied();
        let cells = texts.into_iter().zip(alignments).map(|(t, l)| cell(t.as_ref(), l));
        self.inner.add_row(cells.collect::<Vec<_>>());
    }

    /// Returns the finished text, which ends with a line end.
    pub(crate) fn finish(mut self) -> String {
        for column in self.inner.column_iter_mut() {
            column.set_padding((1, 0));
        }
        const RESET: &str = "\u{1b}[0m";
        let mut text = String::new();
        for line in self.inner.lines() {
            let line = line.trim_end();
            match line.strip_suffix(RESET) {
                Some(styled) => text.extend([styled.trim_end(), RESET]),
                None => text.push_str(line),
            }
            text.push('\n');
        }
        text
    }
}

fn cell(text: &str, alignment: CellAlignment) -> Cell {
    Cell::new(text).set_alignment(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lean_right_and_lines_end_without_blanks() {
        let mut table = Table::new("side|>bytes");
        table.row(["prefill", "512"]);
        table.row(["decode", "1,024"]);
        let plain = anstream::adapter::strip_str(&table.finish()).to_string();
        assert_eq!(plain, " side     bytes\n───────────────\n prefill    512\n decode   1,024\n");
    }
}
