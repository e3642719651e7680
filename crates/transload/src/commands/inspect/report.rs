//! The report of `transload inspect`: `transload.inspect/1`, its table, and a document to start from.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use transload::layout::catalog::{CacheDtype, HybridPage, Model, ModelGroup, Serving};
use transload::layout::document::Value;
use transload::layout::spec::ContentSizeError;
use transload::layout::{Deployment, Footprint, Group};

use crate::failure::Failure;
use crate::show::sketch::sketch;
use crate::show::table::Table;
use crate::show::{deployment as show, number, terminal};

/// The width of a sketch outside a terminal, in columns.
const WIDTH: usize = 80;

pub(super) struct Report<'a> {
    model: &'a Model,
    called: &'a str,
    deployment: &'a Deployment,
    tokens: u64,
    memory: Option<u64>,
    /// The engine's page for a hybrid model.
    page: Option<HybridPage>,
    whole: Size,
    groups: Vec<Size>,
    stages: Vec<Stage>,
}

/// The bytes that some layers take.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    per_token: f64,
    fixed: u128,
    sequence: u128,
    allocated: u128,
    block: u128,
}

/// The load of each rank of a pipeline stage.
#[derive(Debug)]
struct Stage {
    layers: String,
    size: Size,
}

/// The schema `transload.inspect/1`.
#[derive(Debug, Serialize)]
pub(super) struct Json<'a> {
    schema: &'static str,
    family: &'a str,
    num_layers: u32,
    bytes_per_token: Number,
    fixed_bytes: u128,
    sequence: Sequence,
    layer_kinds: Vec<LayerKind>,
    groups: Vec<GroupJson<'a>>,
    ranks: Vec<RankJson>,
    /// The values assumed for keys that the config lacks.
    assumed: BTreeMap<&'a str, &'a str>,
    /// The `model_type` around the text model, if it is not that of a known wrapper.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrapper: Option<&'a str>,
    /// Keys that were not read although they may change what is cached.
    unread: &'a [String],
    /// The packed type, whose rows `groups` count in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    packed: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hybrid_page: Option<PageJson>,
}

/// Each rank's pages of a hybrid in the requested engine.
#[derive(Debug, Serialize)]
struct PageJson {
    block_size: u64,
    state_bytes: u64,
    page_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Sequence {
    tokens: u64,
    bytes: u128,
    allocated_bytes: u128,
}

#[derive(Debug, Serialize)]
struct LayerKind {
    caches: Vec<String>,
    layers: u32,
}

#[derive(Debug, Serialize)]
struct GroupJson<'a> {
    name: &'a str,
    layers: String,
    num_layers: usize,
    spec: Vec<Value>,
    bytes_per_token: Number,
    fixed_bytes: u128,
    sequence_bytes: u128,
    allocated_bytes: u128,
    block_size: u64,
    block_bytes: u128,
}

/// The load of each of the `tp` ranks of a pipeline stage.
#[derive(Debug, Serialize)]
struct RankJson {
    pp_rank: usize,
    tp: u32,
    layers: String,
    bytes_per_token: Number,
    fixed_bytes: u128,
    sequence_bytes: u128,
    allocated_bytes: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequences: Option<u128>,
}

/// A number, written without a fraction if it is whole.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Number {
    Whole(u64),
    Broken(f64),
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        match value.fract() == 0.0 && value < u64::MAX as f64 {
            true => Self::Whole(value as u64),
            false => Self::Broken(value),
        }
    }
}

impl Size {
    /// Returns the size of `layers` layers with the same footprint.
    fn of(footprint: &Footprint, layers: usize, tokens: u64, block_size: u64) -> Self {
        let times = layers as u128;
        Self {
            per_token: footprint.bytes_per_token() * layers as f64,
            fixed: footprint.fixed_bytes() * times,
            sequence: footprint.sequence_bytes(tokens) * times,
            allocated: footprint.allocated_bytes(tokens, block_size) * times,
            block: footprint.block_bytes(block_size) * times,
        }
    }

