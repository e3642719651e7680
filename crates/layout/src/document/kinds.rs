//! The kinds of spec in documents, with their fields.

use super::near::closest;
use super::reader::Reader;
use super::value::Value;
use crate::bounds::MAX_SIZE;
use crate::dtype::Dtype;
use crate::spec::{
    Attention, ConvLayout, GdnConv, GdnSsm, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm, Mla, Opaque,
    ScaledLatent, Spec,
};

pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    fields: fn(&mut Reader<'_, '_>) -> Spec,
}

pub(super) static KINDS: [Kind; 12] = [
    Kind {
        name: "attention",
        about: "keys and values of every token, for every KV head (MHA, GQA, MQA)",
        fields: attention,
    },
    Kind {
        name: "mla",
        about: "multi-head latent attention: one latent vector per token, whole on every rank",
        fields: mla,
    },
    Kind {
        name: "compressed",
        about: "compressed attention (DeepSeek V4): one state for several tokens, data and scales",
        fields: compressed,
    },
    Kind {
        name: "indexer",
        about: "index keys of sparse attention (DeepSeek V3.2 and V4): data and scales",
        fields: indexer,
    },
    Kind {
        name: "opaque",
        about: "bytes that only the engine understands, in entries that can be told apart",
        fields: opaque,
    },
    Kind { name: "mamba2_conv", about: "convolution state of Mamba2: x, B and C", fields: mamba2_conv },
    Kind { name: "mamba2_ssm", about: "state-space state of Mamba2", fields: mamba2_ssm },
    Kind { name: "gdn_conv", about: "convolution state of a gated delta net: q, k and v", fields: gdn_conv },
    Kind { name: "gdn_ssm", about: "recurrent state of a gated delta net", fields: gdn_ssm },
    Kind { name: "mamba1_conv", about: "convolution state of Mamba1", fields: mamba1_conv },
    Kind { name: "mamba1_ssm", about: "state-space state of Mamba1", fields: mamba1_ssm },
    Kind { name: "linear", about: "state of linear attention", fields: linear },
];

impl Kind {
    /// Reads a spec of this kind. Faulty fields get a placeholder.
    pub(super) fn read(&self, reader: &mut Reader<'_, '_>) -> Spec {
        // The caller has checked the field already.
        let _ = reader.constant("kind", self.name, self.about);
        (self.fields)(reader)
    }
}

/// Reads a spec of any kind. Returns `None` if the kind is unknown.
pub(super) fn read_spec(reader: &mut Reader<'_, '_>) -> Option<Spec> {
    let names = || KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>();
    let name = match reader.peek("kind") {
        Some(Value::Text(name)) => name,
        other => {
            let found = other.map_or("missing".to_owned(), Value::describe);
            let problem = format!("must be one of {}; it is {found}", names().join(", "));
            reader.fault("kind", problem);
            return None;
        }
    };
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
        let close = closest(name, &names())
            .map(|close| format!("did you mean \"{close}\"?"))
            .unwrap_or_else(|| format!("the kinds are {}", names().join(", ")));
        reader.fault("kind", format!("\"{name}\" is not a kind of spec; {close}"));
        return None;
    };
    Some(kind.read(reader))
}

fn attention(reader: &mut Reader<'_, '_>) -> Spec {
    let heads = reader.size("heads", "KV heads of the whole model");
    let head_dim = reader.size("head_dim", "elements of a key of one head");
    Spec::Attention(Attention {
        heads,
        head_dim,
        v_head_dim: reader.optional_size("v_head_dim", "elements of a value; default head_dim").unwrap_or(head_dim),
        dtype: reader.dtype(),
        sliding_window: reader.sliding_window(),
        chunk_size: reader.optional_size(
            "chunk_size",
            "tokens of an attention chunk, outside of which a token looks at none; default no chunks",
        ),
    })
}

fn mla(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Mla(Mla {
        latent: reader.size("latent", "elements of a latent vector (512 + 64 in DeepSeek V3)"),
        dtype: reader.dtype(),
        sliding_window: reader.sliding_window(),
    })
}

fn compressed(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Compressed(ScaledLatent {
        data_bytes: reader.data_bytes(),
        scale_bytes: reader.scale_bytes(),
        tokens_per_state: reader.size("tokens_per_state", "tokens that one state stands for"),
        sliding_window: reader.sliding_window(),
    })
}

fn indexer(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Indexer(ScaledLatent {
        data_bytes: reader.data_bytes(),
        scale_bytes: reader.scale_bytes(),
        tokens_per_state: reader.tokens_per_state(),
        // An indexer looks at every token.
        sliding_window: None,
    })
}

fn opaque(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Opaque(Opaque {
        heads: reader.size("heads", "heads of the whole model that can be told apart from outside an entry"),
        entry_bytes: reader.size("entry_bytes", "bytes of the entry of one state and head"),
        tokens_per_state: reader.tokens_per_state(),
        packed_heads: reader.optional_size(
            "packed_heads",
            "heads of a rank inside an entry, where a change of TP cannot find them; default none",
        ),
    })
}

