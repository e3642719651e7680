//! From a tree of values to a [`Document`]: types, defaults and inheritance.

use super::reader::{Faulty, Reader, closest};
use super::{Document, GroupDocument, Origin, Report, SCHEMA, Value};
use crate::deployment::{MAX_BLOCKS, MAX_SIZE};
use crate::dtype::Dtype;
use crate::order::Order;
use crate::placement::Allocation;
use crate::spec::{
    Attention, ConvLayout, GdnConv, GdnSsm, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm,
    Mla, Opaque, ScaledLatent, Spec,
};

/// The kinds of spec, as documents name them.
const KINDS: [&str; 12] = [
    "attention",
    "mla",
    "compressed",
    "indexer",
    "opaque",
    "mamba2_conv",
    "mamba2_ssm",
    "gdn_conv",
    "gdn_ssm",
    "mamba1_conv",
    "mamba1_ssm",
    "linear",
];

/// What a group takes from the deployment unless it says otherwise; `Err` where that is faulty, which
/// is reported there.
struct Inherited {
    block_size: Result<Option<u64>, Faulty>,
    num_blocks: Result<Option<u64>, Faulty>,
    order: Result<Option<String>, Faulty>,
}

impl Document {
    /// Reads the typed fields, noting all faults. Where there is one, something harmless stands in, so
    /// that the rest can be checked.
    pub(crate) fn read(value: &Value, faults: &mut Report) -> Option<(Self, Vec<Origin>)> {
        let mut reader = Reader::new(String::new(), value, faults)?;
        match reader.get("schema") {
            Some(Value::Text(schema)) if schema == SCHEMA => {}
            Some(other) => {
                let problem = format!("has to be \"{SCHEMA}\", not {}", other.describe());
                faults.add("schema", problem);
            }
            None => faults.add("schema", format!("is missing: schema = \"{SCHEMA}\"")),
        }
        let name = reader.text("name", faults).unwrap_or("").to_owned();
        let model = reader.text("model", faults).map(str::to_owned);
        let tp = reader.number_or("tp", 1, faults);
        let pp = reader.number_or("pp", 1, faults);
        let num_layers = reader.optional("num_layers", faults);
        let pp_layers = read_pp_layers(&mut reader, faults);
        let mut size = |key, most| {
            let Some(size) = reader.optional(key, faults)? else {
                return Ok(None);
            };
            faults.in_range(key, size, most).map(Some).ok_or(Faulty)
        };
        let (block_size, num_blocks) =
            (size("block_size", MAX_SIZE), size("num_blocks", MAX_BLOCKS));
        let inherited = Inherited {
            block_size,
            num_blocks,
            order: read_order(&mut reader, faults).and_then(|order| {
                let parsed = order
                    .as_deref()
                    .map_or(Ok(()), |text| parse_order(text).map(drop));
                match parsed {
                    Ok(()) => Ok(order),
                    Err(problem) => {
                        faults.add("order", problem);
                        Err(Faulty)
                    }
                }
            }),
        };
        let (mut groups, mut origins) = (Vec::new(), Vec::new());
        for (position, item) in reader.tables("group", faults).iter().enumerate() {
            let path = format!("group[{position}]");
            if let Some((group, origin)) = read_group(path, item, &inherited, faults) {
                groups.push(group);
                origins.push(Origin { position, ..origin });
            }
        }
        reader.finish(faults);
        let document = Document {
            name,
            model,
            tp: tp.unwrap_or(1),
            pp: pp.unwrap_or(1),
            num_layers: num_layers.unwrap_or(None),
            pp_layers,
            groups,
        };
        Some((document, origins))
    }
}

fn read_pp_layers(reader: &mut Reader<'_>, faults: &mut Report) -> Option<Vec<u64>> {
    let Value::List(items) = reader.get("pp_layers")? else {
        faults.add("pp_layers", "has to be a list of layer counts, as [40, 40]");
        return None;
    };
    let mut layers = Vec::new();
    for item in items {
        match item {
            Value::Integer(count) if u64::try_from(*count).is_ok() => layers.push(*count as u64),
            other => {
                let problem = format!("is a list of layer counts; {} is none", other.describe());
                faults.add("pp_layers", problem);
                return None;
            }
        }
    }
    Some(layers)
}

/// Reads the text of an order; what is wrong with it, in words.
pub(crate) fn parse_order(text: &str) -> Result<Order, String> {
    let shown = Value::Text(text.to_owned()).describe();
    Order::parse(text).map_err(|error| format!("{shown}: {error}"))
}

/// An order as text; a stride-order array becomes the text of the same order.
fn read_order(reader: &mut Reader<'_>, faults: &mut Report) -> Result<Option<String>, Faulty> {
    let Some(order) = reader.get("order") else {
        return Ok(None);
    };
    match order {
        Value::Text(text) => return Ok(Some(text.clone())),
        Value::List(items) => {
            let indices: Option<Vec<u64>> = items
                .iter()
                .map(|item| match item {
                    Value::Integer(index) => u64::try_from(*index).ok(),
                    _ => None,
                })
                .collect();
            match Order::from_stride_order(&indices.unwrap_or_default()) {
                Ok(order) => return Ok(Some(order.to_string())),
                Err(error) => faults.add(reader.path("order"), error.to_string()),
            }
        }
        other => {
            let problem = format!(
                "has to be an order such as \"LBSHC\", not {}",
                other.describe()
            );
            faults.add(reader.path("order"), problem);
        }
    }
    Err(Faulty)
}

