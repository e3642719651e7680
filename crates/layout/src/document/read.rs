//! Conversion of a tree of values to a [`Document`]: types, defaults and inheritance.

use super::field::{Form, Need};
use super::kinds::read_spec;
use super::reader::{Faulty, Reader};
use super::{Document, GroupDocument, Origin, Report, SCHEMA, StageDocument, Value};
use crate::bounds::{MAX_BLOCKS, MAX_DCP, MAX_GROUPS, MAX_LAYERS, MAX_RANKS, MAX_SIZE, MAX_SPECS};
use crate::order::Order;
use crate::placement::Allocation;
use crate::spec::{Opaque, Spec};
use crate::view::MAX_ALLOCATION_BYTES;

/// Values that a group inherits from the deployment. `Err` stands for a faulty value, which is already reported.
pub(super) struct Inherited {
    block_size: Result<Option<u64>, Faulty>,
    num_blocks: Result<Option<u64>, Faulty>,
    order: Result<Option<String>, Faulty>,
}

impl Inherited {
    pub(super) const NOTHING: Self = Self { block_size: Ok(None), num_blocks: Ok(None), order: Ok(None) };
}

impl Document {
    /// Reads the typed fields and reports all faults. Faulty fields get placeholders, so that the rest can be checked.
    pub(crate) fn read(value: &Value, faults: &mut Report) -> Option<(Self, Vec<Origin>)> {
        Reader::read(String::new(), value, faults, |reader| Some(read_deployment(reader)))
    }
}

pub(super) fn read_deployment(reader: &mut Reader<'_, '_>) -> (Document, Vec<Origin>) {
    // Neither value is needed. The reader reports faults in them.
    let _ = reader.constant("schema", SCHEMA, "the form of this document");
    let _ = reader.optional_text("$schema", "this form's JSON Schema, for editors; not read");
    let name = reader.optional_text("name", "what messages call this side; default none");
    let model = reader.optional_text("model", "the model's name, for people; default none");
    let tp = reader.number_or("tp", 1, 1..=MAX_RANKS, "ranks of tensor parallelism");
    let pp = reader.number_or("pp", 1, 1..=MAX_RANKS, "stages of pipeline parallelism");
    let dcp = reader.number_or(
        "dcp",
        1,
        1..=MAX_DCP,
        "ranks that a sequence's tokens are dealt out to (decode context parallelism)",
    );
    let interleave =
        reader.number_or("interleave", 1, 1..=MAX_SIZE, "consecutive tokens that each of these ranks gets in its turn");
    let num_layers = reader.optional(
        "num_layers",
        1..=MAX_LAYERS,
        "layers of the whole model, shared out over the stages; default the highest layer id + 1",
    );
    let pp_layers = reader.numbers(
        "pp_layers",
        0..=MAX_LAYERS,
        "layers of each stage; default evenly, left-over layers one each to the stages before the last, \
         backwards",
    );
    let inherited = Inherited {
        block_size: reader.optional(
            "block_size",
            1..=MAX_SIZE,
            "tokens per block, for groups that do not say it themselves",
        ),
        num_blocks: reader.optional(
            "num_blocks",
            1..=MAX_BLOCKS,
            "blocks on every rank, for groups that do not say it themselves",
        ),
        order: read_order(
            reader,
            "physical order, outermost axis first, for groups of one spec that do not say it \
             themselves; default LBSHC for most kinds",
        ),
    };
    let groups = reader.tables(
        "group",
        Need::Required,
        MAX_GROUPS,
        "layers with the same specs and the same block table; one table each",
        |group| Some(read_group(group, &inherited)),
    );
    let groups = groups.into_iter().enumerate();
    let (groups, origins) = groups
        .filter_map(|(position, read)| {
            let (group, origin) = read?;
            Some((group, Origin { position, ..origin }))
        })
        .unzip();
    let owned = |text: Result<Option<&str>, Faulty>| text.unwrap_or(None).map(str::to_owned);
    let document = Document {
        name: owned(name).unwrap_or_default(),
        model: owned(model),
        tp: tp.unwrap_or(1),
        pp: pp.unwrap_or(1),
        dcp: dcp.unwrap_or(1),
        interleave: interleave.unwrap_or(1),
        num_layers: num_layers.unwrap_or(None),
        pp_layers: pp_layers.unwrap_or(None),
        groups,
    };
    (document, origins)
}

