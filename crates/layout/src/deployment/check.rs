//! The checks that turn a typed document into a deployment.

use std::collections::HashMap;
use std::ops::Range;

use super::{Deployment, Group, LayerSet, Stage};
use crate::bounds::{MAX_BLOCKS, MAX_DCP, MAX_GROUPS, MAX_LAYERS, MAX_RANKS, MAX_SIZE, MAX_SPECS};
use crate::document::{Document, Faults, GroupDocument, Origin, Report, StageDocument, Value, parse_order};
use crate::order::Order;
use crate::placement::{Field, Placement, PlacementError, Shape};
use crate::spec::{FieldValue, Spec};
use crate::view::MAX_ALLOCATION_BYTES;

impl Deployment {
    /// Reads and checks a document.
    ///
    /// # Errors
    /// All faults of the document, each with its key path.
    pub fn from_value(value: &Value) -> Result<Self, Faults> {
        let mut report = Report::default();
        let checked =
            Document::read(value, &mut report).and_then(|(document, origins)| check(document, &origins, &mut report));
        report.unless(checked)
    }

    /// Checks a document that is already typed.
    ///
    /// # Errors
    /// All faults of the document, each with its key path.
    pub fn from_document(document: Document) -> Result<Self, Faults> {
        let mut report = Report::default();
        let origins = (0..document.groups.len()).map(|position| Origin { position, ..Origin::default() });
        let origins: Vec<Origin> = origins.collect();
        let checked = check(document, &origins, &mut report);
        report.unless(checked)
    }
}

/// Checks everything and reports every fault. Returns `None` if too much is wrong to build a deployment.
/// Each group has its `origin`. A field that is already reported as faulty is not checked again, nor against other
/// fields.
fn check(document: Document, origins: &[Origin], report: &mut Report) -> Option<Deployment> {
    // Use 1 in place of a faulty size, so that the rest is checked too.
    let mut tp = report.in_range("tp", document.tp, 1..=MAX_RANKS).unwrap_or(1);
    let pp = report.in_range("pp", document.pp, 1..=MAX_RANKS);
    let ranks = tp * pp.unwrap_or(1);
    if ranks > MAX_RANKS {
        report.add("tp", format!("tp * pp is {ranks}, more than {MAX_RANKS}"));
        tp = 1;
    }
    let dcp = report.in_range("dcp", document.dcp, 1..=MAX_DCP);
    let interleave = report.in_range("interleave", document.interleave, 1..=MAX_SIZE);
    let deal = match (dcp, interleave) {
        // With a faulty tp, `tp` is 1.
        _ if report.has("tp") => (1, 1),
        (Some(dcp), Some(_)) if !tp.is_multiple_of(dcp) => {
            report.add_once("dcp".to_owned(), format!("must divide tp, which is {tp}, and not be {dcp}"));
            (1, 1)
        }
        (Some(dcp), Some(interleave)) => (dcp, interleave),
        _ => (1, 1),
    };
    report.at_most("group", document.groups.len(), MAX_GROUPS);
    let groups = || document.groups.iter().zip(origins).take(MAX_GROUPS);
    let mut layers = Vec::new();
    for (group, origin) in groups() {
        let parsed = LayerSet::parse(&group.layers);
        let path = format!("group[{}].layers", origin.position);
        layers.push(parsed.map_err(|problem| report.add_once(path, problem)).ok());
    }
    let stages = stages(&document, pp, &layers, report);
    let mut checked = Vec::new();
    for (i, ((group, origin), layers)) in groups().zip(layers).enumerate() {
        let path = format!("group[{}]", origin.position);
        check_name(&document.groups[..i], group, &path, report);
        let check = GroupCheck { group, origin: *origin, tp: tp as u32, deal, path };
        checked.extend(check.run(layers, stages.as_deref(), report));
    }
    if document.groups.is_empty() {
        report.lacks_table("group");
    }
    Some(Deployment { tp: tp as u32, stages: stages?, groups: checked, document })
}

