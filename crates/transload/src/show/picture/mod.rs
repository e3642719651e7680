//! Pictures: what lies where on both sides of a transfer and what moves between them (SVG), and how one
//! side's memory is ordered (text, for the terminal).
//!
//! A picture shows memory by real addresses: every cell stands where a view says that it lies, and every
//! ribbon is a chunk of a bound plan. What is too large to see is drawn as a smaller transfer of the same
//! kind, which is planned and bound like the real one.

mod cells;
mod colour;
mod matrix;
mod miniature;
mod paint;
mod panel;
mod rows;
mod sketch;
mod strip;
mod svg;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use miniature::Scene;
pub(crate) use sketch::sketch;

use std::collections::BTreeMap;

use self::matrix::Matrix;
use self::panel::Panel;
use self::svg::{Anchor, MARGIN, Svg, WIDTH, fit};
use super::number::{bytes, count};

/// The most groups that are drawn.
const MOST_PANELS: usize = 3;

/// A plan as an SVG document: each group's memory on both sides with the chunks between them, then who
/// sends how much to whom.
pub(crate) fn plan_svg(scene: &Scene<'_>) -> String {
    let mut svg = Svg::default();
    paint::Paint::define(&mut svg);
    let heat = matrix::rules();
    svg.style(panel::RULES, panel::DARK);
    svg.style(&heat.0, &heat.1);
    let title = format!(
        "{} → {}",
        words::side(scene.src, "source"),
        words::side(scene.dst, "destination")
    );
    let model = scene.src.document().model.as_deref();
    let title = model.map_or(title.clone(), |model| format!("{model}: {title}"));
    let title = fit(&title, WIDTH - 2.0 * MARGIN, 17.0);
    svg.text((MARGIN, 36.0), "ink title", Anchor::Start, &title);
    let groups = scene.plan.group_names().len();
    let panels = (0..groups).filter_map(|group| Some((group, Panel::new(scene, group)?)));
    let panels: Vec<(usize, Panel)> = panels.take(MOST_PANELS).collect();
    let mut about = totals(scene);
    if panels.len() < groups {
        about.push_str(&format!(" {} of {groups} groups are drawn.", panels.len()));
    }
    let mut y = svg.paragraph(58.0, "ink note", 12.0, &about) + 18.0;
    for (group, panel) in &panels {
        y = panel.draw(&mut svg, scene, *group, y) + 26.0;
    }
    y = send_matrix(scene).draw(&mut svg, y);
    svg.finish(y, &title)
}

/// The real plan in one sentence.
fn totals(scene: &Scene<'_>) -> String {
    let histogram = scene.bound.histogram();
    let chunks = count(scene.bound.chunks(), "chunk");
    let mut lengths = histogram.into_keys();
    let lengths = match (lengths.next(), lengths.next_back()) {
        (None, _) => "nothing travels".to_owned(),
        (Some(all), None) => format!("{chunks} of {}", bytes(all)),
        (Some(min), Some(max)) => format!("{chunks} of {} to {}", bytes(min), bytes(max)),
    };
    format!(
        "The real plan: {} of {} in {lengths}, over {}.",
        bytes(scene.bound.bytes()),
        count(scene.plan.request().tokens, "token"),
        count(scene.plan.routes().len() as u64, "route"),
    )
}

fn send_matrix(scene: &Scene<'_>) -> Matrix {
    let mut sent: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for route in scene.plan.routes() {
        let pair = (route.src_rank.0, route.dst_rank.0);
        let moved = scene.plan.route_bytes(route);
        if moved > 0 {
            sent.insert(pair, moved);
        }
    }
    let (src, dst) = (scene.src, scene.dst);
    Matrix {
        ranks: (src.tp() * src.pp(), dst.tp() * dst.pp()),
        stages: (src.tp(), dst.tp()),
        names: (
            words::side(src, "the source"),
            words::side(dst, "the destination"),
        ),
        bytes: sent,
    }
}