pub(super) fn read_group(reader: &mut Reader<'_, '_>, inherited: &Inherited) -> (GroupDocument, Origin) {
    let before = reader.faults();
    let name = reader.text("name", "the name by which groups of two sides are matched");
    let layers = reader.text("layers", "global layer ids, such as \"0-79\" or \"0,2,4-7\"");
    let block_size = reader.optional(
        "block_size",
        1..=MAX_SIZE,
        "tokens per block; default the deployment's. Recurrent specs need none",
    );
    let num_blocks = reader.optional("num_blocks", 1..=MAX_BLOCKS, "blocks on every rank; default the deployment's");
    let dealt = reader.name_or(
        "tokens",
        true,
        &[("dealt", true), ("whole", false)],
        "dealt out to the ranks of dcp, or the whole sequence on each; recurrent state is whole",
    );
    let order =
        read_order(reader, "physical order, outermost axis first; default the deployment's, and LB for several specs");
    let allocation = reader.name_or(
        "allocation",
        Allocation::One,
        &[("one", Allocation::One), ("per_layer", Allocation::PerLayer)],
        "one allocation for all layers of a rank, or one for each",
    );
    let offset = reader.number_or("offset", 0, 0..=MAX_ALLOCATION_BYTES, "bytes before the group in its allocation");
    let block_stride =
        reader.optional("block_stride", 1..=MAX_ALLOCATION_BYTES, "bytes from a block to the next; default no padding");
    let layer_stride =
        reader.optional("layer_stride", 1..=MAX_ALLOCATION_BYTES, "bytes from a layer to the next; default no padding");
    let stages = reader.tables(
        "stage",
        Need::Optional,
        MAX_RANKS as usize,
        "where the group is on each pipeline stage; default alike on all",
        |stage| Some(read_stage(stage)),
    );
    let draft = reader.flag(
        "draft",
        "whether its layers draft tokens that the model then checks: the other side need not have such a group",
    );
    let specs = reader.tables(
        "spec",
        Need::Required,
        MAX_SPECS,
        "what each layer caches; a block's page holds the specs one after another",
        read_spec,
    );

    // A recurrent cache has one state for any block size.
    let recurrent = |spec: &Option<Spec>| spec.as_ref().is_none_or(Spec::is_recurrent);
    let default = specs.iter().all(recurrent).then_some(1);
    let mut origin = Origin::default();
    let mut size = |key, own: Result<Option<u64>, Faulty>, deployment, default: Option<u64>| {
        let Ok(own) = own else {
            return (1, false);
        };
        match own.map_or(deployment, |own| Ok(Some(own))) {
            Ok(Some(size)) => (size, own.is_none()),
            Ok(None) => {
                if default.is_none() {
                    let problem = "is missing: give it here or for the whole deployment";
                    reader.fault(key, problem);
                }
                (default.unwrap_or(1), false)
            }
            Err(Faulty) => {
                origin.faulty = true;
                (1, true)
            }
        }
    };
    let block_size = size("block_size", block_size, inherited.block_size, default);
    let num_blocks = size("num_blocks", num_blocks, inherited.num_blocks, None);
    (origin.inherits_block_size, origin.inherits_num_blocks) = (block_size.1, num_blocks.1);
    let order = match (order, &inherited.order) {
        (Ok(Some(own)), _) => Some(own),
        // Pages of several specs have a fixed order.
        _ if specs.len() != 1 => None,
        (Ok(None), Ok(order)) => {
            origin.inherits_order = order.is_some();
            order.clone()
        }
        (Ok(None), Err(Faulty)) => {
            origin.faulty = true;
            None
        }
        (Err(Faulty), _) => None,
    };
    let placeholder = || Spec::Opaque(Opaque { heads: 1, entry_bytes: 1, tokens_per_state: 1, packed_heads: None });
    let group = GroupDocument {
        name: name.unwrap_or_default().to_owned(),
        layers: layers.unwrap_or_default().to_owned(),
        block_size: block_size.0,
        num_blocks: num_blocks.0,
        dealt: dealt.unwrap_or(true),
        order,
        allocation: allocation.unwrap_or_default(),
        offset: offset.unwrap_or(0),
        block_stride: block_stride.unwrap_or(None),
        layer_stride: layer_stride.unwrap_or(None),
        stages: stages.into_iter().map(Option::unwrap_or_default).collect(),
        specs: specs.into_iter().map(|spec| spec.unwrap_or_else(placeholder)).collect(),
        draft: draft.unwrap_or(false),
    };
    origin.faulty |= reader.faults() > before;
    (group, origin)
}

pub(super) fn read_stage(reader: &mut Reader<'_, '_>) -> StageDocument {
    let mut bytes = |key, least, about| reader.optional(key, least..=MAX_ALLOCATION_BYTES, about).unwrap_or(None);
    StageDocument {
        offset: bytes("offset", 0, "bytes before the group in its allocation; default the group's"),
        block_stride: bytes("block_stride", 1, "bytes from a block to the next; default the group's"),
        layer_stride: bytes("layer_stride", 1, "bytes from a layer to the next; default the group's"),
    }
}

/// Reads an order as text. A stride-order array is converted to the text of the same order.
fn read_order(reader: &mut Reader<'_, '_>, about: &'static str) -> Result<Option<String>, Faulty> {
    let parsed = match reader.request("order", Form::Order, Need::Optional, about) {
        None => return Ok(None),
        Some(Value::Text(text)) => parse_order(text).map(|_| text.clone()),
        Some(Value::List(items)) => {
            let indices: Option<Vec<u64>> = items
                .iter()
                .map(|item| match item {
                    Value::Integer(index) => u64::try_from(*index).ok(),
                    _ => None,
                })
                .collect();
            Order::from_stride_order(&indices.unwrap_or_default())
                .map(|order| order.to_string())
                .map_err(|error| error.to_string())
        }
        Some(other) => Err(format!("must be an order such as \"LBSHC\", not {}", other.describe())),
    };
    parsed.map(Some).map_err(|problem| reader.fault("order", problem))
}

pub(crate) fn parse_order(text: &str) -> Result<Order, String> {
    let shown = Value::Text(text.to_owned()).describe();
    Order::parse(text).map_err(|error| format!("{shown}: {error}"))
}