/// Returns the layers of each pipeline stage, from the document or split as in vLLM: evenly and in order. Remaining
/// layers go one each to the stages before the last, from the back.
/// Returns `None` if the numbers or the groups' layers are faulty.
fn stages(
    document: &Document,
    pp: Option<u64>,
    layers: &[Option<LayerSet>],
    report: &mut Report,
) -> Option<Vec<Range<u32>>> {
    let highest = layers.iter().flatten().flat_map(|set| set.ids().last());
    let highest = highest.max().map_or(0, |id| u64::from(*id) + 1);
    if let Some(total) = document.num_layers
        && !report.has("num_layers")
        && (total < highest || total > MAX_LAYERS)
    {
        let problem = format!("must be from {highest} (the groups' layers) to {MAX_LAYERS}, not {total}");
        report.add("num_layers", problem);
    }
    let known = layers.iter().all(Option::is_some) || document.num_layers.is_some();
    let total = document.num_layers.unwrap_or(highest);
    let fields = ["pp", "pp_layers", "num_layers"];
    let pp = pp.filter(|_| known && !fields.iter().any(|field| report.has(field)))?;
    let counts = match &document.pp_layers {
        Some(counts) => {
            let sum = counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
            if counts.len() as u64 != pp {
                let problem = format!("has {} entries, but pp is {pp}", counts.len());
                report.add("pp_layers", problem);
                return None;
            }
            if sum != Some(total) {
                let sum = sum.map_or("too much".to_owned(), |sum| sum.to_string());
                report.add("pp_layers", format!("sums to {sum}, but there are {total} layers"));
                return None;
            }
            counts.clone()
        }
        None => {
            let mut counts = vec![total / pp; pp as usize];
            let remaining = (total % pp) as usize;
            for count in counts.iter_mut().rev().skip(1).take(remaining) {
                *count += 1;
            }
            counts
        }
    };
    let mut start = 0;
    let stages = counts.iter().map(|count| {
        let stage = start..start + *count as u32;
        start = stage.end;
        stage
    });
    Some(stages.collect())
}

fn check_name(earlier: &[GroupDocument], group: &GroupDocument, path: &str, report: &mut Report) {
    let name = &group.name;
    let path = format!("{path}.name");
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        let problem = "must be 1 to 64 letters, digits or any of . _ - + /";
        report.add_once(path, problem);
    } else if earlier.iter().any(|other| other.name == *name) {
        report.add_once(path, format!("\"{name}\" is the name of an earlier group"));
    }
}

struct GroupCheck<'a> {
    group: &'a GroupDocument,
    origin: Origin,
    tp: u32,
    /// The deployment's `dcp` and `interleave`.
    deal: (u64, u64),
    path: String,
}

