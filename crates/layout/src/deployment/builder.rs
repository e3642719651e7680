//! A builder for deployments in Rust. It makes the same document as one in text, so defaults and errors are the same,
//! with the same key paths.

use super::{Deployment, Group};
use crate::document::{Faults, SCHEMA, StageDocument, Value};
use crate::placement::Allocation;
use crate::spec::Spec;

/// Builds a [`Deployment`]. [`Deployment::builder`] returns one.
#[derive(Clone, Debug)]
#[must_use]
pub struct DeploymentBuilder {
    fields: Vec<(String, Value)>,
    groups: Vec<Value>,
}

/// Builds a group of a deployment. [`Group::builder`] returns one.
#[derive(Clone, Debug)]
#[must_use]
pub struct GroupBuilder {
    fields: Vec<(String, Value)>,
    specs: Vec<Value>,
}

/// Defines methods that set the field of their name. The last call counts.
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $type:ty);)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $argument: $type) -> Self {
            self.fields.retain(|(name, _)| name != stringify!($name));
            self.fields.push((stringify!($name).to_owned(), $argument.into()));
            self
        }
    )*};
}

impl Deployment {
    /// Starts a deployment: TP 1, PP 1, no groups.
    ///
    /// ```
    /// use transload_layout::{Deployment, Dtype, Group, Spec};
    ///
    /// let decode = Deployment::builder()
    ///     .tp(4)
    ///     .block_size(64)
    ///     .num_blocks(1024)
    ///     .order("HND")
    ///     .group(Group::builder("attn", "0-79", Spec::attention(8, 128, Dtype::Bf16)))
    ///     .build()?;
    /// // 80 layers, 1024 blocks of 64 tokens, 2 of 8 heads, a key and a value of 128 elements of 2 bytes.
    /// let group = &decode.groups()[0];
    /// assert_eq!(group.placement(0).allocation_bytes, 80 * 1024 * 64 * 2 * 2 * 128 * 2);
    ///
    /// let faults = Deployment::builder().build().unwrap_err();
    /// assert!(faults.to_string().contains("group"));
    /// # Ok::<(), transload_layout::document::Faults>(())
    /// ```
    pub fn builder() -> DeploymentBuilder {
        DeploymentBuilder { fields: vec![("schema".to_owned(), SCHEMA.into())], groups: Vec::new() }
    }
}

impl DeploymentBuilder {
    fields! {
        /// Sets the side's name, for display.
        name(name: &str);
        /// Sets the model's name, for display.
        model(name: &str);
        /// Sets the number of tensor-parallel ranks; default 1.
        tp(ranks: u64);
        /// Sets the number of pipeline stages; default 1.
        pp(stages: u64);
        /// Sets the number of ranks that the tokens of a sequence are dealt out to (decode context parallelism); default 1.
        dcp(ranks: u64);
        /// Sets the number of consecutive tokens that each of these ranks gets in its turn; default 1.
        interleave(tokens: u64);
        /// Sets the number of layers of the whole model. The default is the highest layer id of the groups, plus 1.
        num_layers(layers: u64);
        /// Sets the number of layers of each pipeline stage. The default is vLLM's split.
        pp_layers(layers: &[u64]);
        /// Sets the tokens per block of groups that do not set their own.
        block_size(tokens: u64);
        /// Sets the blocks on every rank of groups that do not set their own.
        num_blocks(blocks: u64);
        /// Sets the [order](crate::order) of groups of one spec that do not set their own. The default is that of the
        /// spec's kind.
        order(order: &str);
    }

