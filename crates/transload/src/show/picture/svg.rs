//! Writes SVG: escaped text, boxes and paths.

use std::borrow::Cow;
use std::fmt::Write;

/// The width of pictures in px: what fits a README on a code host.
pub(super) const WIDTH: f64 = 840.0;

pub(super) const MARGIN: f64 = 24.0;

/// The style sheet, with colours for a light and a dark background. The background is painted, since a page's theme may
/// differ from the system's.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:11px}
.paper{fill:#fff}.ink{fill:#1f2328}.dim{fill:#59636e}.rule{stroke:#818b98;fill:none}
.cell{stroke:#fff}.gap{fill:#dde2e7}.grid{stroke:#d1d9e0;fill:none}.heat{fill:#0b57b5}.lit{fill:#fff}
.title{font-size:17px;font-weight:600}.head{font-size:13px;font-weight:600}.note{font-size:12px}.small{font-size:9.5px}
.middle{text-anchor:middle}.end{text-anchor:end}.flow{fill-opacity:.45}
@media (prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9198a1}.rule{stroke:#7d8590}
.cell{stroke:#0d1117}.gap{fill:#2b323c}.grid{stroke:#30363d}.heat{fill:#2f7fe0}}";

#[derive(Debug, Default)]
pub(super) struct Svg(String);

impl Svg {
    /// Draws a text with its baseline at `y`, in classes of the style sheet.
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(self.0, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#);
    }

    /// Draws a line of text across the picture, cut if it is too long.
    pub(super) fn line(&mut self, y: f64, class: &str, size: f64, text: &str) {
        self.text(MARGIN, y, class, &fit(text, WIDTH - 2.0 * MARGIN, size));
    }

    /// Draws a box of a width and height at `x`, `y`. Browsers show the title when the pointer rests on it.
    pub(super) fn rect(&mut self, [x, y, w, h]: [f64; 4], attributes: &str, title: &str) {
        let title = escape(title);
        let _ = writeln!(
            self.0,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" {attributes}><title>{title}</title></rect>"#
        );
    }

    pub(super) fn path(&mut self, data: &str, attributes: &str) {
        let _ = writeln!(self.0, r#"<path d="{data}" {attributes}/>"#);
    }

    pub(super) fn finish(self, height: f64, title: &str) -> String {
        let title = escape(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"8\"/>\n{}</svg>\n",
            self.0
        )
    }
}

/// Escapes a text for XML. Characters that XML forbids, or that change the direction of text, are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                escaped.push('\u{fffd}')
            }
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Estimates the width of a text for any font, rather too wide than too narrow.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ' ' | '(' | ')' => 0.36,
        'm' | 'w' | 'M' | 'W' => 0.9,
        c if c.is_ascii_uppercase() => 0.68,
        c if c.is_ascii() || c == '–' => 0.58,
        _ => 1.0,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// Returns the text, or the beginning that fits.
pub(super) fn fit(text: &str, width: f64, size: f64) -> Cow<'_, str> {
    if text_width(text, size) <= width {
        return text.into();
    }
    let mut fitting = String::new();
    let mut room = width - size;
    for c in text.chars() {
        room -= text_width(c.encode_utf8(&mut [0; 4]), size);
        if room < 0.0 {
            break;
        }
        fitting.push(c);
    }
    fitting.push('…');
    fitting.into()
}