impl GroupCheck<'_> {
    /// Checks each field by itself and then, if there is no fault, how the fields fit together.
    fn run(&self, layers: Option<LayerSet>, stages: Option<&[Range<u32>]>, report: &mut Report) -> Option<Group> {
        let (group, path) = (self.group, &self.path);
        let before = report.count();
        report.in_range(&format!("{path}.block_size"), group.block_size, 1..=MAX_SIZE);
        report.in_range(&format!("{path}.num_blocks"), group.num_blocks, 1..=MAX_BLOCKS);
        // Stages may have others in place of these, so that no placement checks them.
        report.in_range(&format!("{path}.offset"), group.offset, 0..=MAX_ALLOCATION_BYTES);
        for (field, stride) in [(Field::BlockStride, group.block_stride), (Field::LayerStride, group.layer_stride)] {
            stride.map(|stride| report.in_range(&format!("{path}.{field}"), stride, 1..=MAX_ALLOCATION_BYTES));
        }
        let order = match group.order.as_deref().map(parse_order) {
            None => None,
            Some(Ok(order)) => Some(order),
            Some(Err(problem)) => {
                report.add_once(format!("{path}.order"), problem);
                None
            }
        };
        self.specs(report);
        if self.origin.faulty || report.count() > before {
            return None;
        }
        if self.is_dealt() {
            self.deal(report);
        }
        if report.count() > before {
            return None;
        }
        self.place(layers?, stages?, order, report)
    }

    fn specs(&self, report: &mut Report) {
        let specs = &self.group.specs;
        let path = format!("{}.spec", self.path);
        for (i, spec) in specs.iter().take(MAX_SPECS).enumerate() {
            check_spec(spec, self.tp, &format!("{path}[{i}]"), report);
        }
        let mixed = specs.iter().any(Spec::is_recurrent) && !specs.iter().all(Spec::is_recurrent);
        if mixed && !report.has(&path) {
            let problem = "recurrent state and per-token caches cannot share a block table";
            report.add(path.clone(), problem);
        }
        report.at_most(&path, specs.len(), MAX_SPECS);
        if specs.is_empty() {
            report.lacks_table(&path);
        }
    }

    fn is_dealt(&self) -> bool {
        self.deal.0 > 1 && self.group.is_dealt()
    }

    /// Checks that the tokens of the group can be dealt out: each unit is on enough ranks, and stripes fill blocks.
    fn deal(&self, report: &mut Report) {
        let ((dcp, interleave), tp, path) = (self.deal, u64::from(self.tp), &self.path);
        let size = self.group.block_size;
        if !size.is_multiple_of(interleave) {
            let problem = format!("must divide the block_size of {path}, which is {size}, and not be {interleave}");
            report.add_once("interleave".to_owned(), problem);
        }
        for (i, spec) in self.group.specs.iter().enumerate() {
            let path = format!("{path}.spec[{i}]");
            if spec.without_window() != *spec {
                report.add(
                    path.clone(),
                    "has a window, so its tokens cannot be dealt out (dcp): its group must have tokens = \"whole\"",
                );
            }
            if spec.tokens_per_state().is_some_and(|tokens| !interleave.is_multiple_of(tokens)) {
                let problem = format!("must be a multiple of the tokens_per_state of {path}, and not {interleave}");
                report.add_once("interleave".to_owned(), problem);
            }
            let components = spec.geometry().components;
            let scarce = components.iter().find(|one| !tp.is_multiple_of(one.partition.units().saturating_mul(dcp)));
            if let Some(component) = scarce {
                let (field, units) = (component.field, component.partition.units());
                let problem = format!("{units} cannot each be on a multiple of dcp = {dcp} ranks, since tp is {tp}");
                report.add(format!("{path}.{field}"), problem);
            }
        }
    }

    fn place(
        &self,
        layers: LayerSet,
        stages: &[Range<u32>],
        order: Option<Order>,
        report: &mut Report,
    ) -> Option<Group> {
        let group = self.group;
        if !group.stages.is_empty() && group.stages.len() != stages.len() {
            let problem = format!("has {} entries, but pp is {}", group.stages.len(), stages.len());
            report.add_once(format!("{}.stage", self.path), problem);
            return None;
        }
        let mut placed = Vec::with_capacity(stages.len());
        let mut placements = Vec::new();
        let mut known = HashMap::new();
        for (number, stage) in stages.iter().enumerate() {
            let slots = layers.ids().partition_point(|id| *id < stage.start)
                ..layers.ids().partition_point(|id| *id < stage.end);
            let own = group.stages.get(number);
            // The placement depends only on these two, so stages that are alike in them share one.
            let placement = match known.get(&(slots.len(), own)).copied() {
                Some(index) => index,
                None => {
                    match self.placement(order.as_ref(), slots.len(), own.unwrap_or(&StageDocument::default())) {
                        Ok(placement) => placements.push(placement),
                        Err(error) => {
                            self.blame(&error, number, report);
                            return None;
                        }
                    }
                    known.insert((slots.len(), own), placements.len() - 1);
                    placements.len() - 1
                }
            };
            placed.push(Stage { layers: slots, placement });
        }
        Some(Group {
            name: group.name.clone(),
            layers,
            block_size: group.block_size,
            num_blocks: group.num_blocks as u32,
            dcp: if self.is_dealt() { self.deal.0 as u32 } else { 1 },
            interleave: if self.is_dealt() { self.deal.1 } else { group.block_size },
            order,
            allocation: group.allocation,
            specs: group.specs.clone(),
            draft: group.draft,
            tp: self.tp,
            stages: placed,
            placements,
        })
    }

    fn placement(&self, order: Option<&Order>, slots: usize, own: &StageDocument) -> Result<Placement, PlacementError> {
        let group = self.group;
        let shape = Shape {
            specs: &group.specs,
            order,
            allocation: group.allocation,
            tp: self.tp,
            // A stage without layers of this group is checked as if it had one, and holds nothing.
            layer_slots: slots.max(1) as u64,
            num_blocks: group.num_blocks,
            block_size: group.block_size,
            offset: own.offset.unwrap_or(group.offset),
            block_stride: own.block_stride.or(group.block_stride),
            layer_stride: own.layer_stride.or(group.layer_stride),
        };
        let placement = shape.place()?;
        Ok(match slots {
            0 => Placement { views: Vec::new(), allocations: 0, allocation_bytes: 0 },
            _ => placement,
        })
    }

    /// Reports a fault at the field where the document has the value, which may be the deployment's.
    fn blame(&self, error: &PlacementError, stage: usize, report: &mut Report) {
        let path = &self.path;
        let field = error.field();
        let of_stage = self.group.stages.get(stage).is_some_and(|own| match field {
            Field::Offset => own.offset.is_some(),
            Field::BlockStride => own.block_stride.is_some(),
            Field::LayerStride => own.layer_stride.is_some(),
            _ => false,
        });
        let inherited = match field {
            Field::Order => self.origin.inherits_order,
            Field::BlockSize => self.origin.inherits_block_size,
            Field::NumBlocks => self.origin.inherits_num_blocks,
            _ => false,
        };
        if inherited {
            report.add(field.to_string(), format!("{error} (in {path})"));
        } else if of_stage {
            report.add(format!("{path}.stage[{stage}].{field}"), error.to_string());
        } else {
            report.add(format!("{path}.{field}"), error.to_string());
        }
    }
}