fn read_group(
    path: String,
    value: &Value,
    inherited: &Inherited,
    faults: &mut Report,
) -> Option<(GroupDocument, Origin)> {
    let before = faults.count();
    let mut reader = Reader::new(path.clone(), value, faults)?;
    let mut text = |key, missing| match reader.text(key, faults) {
        Some(text) => text.to_owned(),
        None => {
            faults.add_once(reader.path(key), missing);
            String::new()
        }
    };
    let name = text("name", "is missing: groups are matched by name");
    let layers = text("layers", "is missing: global layer ids such as \"0-79\"");
    let block_size = reader.optional("block_size", faults);
    let num_blocks = reader.optional("num_blocks", faults);
    let order = read_order(&mut reader, faults);
    let allocation = match reader.text("allocation", faults) {
        None | Some("one") => Allocation::One,
        Some("per_layer") => Allocation::PerLayer,
        Some(other) => {
            let problem = format!("has to be \"one\" or \"per_layer\", not \"{other}\"");
            faults.add(reader.path("allocation"), problem);
            Allocation::One
        }
    };
    let offset = reader.number_or("offset", 0, faults);
    let block_stride = reader.optional("block_stride", faults);
    let layer_stride = reader.optional("layer_stride", faults);
    let mut specs = Vec::new();
    for (i, item) in reader.tables("spec", faults).iter().enumerate() {
        specs.push(read_spec(format!("{path}.spec[{i}]"), item, faults));
    }
    reader.finish(faults);

    // A recurrent cache has one state whatever a block holds.
    let recurrent = |spec: &Option<Spec>| {
        let spec = spec.as_ref();
        spec.is_none_or(|spec| spec.tokens_per_state().is_none())
    };
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
                    faults.add(format!("{path}.{key}"), problem);
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
        // Pages of several specs have an order of their own.
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
    let placeholder = || {
        Spec::Opaque(Opaque {
            heads: 1,
            entry_bytes: 1,
            tokens_per_state: 1,
            packed_heads: None,
        })
    };
    let group = GroupDocument {
        name,
        layers,
        block_size: block_size.0,
        num_blocks: num_blocks.0,
        order,
        allocation,
        offset: offset.unwrap_or(0),
        block_stride: block_stride.unwrap_or(None),
        layer_stride: layer_stride.unwrap_or(None),
        specs: specs
            .into_iter()
            .map(|spec| spec.unwrap_or_else(placeholder))
            .collect(),
    };
    origin.faulty |= faults.count() > before;
    Some((group, origin))
}

/// A spec, with something harmless where a field is faulty; `None` where its kind is not known.
fn read_spec(path: String, value: &Value, faults: &mut Report) -> Option<Spec> {
    let mut reader = Reader::new(path, value, faults)?;
    let kind = match reader.get("kind") {
        Some(Value::Text(kind)) => kind.as_str(),
        other => {
            let found = other.map_or("missing".to_owned(), Value::describe);
            let problem = format!("has to be one of {}; it is {found}", KINDS.join(", "));
            faults.add(reader.path("kind"), problem);
            return None;
        }
    };
    let mut fields = SpecFields {
        reader: &mut reader,
        faults,
    };
    let Some(spec) = fields.read(kind) else {
        let close = closest(kind, &KINDS)
            .map(|close| format!("; did you mean \"{close}\"?"))
            .unwrap_or_else(|| format!("; the kinds are {}", KINDS.join(", ")));
        faults.add(
            reader.path("kind"),
            format!("\"{kind}\" is no kind of spec{close}"),
        );
        return None;
    };
    reader.finish(faults);
    Some(spec)
}

/// Reads a spec's fields with placeholders where they are faulty, so that all faults are found.
struct SpecFields<'r, 'a, 'f> {
    reader: &'r mut Reader<'a>,
    faults: &'f mut Report,
}

