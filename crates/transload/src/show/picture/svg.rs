//! SVG as text: a few shapes, numbers with one decimal, and text that cannot break out.

use std::borrow::Cow;
use std::fmt::Write;

/// How wide pictures are, in px: what a README on a code host has room for.
pub(super) const WIDTH: f64 = 840.0;

/// Space to the left and right of everything.
pub(super) const MARGIN: f64 = 24.0;

/// Colours of whatever is not data, and what takes their place on dark paper. Everything else is legible on
/// both. The paper is painted, since a page's theme may be another one than the system's.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:11px}\
.paper{fill:#fff}.ink{fill:#1f2328}.dim{fill:#59636e}.rule{stroke:#818b98;fill:none}\
.edge{stroke:#1f2328;fill:none}.idle{fill:#eaeef2}.grid{stroke:#d1d9e0;fill:none}\
.title{font-size:17px;font-weight:600}.head{font-size:13px;font-weight:600}.note{font-size:12px}.small{font-size:10.5px}\
";

const DARK: &str = "\
.paper{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9198a1}.rule{stroke:#7d8590}\
.edge{stroke:#f0f6fc}.idle{fill:#262c36}.grid{stroke:#30363d}\
";

/// Where a text is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture under construction.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
    defs: String,
    style: String,
    dark: String,
}

impl Svg {
    /// Adds something that shapes refer to.
    pub(super) fn define(&mut self, defs: &str) {
        self.defs.push_str(defs);
    }

    /// Adds rules: on any paper, and those that are other on dark paper.
    pub(super) fn style(&mut self, rules: &str, dark: &str) {
        self.style.push_str(rules);
        self.dark.push_str(dark);
    }

    /// Opens a group of shapes with attributes that are ours; [`close`](Self::close) ends it.
    pub(super) fn open(&mut self, attributes: &str) {
        let _ = writeln!(self.body, "<g {attributes}>");
    }

    pub(super) fn close(&mut self) {
        self.body.push_str("</g>\n");
    }

    /// A rectangle; with a title, which browsers show where the pointer rests.
    pub(super) fn rect(&mut self, area: Area, attributes: &str, title: Option<&str>) {
        let Area { x, y, w, h } = area;
        let (x, y, w, h) = (Px(x), Px(y), Px(w), Px(h));
        let _ = write!(
            self.body,
            r#"<rect x="{x}" y="{y}" width="{w}" height="{h}" {attributes}"#
        );
        let _ = match title {
            None => writeln!(self.body, "/>"),
            Some(title) => writeln!(self.body, "><title>{}</title></rect>", escape(title)),
        };
    }

    /// A path, its data made with [`Px`].
    pub(super) fn path(&mut self, data: &str, attributes: &str) {
        let _ = writeln!(self.body, r#"<path d="{data}" {attributes}/>"#);
    }

    /// A line of text with its baseline at `y`.
    pub(super) fn text(&mut self, (x, y): (f64, f64), class: &str, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let (x, y) = (Px(x), Px(y));
        let _ = writeln!(
            self.body,
            r#"<text x="{x}" y="{y}" class="{class}"{anchor}>{}</text>"#,
            escape(text)
        );
    }

    /// Lines of text, each broken where it gets too wide; gives the next baseline.
    pub(super) fn paragraph(&mut self, mut y: f64, class: &str, size: f64, text: &str) -> f64 {
        for line in wrap(text, WIDTH - 2.0 * MARGIN, size) {
            self.text((MARGIN, y), class, Anchor::Start, &line);
            y += size * 1.45;
        }
        y
    }

    /// The finished document.
    pub(super) fn finish(self, height: f64, title: &str) -> String {
        let (width, height) = (Px(WIDTH), Px(height.ceil()));
        let title = escape(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}{}\n\
             @media (prefers-color-scheme: dark){{{DARK}{}}}</style>\n<defs>{}</defs>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n{}</svg>\n",
            self.style, self.dark, self.defs, self.body
        )
    }
}

/// A rectangle's place and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

/// A number of px with at most one decimal, written the same everywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Px(pub(super) f64);

impl std::fmt::Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() as i64;
        let (sign, tenths) = (if tenths < 0 { "-" } else { "" }, tenths.abs());
        match tenths % 10 {
            0 => write!(f, "{sign}{}", tenths / 10),
            part => write!(f, "{sign}{}.{part}", tenths / 10),
        }
    }
}

/// Text as XML may hold it: what would end it is spelled out, and what XML forbids, or what would turn the
/// line around, is replaced.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    let forbidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    let plain = |c: char| !matches!(c, '&' | '<' | '>' | '"' | '\'') && !forbidden(c);
    if text.chars().all(plain) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if forbidden(c) => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped.into()
}

/// About how wide a text is, whatever the font: on the side of too wide.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ' ' | '|' | '(' | ')' | '[' | ']' => 0.36,
        'm' | 'w' | 'M' | 'W' => 0.9,
        c if c.is_ascii_uppercase() => 0.68,
        c if c.is_ascii() => 0.58,
        _ => 1.0,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// The text, or as much of its beginning as fits.
pub(super) fn fit(text: &str, width: f64, size: f64) -> Cow<'_, str> {
    if text_width(text, size) <= width {
        return text.into();
    }
    let mut kept = String::new();
    let mut room = width - size;
    for c in text.chars() {
        room -= text_width(c.encode_utf8(&mut [0; 4]), size);
        if room < 0.0 {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    kept.into()
}

fn wrap(text: &str, width: f64, size: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let word = fit(word, width, size);
        match lines.last_mut() {
            Some(line)
                if text_width(line, size) + text_width(&word, size) + size / 2.0 <= width =>
            {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word.into_owned()),
        }
    }
    lines
}
