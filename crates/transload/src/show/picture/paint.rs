//! What a meaning looks like: hue for the head and layer, lightness for the token, a pattern for the
//! component.

mod legend;

use transload::layout::{Axis, Group};

use super::cells::{Cell, Grain, Meaning};
use super::colour::Shade;
use super::svg::{Area, Px, Svg};
use super::words;

/// Patterns over the colours of the second component, the third …; there are none beyond these.
const PATTERNS: &str = r#"<pattern id="p1" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="5" fill="white" fill-opacity=".62"/></pattern><pattern id="p2" width="5" height="5" patternUnits="userSpaceOnUse"><circle cx="2.5" cy="2.5" r="1.4" fill="white" fill-opacity=".8"/></pattern><pattern id="p3" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="2.4" fill="white" fill-opacity=".55"/></pattern><pattern id="p4" width="6" height="6" patternUnits="userSpaceOnUse"><path d="M0 0h6v6" fill="none" stroke="white" stroke-opacity=".7" stroke-width="2"/></pattern>"#;

const MOST_PATTERNS: usize = 4;

/// The colours of one group's picture.
#[derive(Debug)]
pub(super) struct Paint {
    parts: Vec<Part>,
    layers: Vec<u32>,
    states: u64,
    /// Hues that there are.
    hues: usize,
    state_word: &'static str,
}

/// One component.
#[derive(Debug)]
struct Part {
    id: (usize, usize),
    name: String,
    field: &'static str,
    units: u64,
    /// The hue of its first unit.
    hue: usize,
    /// Content axes that step from cell to cell: number, extent and name.
    content: Vec<(Axis, u64, &'static str)>,
}

/// Colour and pattern of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Look {
    pub(super) fill: String,
    /// 0 for none.
    pub(super) pattern: usize,
}