impl SpecFields<'_, '_, '_> {
    fn read(&mut self, kind: &str) -> Option<Spec> {
        Some(match kind {
            "attention" => {
                let head_dim = self.number("head_dim");
                Spec::Attention(Attention {
                    heads: self.number("heads"),
                    head_dim,
                    v_head_dim: self.optional("v_head_dim").unwrap_or(head_dim),
                    dtype: self.dtype(),
                    sliding_window: self.optional("sliding_window"),
                    chunk_size: self.optional("chunk_size"),
                })
            }
            "mla" => Spec::Mla(Mla {
                latent: self.number("latent"),
                dtype: self.dtype(),
                sliding_window: self.optional("sliding_window"),
            }),
            "compressed" => {
                let tokens_per_state = self.number("tokens_per_state");
                let sliding_window = self.optional("sliding_window");
                Spec::Compressed(self.scaled_latent(tokens_per_state, sliding_window))
            }
            "indexer" => {
                let tokens_per_state = self.optional("tokens_per_state").unwrap_or(1);
                Spec::Indexer(self.scaled_latent(tokens_per_state, None))
            }
            "opaque" => Spec::Opaque(Opaque {
                heads: self.number("heads"),
                entry_bytes: self.number("entry_bytes"),
                tokens_per_state: self.optional("tokens_per_state").unwrap_or(1),
                packed_heads: self.optional("packed_heads"),
            }),
            "mamba2_conv" => Spec::Mamba2Conv(Mamba2Conv {
                d_inner: self.number("d_inner"),
                heads: self.number("heads"),
                groups: self.number("groups"),
                state_size: self.number("state_size"),
                conv_states: self.conv_states(),
                dtype: self.dtype(),
                conv_layout: self.conv_layout(),
            }),
            "mamba2_ssm" => Spec::Mamba2Ssm(Mamba2Ssm {
                heads: self.number("heads"),
                head_dim: self.number("head_dim"),
                state_size: self.number("state_size"),
                dtype: self.dtype(),
            }),
            "gdn_conv" => Spec::GdnConv(GdnConv {
                key_heads: self.number("key_heads"),
                key_head_dim: self.number("key_head_dim"),
                value_heads: self.number("value_heads"),
                value_head_dim: self.number("value_head_dim"),
                conv_states: self.conv_states(),
                dtype: self.dtype(),
                conv_layout: self.conv_layout(),
            }),
            "gdn_ssm" => Spec::GdnSsm(GdnSsm {
                value_heads: self.number("value_heads"),
                value_head_dim: self.number("value_head_dim"),
                key_head_dim: self.number("key_head_dim"),
                dtype: self.dtype(),
            }),
            "mamba1_conv" => Spec::Mamba1Conv(Mamba1Conv {
                d_inner: self.number("d_inner"),
                conv_states: self.conv_states(),
                dtype: self.dtype(),
                conv_layout: self.conv_layout(),
            }),
            "mamba1_ssm" => Spec::Mamba1Ssm(Mamba1Ssm {
                d_inner: self.number("d_inner"),
                state_size: self.number("state_size"),
                dtype: self.dtype(),
            }),
            "linear" => {
                let head_dim = self.number("head_dim");
                Spec::Linear(Linear {
                    heads: self.number("heads"),
                    head_dim,
                    v_head_dim: self.optional("v_head_dim").unwrap_or(head_dim),
                    dtype: self.dtype(),
                })
            }
            _ => return None,
        })
    }

    fn scaled_latent(
        &mut self,
        tokens_per_state: u64,
        sliding_window: Option<u64>,
    ) -> ScaledLatent {
        ScaledLatent {
            data_bytes: self.number("data_bytes"),
            scale_bytes: self.number("scale_bytes"),
            tokens_per_state,
            sliding_window,
        }
    }

    fn number(&mut self, key: &'static str) -> u64 {
        self.reader.number(key, self.faults).unwrap_or(1)
    }

    fn optional(&mut self, key: &'static str) -> Option<u64> {
        self.reader.optional(key, self.faults).unwrap_or(None)
    }

    /// Taps of a convolution: `conv_states`, or `conv_kernel - 1`.
    fn conv_states(&mut self) -> u64 {
        let kernel = self.reader.number("conv_kernel", self.faults);
        let kernel = kernel.ok().filter(|kernel| {
            let fits = (2..=MAX_SIZE).contains(kernel);
            if !fits {
                let problem = format!(
                    "has to be from 2 to {MAX_SIZE}, since kernel - 1 states are kept, not {kernel}"
                );
                self.faults.add(self.reader.path("conv_kernel"), problem);
            }
            fits
        });
        let states = self.optional("conv_states");
        states.unwrap_or(kernel.map_or(1, |kernel| kernel - 1))
    }

    fn dtype(&mut self) -> Dtype {
        self.named("dtype", &Dtype::ALL.map(|(dtype, name)| (name, dtype)))
            .unwrap_or(Dtype::U8)
    }

    fn conv_layout(&mut self) -> ConvLayout {
        self.named(
            "conv_layout",
            &[("DS", ConvLayout::Ds), ("SD", ConvLayout::Sd)],
        )
        .unwrap_or(ConvLayout::Sd)
    }

    /// One of a few names, which has to be there.
    fn named<T: Copy>(&mut self, key: &'static str, names: &[(&str, T)]) -> Option<T> {
        let value = self.reader.get(key);
        if let Some(Value::Text(text)) = value
            && let Some((_, named)) = names.iter().find(|(name, _)| name == text)
        {
            return Some(*named);
        }
        let found = value.map_or("missing".to_owned(), Value::describe);
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let problem = format!("has to be one of {}; it is {found}", all.join(", "));
        self.faults.add(self.reader.path(key), problem);
        None
    }
}
