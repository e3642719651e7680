//! A sketch of one rank's memory for a group as text: its axes from the outermost in, and the beginning of a block.

mod strip;

use std::fmt::Write;

use transload::layout::{Axis, Deployment, Rank};

use crate::show::memory::Memory;
use crate::show::number::{exact_bytes, grouped};
use strip::INDENT;

/// Sketches the layout of a group, given by its index, in lines of at most `width` columns if names allow.
pub(crate) fn sketch(deployment: &Deployment, index: usize, width: usize) -> String {
    let Some(group) = deployment.groups().get(index) else {
        return String::new();
    };
    // A stage that has layers of the group.
    let mut stages = 0..deployment.pp();
    let Some(stage) = stages.find(|stage| !group.stage_slots(*stage).is_empty()) else {
        return String::new();
    };
    let memory = Memory::new(deployment, group, Rank(stage * deployment.tp()));
    let axes = Axes::of(&memory);
    let mut text = format!(" {} as {}, on each rank of TP {}", group.name(), group.physical_order(), deployment.tp());
    if deployment.pp() > 1 {
        let _ = write!(text, " in stage {stage}");
    }
    text.push_str(", outermost first:\n");
    axes.write(&mut text, width);
    strip::write(&mut text, &memory, width);
    text
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    name: String,
    extent: u64,
    stride: u64,
    axis: Option<Axis>,
}

/// The axes of all components that have more than one position.
struct Axes {
    /// The axes that are equal in all components, the outermost first.
    shared: Vec<Step>,
    /// The name, the offset and the other axes of each component.
    apart: Vec<(String, u64, Vec<Step>)>,
}

impl Axes {
    fn of(memory: &Memory<'_>) -> Self {
        let mut each: Vec<(String, u64, Vec<Step>)> = Vec::new();
        for part in &memory.parts {
            let dims = part.view.view.dims.iter().filter(|dim| dim.extent > 1);
            let steps = dims.filter_map(|dim| {
                let name = match dim.axis {
                    Axis::Layer => "layer",
                    Axis::Block => "block",
                    Axis::State => memory.state(),
                    Axis::Unit => part.unit.as_deref().unwrap_or_default(),
                    Axis::Byte => return None,
                    axis => part.content.iter().find(|(of, _)| *of == axis)?.1,
                };
                Some(Step { name: name.to_owned(), extent: dim.extent, stride: dim.stride, axis: Some(dim.axis) })
            });
            let mut steps: Vec<Step> = steps.collect();
            steps.sort_by_key(|step| std::cmp::Reverse(step.stride));
            each.push((part.name.to_owned(), part.view.view.offset, steps));
        }
        let Some((_, start, first)) = each.first().cloned() else {
            return Self { shared: Vec::new(), apart: Vec::new() };
        };
        let step = each.get(1).map_or(0, |second| second.1.saturating_sub(start));
        let even = |(i, one): (usize, &(String, u64, Vec<Step>))| one.2 == first && one.1 == start + i as u64 * step;
        if each.iter().enumerate().all(even) {
            // Equal components at equal distances: the choice of component is an axis as well.
            let mut shared = first;
            if each.len() > 1 {
                let names: Vec<&str> = each.iter().map(|(name, ..)| name.as_str()).collect();
                shared.push(Step { name: names.join(", "), extent: each.len() as u64, stride: step, axis: None });
                shared.sort_by_key(|step| std::cmp::Reverse(step.stride));
            }
            return Self { shared, apart: Vec::new() };
        }
        let is_shared = |step: &&Step| each.iter().all(|(_, _, steps)| steps.contains(step));
        let shared: Vec<Step> = first.iter().take_while(is_shared).cloned().collect();
        for (_, offset, steps) in &mut each {
            *offset -= start;
            steps.retain(|step| !shared.contains(step));
        }
        Self { shared, apart: each }
    }

    fn write(&self, text: &mut String, width: usize) {
        let names = self.shared.iter().map(|step| step.name.chars().count());
        let names = names.max().unwrap_or(0);
        let extents = self.shared.iter().map(|step| grouped(step.extent).len());
        let extents = extents.max().unwrap_or(0);
        for step in &self.shared {
            let (name, extent) = (&step.name, grouped(step.extent));
            let _ = writeln!(text, "{INDENT}{name:names$}  {extent:>extents$}  {}", step.every());
        }
        for (name, offset, steps) in &self.apart {
            let mut line = format!("{INDENT}{name} from {}", exact_bytes(*offset));
            for (index, step) in steps.iter().enumerate() {
                line.push(if index == 0 { ':' } else { ',' });
                let step = format!("{} {} {}", step.name, grouped(step.extent), step.every());
                // Leaves room for a comma.
                if line.chars().count() + step.chars().count() + 2 > width {
                    let _ = writeln!(text, "{line}");
                    line = format!("{INDENT}  {step}");
                } else {
                    line.push(' ');
                    line.push_str(&step);
                }
            }
            let _ = writeln!(text, "{line}");
        }
    }
}

impl Step {
    fn every(&self) -> String {
        match self.axis {
            Some(Axis::Layer) if self.stride >= 1 << transload::layout::ALLOCATION_BITS => {
                "each in an allocation of its own".to_owned()
            }
            _ => format!("every {}", exact_bytes(self.stride)),
        }
    }
}
