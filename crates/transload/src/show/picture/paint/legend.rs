//! What colours and patterns stand for, in swatches.

use super::super::cells::Meaning;
use super::super::svg::{Anchor, Area, MARGIN, Svg, WIDTH, text_width};
use super::super::words;
use super::{MOST_PATTERNS, Paint, Part};

impl Paint {
    /// What the colours stand for; gives where to go on.
    pub(in crate::show::picture) fn legend(
        &self,
        svg: &mut Svg,
        y: f64,
        gaps: bool,
        idle: bool,
    ) -> f64 {
        let mut line = Line { x: MARGIN, y };
        let states = self.states;
        let sample = |unit: u64, part: &Part, layer: u32, state: u64| {
            let content = part
                .content
                .iter()
                .map(|(_, extent, _)| extent / 2)
                .collect();
            let (state, part) = (state, part.id);
            self.look(&Meaning {
                layer,
                state,
                part,
                unit,
                content,
            })
        };
        let (Some(first), Some(layer)) = (self.parts.first(), self.layers.first()) else {
            return y;
        };
        let middle = states.saturating_sub(1) * 2 / 3;
        let mut hues: Vec<usize> = Vec::new();
        for part in &self.parts {
            for unit in 0..part.units.min(8) {
                let hue = part.hue + unit as usize;
                if hues.contains(&hue) || (part.units == 1 && self.hues == 1) {
                    continue;
                }
                hues.push(hue);
                let looks = self.layers.iter().take(3);
                let looks = looks.map(|layer| sample(unit, part, *layer, middle).fill);
                let mut name = match part.units {
                    1 => part.name.clone(),
                    _ => format!("{} {unit}", words::unit(part.field)),
                };
                if hues.len() == 1 && self.layers.len() > 1 {
                    name.push_str(&format!(", layers {}", self.layer_range()));
                }
                line.item(svg, &looks.collect::<Vec<_>>(), None, &name);
            }
        }
        if self.hues == 1 && self.layers.len() > 1 {
            let looks = self.layers.iter().take(8);
            let looks = looks.map(|layer| sample(0, first, *layer, middle).fill);
            let text = format!("layers {}", self.layer_range());
            line.item(svg, &looks.collect::<Vec<_>>(), None, &text);
        }
        if states > 1 {
            let ramp = (0..states).step_by((states as usize).div_ceil(8));
            let ramp = ramp.map(|state| sample(0, first, *layer, state).fill);
            let text = format!("{} 0 to {}", self.state_word, states - 1);
            line.item(svg, &ramp.collect::<Vec<_>>(), None, &text);
        }
        if self.parts.len() > 1 {
            for (index, part) in self.parts.iter().enumerate() {
                let look = sample(0, part, *layer, middle).fill;
                line.item(svg, &[look], Some(index.min(MOST_PATTERNS)), &part.name);
            }
        }
        if idle {
            line.swatches(
                svg,
                &[r#"class="idle""#.to_owned()],
                None,
                "does not travel",
            );
        }
        if gaps {
            line.item(svg, &[], None, "gaps: bytes that are not drawn");
        }
        line.y + 10.0
    }

    /// `0, 1`
    fn layer_range(&self) -> String {
        let few: Vec<String> = self.layers.iter().take(3).map(u32::to_string).collect();
        let more = if self.layers.len() > 3 { ", …" } else { "" };
        format!("{}{more}", few.join(", "))
    }
}

/// Where the next item of a legend goes.
struct Line {
    x: f64,
    y: f64,
}

impl Line {
    fn item(&mut self, svg: &mut Svg, fills: &[String], pattern: Option<usize>, text: &str) {
        let fills: Vec<String> = fills
            .iter()
            .map(|fill| format!(r#"fill="{fill}""#))
            .collect();
        self.swatches(svg, &fills, pattern, text);
    }

    fn swatches(&mut self, svg: &mut Svg, fills: &[String], pattern: Option<usize>, text: &str) {
        const SWATCH: f64 = 13.0;
        let swatches = fills.len() as f64 * SWATCH;
        let width = swatches + 5.0 + text_width(text, 11.0) + 14.0;
        if self.x + width > WIDTH - MARGIN && self.x > MARGIN {
            self.x = MARGIN;
            self.y += 19.0;
        }
        for (i, fill) in fills.iter().enumerate() {
            let area = Area {
                x: self.x + i as f64 * SWATCH,
                y: self.y - 10.0,
                w: SWATCH - 1.0,
                h: 13.0,
            };
            svg.rect(area, fill, None);
            if let Some(pattern @ 1..) = pattern {
                svg.rect(area, &format!(r#"fill="url(#p{pattern})""#), None);
            }
        }
        let at = (
            self.x + swatches + if fills.is_empty() { 0.0 } else { 4.0 },
            self.y,
        );
        svg.text(at, "dim", Anchor::Start, text);
        self.x += width;
    }
}
