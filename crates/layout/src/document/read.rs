//! From a tree of values to a [`Document`]: types, defaults and inheritance.

use super::reader::{Faulty, Reader, closest};
use super::{Document, Faults, GroupDocument, SCHEMA, Value};
use crate::deployment::LayerSet;
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

/// What a group takes from the deployment unless it says otherwise.
struct Inherited {
    block_size: Option<u64>,
    num_blocks: Option<u64>,
    order: Option<String>,
}

impl Document {
    /// Reads the typed fields, noting all faults. A group that has any is left out; beside the
    /// document stand the positions that its groups have in the source.
    pub(crate) fn read(value: &Value, faults: &mut Faults) -> Option<(Self, Vec<usize>)> {
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
        let inherited = Inherited {
            block_size: reader.optional("block_size", faults).unwrap_or(Some(1)),
            num_blocks: reader.optional("num_blocks", faults).unwrap_or(Some(1)),
            order: read_order(&mut reader, faults),
        };
        let (mut groups, mut positions) = (Vec::new(), Vec::new());
        for (i, item) in reader.tables("group", faults).iter().enumerate() {
            if let Some(group) = read_group(format!("group[{i}]"), item, &inherited, faults) {
                groups.push(group);
                positions.push(i);
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
        Some((document, positions))
    }
}

fn read_pp_layers(reader: &mut Reader<'_>, faults: &mut Faults) -> Option<Vec<u64>> {
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

/// An order as text; a stride-order array becomes the text of the same order.
fn read_order(reader: &mut Reader<'_>, faults: &mut Faults) -> Option<String> {
    match reader.get("order")? {
        Value::Text(text) => return Some(text.clone()),
        Value::List(items) => {
            let indices: Option<Vec<u64>> = items
                .iter()
                .map(|item| match item {
                    Value::Integer(index) => u64::try_from(*index).ok(),
                    _ => None,
                })
                .collect();
            match Order::from_stride_order(&indices.unwrap_or_default()) {
                Ok(order) => return Some(order.to_string()),
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
    None
}

fn read_group(
    path: String,
    value: &Value,
    inherited: &Inherited,
    faults: &mut Faults,
) -> Option<GroupDocument> {
    let before = faults.0.len();
    let mut reader = Reader::new(path.clone(), value, faults)?;
    let name = reader.text("name", faults).map(str::to_owned);
    if name.is_none() && reader.get("name").is_none() {
        faults.add(
            reader.path("name"),
            "is missing: groups are matched by name",
        );
    }
    let layers = reader.text("layers", faults).map(str::to_owned);
    if layers.is_none() && reader.get("layers").is_none() {
        faults.add(
            reader.path("layers"),
            "is missing: global layer ids such as \"0-79\"",
        );
    }
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
        specs.extend(read_spec(format!("{path}.spec[{i}]"), item, faults));
    }
    // A recurrent cache has one state whatever a block holds.
    let recurrent = specs.iter().all(|spec| spec.tokens_per_state().is_none());
    let block_size = block_size.map(|own| {
        let size = own.or(inherited.block_size);
        if size.is_none() && recurrent {
            Some(1)
        } else {
            size
        }
    });
    let num_blocks = num_blocks.map(|own| own.or(inherited.num_blocks));
    for (key, size) in [("block_size", &block_size), ("num_blocks", &num_blocks)] {
        if matches!(size, Ok(None)) {
            faults.add(
                reader.path(key),
                "is missing: give it here or for the whole deployment",
            );
        }
    }
    reader.finish(faults);
    if faults.0.len() > before {
        // The checks of whole groups will not see this one, so its texts are looked at here.
        if let Some(Err(problem)) = layers.as_deref().map(LayerSet::parse) {
            faults.add(format!("{path}.layers"), problem);
        }
        if let Some(Err(error)) = order.as_deref().map(Order::parse) {
            faults.add(format!("{path}.order"), error.to_string());
        }
        return None;
    }
    Some(GroupDocument {
        name: name?,
        layers: layers?,
        block_size: block_size.ok()??,
        num_blocks: num_blocks.ok()??,
        // Pages of several specs have an order of their own.
        order: order.or_else(|| inherited.order.clone().filter(|_| specs.len() == 1)),
        allocation,
        offset: offset.ok()?,
        block_stride: block_stride.ok()?,
        layer_stride: layer_stride.ok()?,
        specs,
    })
}

fn read_spec(path: String, value: &Value, faults: &mut Faults) -> Option<Spec> {
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
        faulty: false,
    };
    let spec = fields.read(kind);
    let faulty = fields.faulty;
    let Some(spec) = spec else {
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
    (!faulty).then_some(spec)
}

/// Reads a spec's fields with placeholders where they are faulty, so that all faults are found.
struct SpecFields<'r, 'a, 'f> {
    reader: &'r mut Reader<'a>,
    faults: &'f mut Faults,
    faulty: bool,
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
            }),
            "compressed" => {
                let tokens_per_state = self.number("tokens_per_state");
                Spec::Compressed(self.scaled_latent(tokens_per_state))
            }
            "indexer" => {
                let tokens_per_state = self.optional("tokens_per_state").unwrap_or(1);
                Spec::Indexer(self.scaled_latent(tokens_per_state))
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

    fn scaled_latent(&mut self, tokens_per_state: u64) -> ScaledLatent {
        ScaledLatent {
            data_bytes: self.number("data_bytes"),
            scale_bytes: self.number("scale_bytes"),
            tokens_per_state,
        }
    }

    fn note<T>(&mut self, read: Result<T, Faulty>, placeholder: T) -> T {
        read.unwrap_or_else(|Faulty| {
            self.faulty = true;
            placeholder
        })
    }

    fn number(&mut self, key: &'static str) -> u64 {
        let read = self.reader.number(key, self.faults);
        self.note(read, 1)
    }

    fn optional(&mut self, key: &'static str) -> Option<u64> {
        let read = self.reader.optional(key, self.faults);
        self.note(read, None)
    }

    /// Taps of a convolution: `conv_states`, or `conv_kernel - 1`.
    fn conv_states(&mut self) -> u64 {
        let kernel = self.number("conv_kernel");
        match self.optional("conv_states") {
            Some(states) => states,
            None if kernel >= 2 => kernel - 1,
            None => {
                self.faulty = true;
                self.faults.add(
                    self.reader.path("conv_kernel"),
                    format!("has to be at least 2, since kernel - 1 states are kept, not {kernel}"),
                );
                1
            }
        }
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
        self.faulty = true;
        let found = value.map_or("missing".to_owned(), Value::describe);
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let problem = format!("has to be one of {}; it is {found}", all.join(", "));
        self.faults.add(self.reader.path(key), problem);
        None
    }
}