    fn sum(sizes: impl IntoIterator<Item = Self>) -> Self {
        sizes.into_iter().fold(Self::default(), |sum, size| Self {
            per_token: sum.per_token + size.per_token,
            fixed: sum.fixed + size.fixed,
            sequence: sum.sequence + size.sequence,
            allocated: sum.allocated + size.allocated,
            block: sum.block + size.block,
        })
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(
        model: &'a Model,
        called: &'a str,
        serving: &Serving,
        deployment: &'a Deployment,
        tokens: u64,
        memory: Option<u64>,
    ) -> Result<Self, Failure> {
        let page = model.hybrid_page(serving);
        // Computes the size of layers divided over `tp` ranks. In a hybrid, each of `ranks` ranks pads its states to
        // pages.
        let size = |group: &Group, tp, layers, ranks: u32| -> Result<Size, ContentSizeError> {
            let footprint = Footprint::of(group.specs(), tp)?;
            let mut size = Size::of(&footprint, layers, tokens, group.block_size());
            if let Some(page) = page.filter(|_| group.is_recurrent() && tokens > 0) {
                size.allocated = u128::from(page.bytes) * layers as u128 * u128::from(ranks);
            }
            Ok(size)
        };
        let too_large = |error: ContentSizeError| {
            let right = "check the sizes that the config gives";
            Failure::input(format!("{called}: {error}"), right)
        };
        let groups = deployment.groups();
        let whole = groups.iter().map(|group| size(group, 1, group.layers().ids().len(), deployment.tp()));
        let whole: Vec<Size> = whole.collect::<Result<_, _>>().map_err(too_large)?;
        let stages = (0..deployment.pp()).map(|stage| {
            let sizes = groups.iter();
            let sizes = sizes.map(|group| {
                let layers = group.stage_slots(stage).len();
                size(group, deployment.tp(), layers, 1)
            });
            let sizes: Vec<Size> = sizes.collect::<Result<_, _>>()?;
            let layers = deployment.stage_layers(stage);
            Ok(Stage {
                layers: match layers.len() {
                    0 => String::new(),
                    1 => layers.start.to_string(),
                    _ => format!("{}-{}", layers.start, layers.end - 1),
                },
                size: Size::sum(sizes),
            })
        });
        Ok(Self {
            model,
            called,
            deployment,
            tokens,
            memory,
            page,
            whole: Size::sum(whole.iter().copied()),
            groups: whole,
            stages: stages.collect::<Result<_, _>>().map_err(too_large)?,
        })
    }

    /// Returns the number of sequences that fit on a rank of a stage. `None` if its memory is unknown or nothing is
    /// needed.
    fn sequences(&self, stage: &Stage) -> Option<u128> {
        u128::from(self.memory?).checked_div(stage.size.allocated)
    }

    pub(super) fn json(&self) -> Json<'a> {
        let groups = self.model.groups.iter().zip(self.deployment.groups());
        let groups = groups.zip(&self.groups).map(|((group, served), size)| GroupJson {
            name: &group.name,
            layers: group.layers.to_string(),
            num_layers: group.layers.ids().len(),
            spec: group.specs.iter().map(|spec| spec.to_value()).collect(),
            bytes_per_token: size.per_token.into(),
            fixed_bytes: size.fixed,
            sequence_bytes: size.sequence,
            allocated_bytes: size.allocated,
            block_size: served.block_size(),
            block_bytes: size.block,
        });
        let ranks = self.stages.iter().enumerate().map(|(pp_rank, stage)| RankJson {
            pp_rank,
            tp: self.deployment.tp(),
            layers: stage.layers.clone(),
            bytes_per_token: stage.size.per_token.into(),
            fixed_bytes: stage.size.fixed,
            sequence_bytes: stage.size.sequence,
            allocated_bytes: stage.size.allocated,
            sequences: self.sequences(stage),
        });
        Json {
            schema: "transload.inspect/1",
            family: &self.model.family,
            num_layers: self.model.num_layers,
            bytes_per_token: self.whole.per_token.into(),
            fixed_bytes: self.whole.fixed,
            sequence: Sequence {
                tokens: self.tokens,
                bytes: self.whole.sequence,
                allocated_bytes: self.whole.allocated,
            },
            layer_kinds: layer_kinds(self.model),
            groups: groups.collect(),
            ranks: ranks.collect(),
            assumed: assumed(self.model),
            wrapper: self.model.wrapper.as_deref(),
            unread: &self.model.unread,
            packed: packed(self.model),
            hybrid_page: self.page.map(|page| PageJson {
                block_size: page.block_size,
                state_bytes: page.state_bytes,
                page_bytes: page.bytes,
            }),
        }
    }

