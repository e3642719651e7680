//! The order grammar: which axis lies outside which.

use serde_json::Value;

use super::Fault;

/// The axes that an order may name, and the two that a convolution's content consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Layer,
    Block,
    State,
    Head,
    /// All elements of one state and head, component by component.
    Content,
    /// `K`: whether key or value.
    Half,
    /// `D`: the elements of one component.
    Width,
    Channel,
    ConvState,
}

/// Shared outer axes, outermost first; then, in a bracket, those of each component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) outer: Vec<Axis>,
    pub(super) bracket: Vec<Vec<Axis>>,
}

/// Reads an order as people write it.
pub(super) fn read(order: &Value) -> Result<Order, Fault> {
    match order {
        Value::Array(list) => {
            // Indices into the semantic axes [L, B, S, H, C], outermost first.
            let mut outer = Vec::new();
            for index in list {
                let index = index.as_u64().ok_or("order: no index")? as usize;
                let semantic = [Axis::Layer, Axis::Block, Axis::State, Axis::Head, Axis::Content];
                outer.push(*semantic.get(index).ok_or("order: no such axis")?);
            }
            Ok(Order { outer, bracket: Vec::new() })
        }
        Value::String(text) => match text.as_str() {
            "NHD" => read_text("LBSHC"),
            "HND" => read_text("LBHSC"),
            text => read_text(text),
        },
        _ => Err("order: neither text nor list".into()),
    }
}

fn read_text(text: &str) -> Result<Order, Fault> {
    let (outer, bracket) = match text.split_once('[') {
        None => (axes(text)?, Vec::new()),
        Some((outer, rest)) => {
            let inside = rest.strip_suffix(']').ok_or("order: no closing bracket")?;
            let each = inside.split(',').map(|part| axes(part.trim()));
            (axes(outer)?, each.collect::<Result<_, _>>()?)
        }
    };
    let mut order = Order { outer, bracket };
    if order.bracket.is_empty() {
        let written_out = order.outer.windows(2).position(|w| w == [Axis::Half, Axis::Width]);
        if let Some(at) = written_out {
            // `KD` side by side is what `C` is.
            order.outer.splice(at..at + 2, [Axis::Content]);
        } else if !order.outer.contains(&Axis::Half) {
            // Without `K`, the content is K's elements and then V's.
            let content = |axis| match axis {
                Axis::Width => Axis::Content,
                other => other,
            };
            order.outer = order.outer.into_iter().map(content).collect();
        }
    }
    Ok(order)
}

fn axes(text: &str) -> Result<Vec<Axis>, Fault> {
    text.chars()
        .map(|letter| match letter {
            'L' => Ok(Axis::Layer),
            'B' => Ok(Axis::Block),
            'S' | 'N' => Ok(Axis::State),
            'H' => Ok(Axis::Head),
            'C' => Ok(Axis::Content),
            'K' => Ok(Axis::Half),
            'D' => Ok(Axis::Width),
            _ => Err(format!("order: {letter:?} names no axis")),
        })
        .collect()
}