    /// Adds a group.
    pub fn group(mut self, group: GroupBuilder) -> Self {
        let mut fields = group.fields;
        fields.push(("spec".to_owned(), Value::List(group.specs)));
        self.groups.push(Value::Table(fields));
        self
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// All faults, each with its key path, such as `group[0].block_size`.
    pub fn build(mut self) -> Result<Deployment, Faults> {
        self.fields.push(("group".to_owned(), Value::List(self.groups)));
        Deployment::from_value(&Value::Table(self.fields))
    }
}

impl Group {
    /// Starts a group of global layers, such as `0-79` or `0,4,8-11`, each of which caches `spec`.
    pub fn builder(name: &str, layers: &str, spec: Spec) -> GroupBuilder {
        let fields = [("name", name), ("layers", layers)];
        GroupBuilder {
            fields: fields.map(|(key, text)| (key.to_owned(), text.into())).into(),
            specs: vec![spec.to_value()],
        }
    }
}

impl GroupBuilder {
    fields! {
        /// Sets the tokens per block; default the deployment's. Groups of recurrent specs need none.
        block_size(tokens: u64);
        /// Sets the blocks on every rank; default the deployment's.
        num_blocks(blocks: u64);
        /// Sets whether tokens are `dealt` out to the ranks of `dcp`, which is the default, or `whole` on each. Recurrent
        /// state is whole.
        tokens(dealt_or_whole: &str);
        /// Sets the [order](crate::order); default the deployment's, and `LB` for several specs.
        order(order: &str);
        /// Sets whether a rank has one allocation for all layers or one for each; the default is one for all.
        allocation(allocation: Allocation);
        /// Sets the offset in bytes of the group in its allocation; default 0.
        offset(bytes: u64);
        /// Sets the distance in bytes from a block to the next; default no padding.
        block_stride(bytes: u64);
        /// Sets the distance in bytes from a layer to the next; default no padding.
        layer_stride(bytes: u64);
        /// Sets what differs on each pipeline stage, one entry for each; default nothing.
        stage(stages: &[StageDocument]);
        /// Sets whether its layers draft tokens, so that the other side need not have the group; default false.
        draft(draft: bool);
    }

    /// Adds a spec. In the page of each block its states follow those of the earlier specs.
    pub fn spec(mut self, spec: Spec) -> Self {
        self.specs.push(spec.to_value());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    /// Every setting arrives where a document of the same words says it.
    #[test]
    fn a_builder_says_what_a_document_says() {
        let attention = Spec::attention(8, 128, Dtype::Bf16);
        let latent = Spec::mla(576, Dtype::F8E4M3);
        let attn = Group::builder("attn", "0-3", attention).block_size(32).num_blocks(7).order("HND").offset(512);
        let attn = attn.tokens("whole").allocation(Allocation::PerLayer).block_stride(1 << 20);
        let attn =
            attn.stage(&[StageDocument { offset: Some(0), ..StageDocument::default() }, StageDocument::default()]);
        let pages = Group::builder("pages", "4-5", latent.clone()).spec(latent).layer_stride(1 << 24).draft(true);
        let built = Deployment::builder()
            .name("decode")
            .model("m")
            .tp(2)
            .tp(4)
            .pp(2)
            .dcp(2)
            .interleave(8)
            .num_layers(6)
            .pp_layers(&[3, 3])
            .block_size(16)
            .num_blocks(9)
            .order("NHD")
            .group(attn)
            .group(pages)
            .build()
            .unwrap();
        let typed = toml::from_str(
            r#"
            schema = "transload.deployment/1"
            name = "decode"
            model = "m"
            tp = 4
            pp = 2
            dcp = 2
            interleave = 8
            num_layers = 6
            pp_layers = [3, 3]
            block_size = 16
            num_blocks = 9
            order = "NHD"
            [[group]]
            name = "attn"
            layers = "0-3"
            block_size = 32
            num_blocks = 7
            order = "HND"
            tokens = "whole"
            allocation = "per_layer"
            offset = 512
            block_stride = 1048576
            stage = [{ offset = 0 }, {}]
            spec = [{ kind = "attention", heads = 8, head_dim = 128, dtype = "bf16" }]
            [[group]]
            name = "pages"
            layers = "4-5"
            layer_stride = 16777216
            draft = true
            spec = [{ kind = "mla", latent = 576, dtype = "f8e4m3" }, { kind = "mla", latent = 576, dtype = "f8e4m3" }]
        "#,
        )
        .unwrap();
        assert_eq!(built, Deployment::from_value(&typed).unwrap());
    }
}