fn check_spec(spec: &Spec, tp: u32, path: &str, report: &mut Report) {
    let fields = spec.identity();
    let head_dim = fields.iter().find(|(field, _)| *field == "head_dim");
    for (field, value) in &fields {
        // A v_head_dim equal to the head_dim is most likely a default, so report only the head_dim.
        let defaulted = *field == "v_head_dim" && head_dim.is_some_and(|(_, dim)| dim == value);
        if let (FieldValue::Number(number), false) = (value, defaulted) {
            report.in_range(&format!("{path}.{field}"), *number, 1..=MAX_SIZE);
        }
    }
    // A text document has no such field, so only a typed one can get here.
    if let Spec::Indexer(indexer) = spec
        && indexer.sliding_window.is_some()
    {
        report.add(format!("{path}.sliding_window"), "is not a field of an indexer");
    }
    if report.has(path) {
        return;
    }
    if let Spec::Mamba2Conv(conv) = spec
        && !conv.d_inner.is_multiple_of(conv.heads)
    {
        let problem = format!("{} is not a multiple of heads ({})", conv.d_inner, conv.heads);
        report.add(format!("{path}.d_inner"), problem);
        return;
    }
    let mut last = "";
    for component in spec.geometry().components {
        if let Err(error) = component.partition.per_rank(tp) {
            if component.field != last {
                report.add(format!("{path}.{}", component.field), error.to_string());
            }
            last = component.field;
        }
    }
}