    pub(super) fn table(&self) -> String {
        let kinds = layer_kinds(self.model);
        let kinds: Vec<String> = kinds.iter().map(LayerKind::text).collect();
        // A description may lack the family.
        let family = match self.model.family.as_str() {
            "" => String::new(),
            family => format!("{family}, "),
        };
        let mut text = format!(
            " {}: {family}{} ({})\n\n",
            self.called,
            number::count(self.model.num_layers.into(), "layer"),
            kinds.join(", "),
        );
        text.push_str(&self.group_table());
        let _ = write!(
            text,
            "\n each further token of a long sequence takes {} bytes; {} bytes are fixed\n a sequence of {} takes {} \
             bytes, {} in whole blocks\n\n",
            number::broken(self.whole.per_token),
            number::grouped_wide(self.whole.fixed),
            number::count(self.tokens, "token"),
            number::grouped_wide(self.whole.sequence),
            number::grouped_wide(self.whole.allocated),
        );
        text.push_str(&self.rank_table());
        if let Some(page) = self.page {
            let _ = writeln!(
                text,
                "\n vLLM takes blocks of {}, so that a block of one layer has room for a state: pages of {}, in \
                 which\n {} of state are padded by {:.2} %; blocks are larger if the attention backend needs that",
                number::count(page.block_size, "token"),
                number::exact_bytes(page.bytes),
                number::exact_bytes(page.state_bytes),
                (page.bytes - page.state_bytes) as f64 / page.state_bytes as f64 * 100.0,
            );
        }
        text.push_str(&notes(self.model));
        let width = terminal::width(std::io::stdout()).map_or(WIDTH, usize::from);
        for group in 0..self.deployment.groups().len() {
            text.push('\n');
            text.push_str(&sketch(self.deployment, group, width));
        }
        text
    }

    fn group_table(&self) -> String {
        let mut table = Table::new("group|layers|caches|>per token|>fixed|>block|>per block|>a sequence");
        let groups = self.deployment.groups().iter().zip(&self.groups);
        for (group, size) in groups {
            table.row([
                group.name(),
                &show::layers(group),
                &show::specs(group),
                &number::bytes_in_parts(size.per_token),
                &number::bytes_wide(size.fixed),
                &block(group),
                &number::bytes_wide(size.block),
                &number::bytes_wide(size.sequence),
            ]);
        }
        table.finish()
    }

    fn rank_table(&self) -> String {
        let fit = self.memory.map(number::bytes);
        let fit = fit.map_or_else(String::new, |memory| format!("|>fit in {memory}"));
        let columns = "each rank of|layers|>per token|>fixed|>a sequence|>in blocks";
        let mut table = Table::new(&(columns.to_owned() + &fit));
        for (index, stage) in self.stages.iter().enumerate() {
            let tp = self.deployment.tp();
            let mut row = vec![
                match self.stages.len() {
                    1 => format!("TP {tp}"),
                    _ => format!("TP {tp}, stage {index}"),
                },
                stage.layers.clone(),
                number::bytes_in_parts(stage.size.per_token),
                number::bytes_wide(stage.size.fixed),
                number::bytes_wide(stage.size.sequence),
                number::bytes_wide(stage.size.allocated),
            ];
            if self.memory.is_some() {
                let sequences = self.sequences(stage);
                row.push(sequences.map_or("any".to_owned(), number::grouped_wide));
            }
            table.row(row);
        }
        table.finish()
    }
}

impl LayerKind {
    /// `36 mamba`, `2 mamba + attn`, `4 without a cache`
    fn text(&self) -> String {
        match self.caches.is_empty() {
            true => format!("{} without a cache", self.layers),
            false => format!("{} {}", self.layers, self.caches.join(" + ")),
        }
    }
}

