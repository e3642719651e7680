//! A plan as an SVG document: the beginning of a rank's memory, its chunks and their places on the other side, and the
//! traffic between ranks.

mod matrix;
mod panel;
mod scene;
mod svg;
#[cfg(test)]
mod tests;

use self::panel::Panel;
pub(crate) use self::scene::Scene;
use self::svg::{MARGIN, Svg};
use crate::show::number::{bytes, count};

const MOST_PANELS: usize = 3;

pub(crate) fn plan_svg(scene: &Scene<'_>) -> String {
    let mut svg = Svg::default();
    let mut title = scene.names().join(" → ");
    if let Some(model) = &scene.sides[0].document().model {
        title = format!("{model}: {title}");
    }
    svg.line(36.0, "ink title", 17.0, &title);
    let groups = scene.plan.group_names().len();
    let panels = (0..groups).filter_map(|group| Panel::new(scene, group));
    let panels: Vec<Panel> = panels.take(MOST_PANELS).collect();
    let mut about = totals(scene);
    if panels.len() < groups {
        about.push_str(&format!(" {} of {groups} groups are drawn.", panels.len()));
    }
    svg.line(58.0, "ink note", 12.0, &about);
    let mut y = 92.0;
    for panel in &panels {
        y = panel.draw(&mut svg, scene, y) + 34.0;
    }
    y = matrix::draw(&mut svg, scene, y);
    svg.finish(y + MARGIN, &title)
}

fn totals(scene: &Scene<'_>) -> String {
    let chunks = count(scene.bound.chunks(), "chunk");
    let mut lengths = scene.bound.histogram().into_keys();
    let chunks = match (lengths.next(), lengths.next_back()) {
        (None, _) => "nothing travels".to_owned(),
        (Some(all), None) => format!("{chunks} of {}", bytes(all)),
        (Some(min), Some(max)) => format!("{chunks} of {} to {}", bytes(min), bytes(max)),
    };
    format!(
        "{} of {} in {chunks}, over {}.",
        bytes(scene.bound.bytes()),
        count(scene.plan.request().tokens, "token"),
        count(scene.plan.routes().len() as u64, "route"),
    )
}