fn mamba2_conv(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Mamba2Conv(Mamba2Conv {
        d_inner: reader.size("d_inner", "channels of x; a multiple of heads"),
        heads: reader.size("heads", "heads by which TP shares out x"),
        groups: reader.size("groups", "groups by which TP shares out B and C"),
        state_size: reader.size("state_size", "channels of B, and of C, per group"),
        conv_states: reader.conv_states(),
        dtype: reader.dtype(),
        conv_layout: reader.conv_layout(),
    })
}

fn mamba2_ssm(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Mamba2Ssm(Mamba2Ssm {
        heads: reader.size("heads", "heads of the whole model"),
        head_dim: reader.size("head_dim", "rows of one head's state"),
        state_size: reader.size("state_size", "columns of one head's state"),
        dtype: reader.dtype(),
    })
}

fn gdn_conv(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::GdnConv(GdnConv {
        key_heads: reader.size("key_heads", "heads by which TP shares out q and k"),
        key_head_dim: reader.size("key_head_dim", "channels of q, and of k, per key head"),
        value_heads: reader.size("value_heads", "heads by which TP shares out v"),
        value_head_dim: reader.size("value_head_dim", "channels of v per value head"),
        conv_states: reader.conv_states(),
        dtype: reader.dtype(),
        conv_layout: reader.conv_layout(),
    })
}

fn gdn_ssm(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::GdnSsm(GdnSsm {
        value_heads: reader.size("value_heads", "value heads of the whole model"),
        value_head_dim: reader.size("value_head_dim", "rows of one head's state"),
        key_head_dim: reader.size("key_head_dim", "columns of one head's state"),
        dtype: reader.dtype(),
    })
}

fn mamba1_conv(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Mamba1Conv(Mamba1Conv {
        d_inner: reader.size("d_inner", "channels of the whole model"),
        conv_states: reader.conv_states(),
        dtype: reader.dtype(),
        conv_layout: reader.conv_layout(),
    })
}

fn mamba1_ssm(reader: &mut Reader<'_, '_>) -> Spec {
    Spec::Mamba1Ssm(Mamba1Ssm {
        d_inner: reader.size("d_inner", "channels of the whole model"),
        state_size: reader.size("state_size", "state elements per channel"),
        dtype: reader.dtype(),
    })
}

fn linear(reader: &mut Reader<'_, '_>) -> Spec {
    let heads = reader.size("heads", "heads of the whole model");
    let head_dim = reader.size("head_dim", "rows of one head's state: elements of a key");
    Spec::Linear(Linear {
        heads,
        head_dim,
        v_head_dim: reader
            .optional_size("v_head_dim", "columns of one head's state: elements of a value; default head_dim")
            .unwrap_or(head_dim),
        dtype: reader.dtype(),
    })
}

/// Fields that several kinds have. A faulty size gets the placeholder 1.
impl Reader<'_, '_> {
    fn size(&mut self, key: &'static str, about: &'static str) -> u64 {
        self.number(key, 1..=MAX_SIZE, about).unwrap_or(1)
    }

    fn optional_size(&mut self, key: &'static str, about: &'static str) -> Option<u64> {
        self.optional(key, 1..=MAX_SIZE, about).unwrap_or(None)
    }

    fn dtype(&mut self) -> Dtype {
        let names: Vec<_> = Dtype::names().collect();
        self.name("dtype", &names, "type of the elements").unwrap_or(Dtype::U8)
    }

    fn sliding_window(&mut self) -> Option<u64> {
        self.optional_size("sliding_window", "tokens that a token looks at, itself included; default all")
    }

    fn data_bytes(&mut self) -> u64 {
        self.size("data_bytes", "bytes of one state's data")
    }

    fn scale_bytes(&mut self) -> u64 {
        self.size("scale_bytes", "bytes of one state's scales")
    }

    fn tokens_per_state(&mut self) -> u64 {
        self.number_or("tokens_per_state", 1, 1..=MAX_SIZE, "tokens that one state stands for").unwrap_or(1)
    }

    fn conv_states(&mut self) -> u64 {
        let kernel = self.number("conv_kernel", 2..=MAX_SIZE, "taps of the convolution; one less are kept");
        let states = self
            .optional_size("conv_states", "taps that are kept, where the engine keeps more; default conv_kernel - 1");
        states.unwrap_or(kernel.map_or(1, |kernel| kernel - 1))
    }

    fn conv_layout(&mut self) -> ConvLayout {
        let names = ConvLayout::ALL.map(|layout| (layout.name(), layout));
        let about = "which axis is outside: channels (DS) or kept taps (SD)";
        self.name("conv_layout", &names, about).unwrap_or(ConvLayout::Sd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_reads_its_own_spec() {
        for kind in &KINDS {
            Reader::requested_by(|reader| assert_eq!(kind.read(reader).kind(), kind.name));
        }
    }
}