impl Paint {
    /// For the cells of both sides of a group.
    pub(super) fn new<'a>(
        group: &Group,
        grains: &[Grain],
        cells: impl Iterator<Item = &'a Cell> + Clone,
    ) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        let mut hues = 0;
        let mut grains = grains.iter();
        for (spec, component) in group.specs().iter().enumerate().flat_map(|(index, spec)| {
            let components = spec.geometry().components;
            (0..components.len()).map(move |c| ((index, c), components[c].clone()))
        }) {
            let content = grains
                .next()
                .map(|grain| &grain.axes[..])
                .unwrap_or_default();
            let units = component.partition.units();
            // Heads are the same heads in all components that are shared out by heads.
            let known = parts.iter().find(|part| part.field == component.field);
            let hue = known
                .filter(|part| part.units == units)
                .map(|part| part.hue);
            let hue = hue.unwrap_or_else(|| {
                hues += units as usize;
                hues - units as usize
            });
            parts.push(Part {
                id: spec,
                name: words::component(component.name).into_owned(),
                field: component.field,
                units,
                hue,
                content: content
                    .iter()
                    .map(|(axis, extent)| {
                        let is_conv = group.specs()[spec.0].conv_layout().is_some();
                        (
                            *axis,
                            *extent,
                            words::content(is_conv, *axis, component.content.len()),
                        )
                    })
                    .collect(),
            });
        }
        let mut layers: Vec<u32> = cells.clone().map(|cell| cell.is.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let per_state = group
            .specs()
            .iter()
            .find_map(|spec| spec.tokens_per_state());
        Self {
            parts,
            layers,
            states: cells.map(|cell| cell.is.state + 1).max().unwrap_or(1),
            hues,
            state_word: if per_state == Some(1) {
                "token"
            } else {
                "state"
            },
        }
    }

    fn part(&self, id: (usize, usize)) -> Option<(usize, &Part)> {
        self.parts
            .iter()
            .enumerate()
            .find(|(_, part)| part.id == id)
    }

    /// What a cell of this meaning looks like.
    pub(super) fn look(&self, is: &Meaning) -> Look {
        let Some((index, part)) = self.part(is.part) else {
            return Look {
                fill: "#888888".into(),
                pattern: 0,
            };
        };
        let inside: u64 = part.content.iter().map(|(_, extent, _)| extent).product();
        let at = part.content.iter().zip(&is.content);
        let at = at.fold(0, |at, ((_, extent, _), position)| at * extent + position);
        let layer = self
            .layers
            .iter()
            .position(|layer| *layer == is.layer)
            .unwrap_or(0);
        let mut shade = Shade {
            hue: part.hue + is.unit as usize,
            layer: (layer, self.layers.len()),
            step: (
                (is.state * inside + at) as usize,
                (self.states * inside) as usize,
            ),
        };
        if self.hues == 1 {
            // Nothing else needs the hues.
            shade = Shade {
                hue: layer,
                layer: (0, 1),
                ..shade
            };
        }
        Look {
            fill: shade.hex(),
            pattern: index.min(MOST_PATTERNS),
        }
    }

    /// The name of a cell's component.
    pub(super) fn component(&self, is: &Meaning) -> &str {
        self.part(is.part).map_or("", |(_, part)| &part.name)
    }

    /// What the unit of a cell is called, if its component has several: `head`, and whether it is what the
    /// first component is shared out by.
    pub(super) fn unit(&self, is: &Meaning) -> Option<(String, bool)> {
        let (_, part) = self.part(is.part)?;
        let first = self
            .parts
            .first()
            .is_some_and(|first| first.field == part.field);
        (part.units > 1).then(|| (words::unit(part.field), first))
    }

    /// Whether there is more than one token, or state of several tokens.
    pub(super) fn has_states(&self) -> bool {
        self.states > 1
    }

    pub(super) fn state_word(&self) -> &'static str {
        self.state_word
    }

    /// What the content axes are called that step from cell to cell in any component.
    pub(super) fn content_words(&self) -> Vec<&'static str> {
        let all = self.parts.iter().flat_map(|part| &part.content);
        let mut all: Vec<(Axis, &str)> = all.map(|(axis, _, word)| (*axis, *word)).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|(_, word)| word).collect()
    }

    /// Where a cell stands on the content axis of this name.
    pub(super) fn content(&self, is: &Meaning, word: &str) -> Option<u64> {
        let (_, part) = self.part(is.part)?;
        let axis = part.content.iter().position(|(_, _, name)| *name == word)?;
        is.content.get(axis).copied()
    }

    /// A cell in words: `layer 0, head 1, token 3, K`.
    pub(super) fn words(&self, is: &Meaning) -> String {
        let mut words = format!("layer {}", is.layer);
        if let Some((unit, _)) = self.unit(is) {
            words.push_str(&format!(", {unit} {}", is.unit));
        }
        if self.states > 1 {
            words.push_str(&format!(", {} {}", self.state_word, is.state));
        }
        words.push_str(&format!(", {}", self.component(is)));
        for word in self.content_words() {
            if let Some(at) = self.content(is, word) {
                words.push_str(&format!(", {word} {at}"));
            }
        }
        words
    }

    pub(super) fn define(svg: &mut Svg) {
        svg.define(PATTERNS);
    }
}

/// A cell as drawn: its colour, and over it the pattern of its component.
pub(super) fn cell(svg: &mut Svg, area: Area, look: &Look, title: &str) {
    svg.rect(area, &format!(r#"fill="{}""#, look.fill), Some(title));
    if look.pattern > 0 {
        svg.rect(
            area,
            &format!(r##"fill="url(#p{})" pointer-events="none""##, look.pattern),
            None,
        );
    }
}

/// A ribbon between two runs of a width each.
pub(super) fn ribbon(from: (f64, f64), to: (f64, f64), top: f64, bottom: f64) -> String {
    let (a, b, c, d) = (Px(from.0), Px(from.1), Px(to.0), Px(to.1));
    let (top, middle, bottom) = (Px(top), Px((top + bottom) / 2.0), Px(bottom));
    format!(
        "M{a} {top}C{a} {middle} {c} {middle} {c} {bottom}H{d}C{d} {middle} {b} {middle} {b} {top}z"
    )
}
