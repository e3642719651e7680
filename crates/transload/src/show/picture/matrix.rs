//! The traffic between ranks as a heat map.

use std::collections::BTreeMap;

use super::Scene;
use super::svg::{MARGIN, Svg, WIDTH, text_width};
use crate::show::number::{bytes, count, exact_bytes, grouped};

/// The most cells on a side. With more ranks, a cell stands for several.
const MOST_CELLS: u64 = 32;

/// Draws the matrix from `y` on. Returns its lower end.
pub(super) fn draw(svg: &mut Svg, scene: &Scene<'_>, y: f64) -> f64 {
    let ranks = scene.sides.map(|side| u64::from(side.tp()) * u64::from(side.pp()));
    let lump = ranks[0].max(ranks[1]).div_ceil(MOST_CELLS);
    let [rows, columns] = ranks.map(|ranks| ranks.div_ceil(lump));
    let (mut cells, mut pairs) = (BTreeMap::<[u64; 2], u64>::new(), 0);
    for route in scene.plan.routes() {
        let sent = scene.plan.route_bytes(route);
        if sent > 0 {
            let pair = [route.src_rank, route.dst_rank].map(|rank| u64::from(rank.0) / lump);
            *cells.entry(pair).or_default() += sent;
            pairs += 1;
        }
    }
    let most = cells.values().copied().max().unwrap_or(0);
    let [from, to] = scene.called();
    let of = match lump {
        1 => "a rank".to_owned(),
        several => count(several, "rank"),
    };
    let note = format!(
        "A row is {of} of {from}, a column {of} of {to}; {} of {} pairs share something.",
        grouped(pairs),
        grouped(ranks[0] * ranks[1]),
    );
    svg.line(y, "ink head", 13.0, "Who sends how much to whom");
    svg.line(y + 19.0, "dim note", 12.0, &note);

    let (left, top) = (MARGIN + 62.0, y + 52.0);
    let width = ((WIDTH - MARGIN - left) / columns.max(rows) as f64).min(64.0);
    let height = width.min(28.0);
    svg.text(MARGIN, top - 6.0, "dim", "from \\ to");
    // Labels are left out where they do not fit.
    let every = |size: f64| (24.0 / size).ceil().max(1.0) as usize;
    for row in (0..rows).step_by(every(height * 1.5)) {
        let y = top + height * (row as f64 + 0.5) + 4.0;
        svg.text(left - 6.0, y, "dim end", &(row * lump).to_string());
    }
    for column in (0..columns).step_by(every(width)) {
        let x = left + width * (column as f64 + 0.5);
        svg.text(x, top - 6.0, "dim middle", &(column * lump).to_string());
    }
    let outline = [left, top, width * columns as f64, height * rows as f64];
    svg.rect(outline, r#"class="grid""#, "nothing");
    for ([row, column], sent) in cells {
        let (x, y) = (left + width * column as f64, top + height * row as f64);
        let share = sent as f64 / most as f64;
        let heat = format!(r#"class="heat" fill-opacity="{:.2}""#, 0.12 + 0.88 * share);
        let title = format!("rank {} to rank {}: {}", row * lump, column * lump, exact_bytes(sent));
        svg.rect([x + 0.5, y + 0.5, width - 1.0, height - 1.0], &heat, &title);
        let text = bytes(sent);
        if text_width(&text, 11.0) < width {
            let class = if share > 0.4 { "lit middle" } else { "ink middle" };
            svg.text(x + width / 2.0, y + height / 2.0 + 4.0, class, &text);
        }
    }
    top + height * rows as f64
}