fn assumed(model: &Model) -> BTreeMap<&str, &str> {
    let assumed = model.assumed.iter();
    let assumed = assumed.map(|assumed| (assumed.key.as_str(), assumed.value.as_str()));
    assumed.collect()
}

fn packed(model: &Model) -> Option<&'static str> {
    model.packed.map(|packed| CacheDtype::Packed(packed).name())
}

fn notes(model: &Model) -> String {
    let mut text = String::new();
    if let Some(packed) = packed(model) {
        let _ = writeln!(text, "\n {packed}: sizes of packed elements are in bytes and include their scales");
    }
    if !model.assumed.is_empty() {
        let assumed = model.assumed.iter();
        let assumed = assumed.map(|assumed| format!("{} = {}", assumed.key, short(&assumed.value)));
        let assumed: Vec<String> = assumed.collect();
        let _ = writeln!(text, "\n assumed, since the config does not say: {}", assumed.join(", "));
    }
    if let Some(wrapper) = &model.wrapper {
        let wrapper = Value::Text(wrapper.clone()).describe();
        let _ = writeln!(
            text,
            "\n {wrapper} is not a wrapper that the catalog knows: the sizes are those of its text model alone"
        );
    }
    if !model.unread.is_empty() {
        let unread = model.unread.iter().map(|key| key.escape_debug().to_string());
        let unread: Vec<String> = unread.collect();
        let _ = writeln!(text, "\n not read, although they may change what is cached: {}", unread.join(", "));
    }
    text
}

/// Returns the report for a model whose layers all use the caches of another model.
pub(super) fn without_caches(model: &Model, tokens: u64) -> Json<'_> {
    Json {
        schema: "transload.inspect/1",
        family: &model.family,
        num_layers: model.num_layers,
        bytes_per_token: Number::Whole(0),
        fixed_bytes: 0,
        sequence: Sequence { tokens, bytes: 0, allocated_bytes: 0 },
        layer_kinds: layer_kinds(model),
        groups: Vec::new(),
        ranks: Vec::new(),
        assumed: assumed(model),
        wrapper: model.wrapper.as_deref(),
        unread: &model.unread,
        packed: None,
        hybrid_page: None,
    }
}

pub(super) fn ownerless(model: &Model, called: &str) -> String {
    format!(
        " {called}: {}, {}\n\n no cache of its own: its layers read the caches of the model that it drafts for\n{}",
        model.family,
        number::count(model.num_layers.into(), "layer"),
        notes(model)
    )
}

/// Counts the layers of each kind, in the order in which the kinds first occur.
fn layer_kinds(model: &Model) -> Vec<LayerKind> {
    let caches = |group: &&ModelGroup, layer| group.layers.ids().binary_search(&layer).is_ok();
    let mut kinds: Vec<LayerKind> = Vec::new();
    for layer in 0..model.num_layers {
        let groups = model.groups.iter().filter(|group| caches(group, layer));
        let of_layer: Vec<String> = groups.map(|group| group.name.clone()).collect();
        match kinds.iter_mut().find(|kind| kind.caches == of_layer) {
            Some(kind) => kind.layers += 1,
            None => kinds.push(LayerKind { caches: of_layer, layers: 1 }),
        }
    }
    kinds
}

/// Shortens a list of words to the positions of the rarer ones if that is shorter: `hybrid at 6, 12, else mamba`.
fn short(value: &str) -> String {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (n, word) in value.split(", ").enumerate() {
        places.entry(word).or_default().push(n.to_string());
    }
    let most = places.iter().max_by_key(|(_, at)| at.len());
    let most = most.map_or("", |(word, _)| *word);
    let rare = places.iter().filter(|(word, _)| **word != most);
    let rare = rare.map(|(word, at)| format!("{word} at {}, ", at.join(", ")));
    let told = format!("{}else {most}", rare.collect::<String>());
    match places.len() > 1 && told.len() < value.len() {
        true => told,
        false => value.to_owned(),
    }
}

fn block(group: &Group) -> String {
    match group.is_recurrent() {
        true => "a sequence".to_owned(),
        false => number::count(group.block_size(), "token"),
    }
}
