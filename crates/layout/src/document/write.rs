//! Conversion of a [`Document`] to a tree of values that reads back as the same document.

use super::{Document, GroupDocument, SCHEMA, StageDocument, Value};
use crate::placement::Allocation;
use crate::spec::{FieldValue, Spec};

impl Document {
    /// Returns the document in its shortest form: values that all groups share are set for the deployment, and defaults
    /// are omitted.
    pub fn to_value(&self) -> Value {
        let shared = Shared::of(&self.groups);
        let mut fields = Fields::default();
        fields.text("schema", SCHEMA);
        if !self.name.is_empty() {
            fields.text("name", &self.name);
        }
        fields.texts("model", self.model.as_deref());
        fields.number("tp", self.tp);
        fields.number("pp", self.pp);
        if self.dcp != 1 {
            fields.number("dcp", self.dcp);
        }
        if self.interleave != 1 {
            fields.number("interleave", self.interleave);
        }
        fields.numbers("num_layers", self.num_layers);
        if let Some(layers) = &self.pp_layers {
            fields.0.push(("pp_layers".to_owned(), layers[..].into()));
        }
        fields.numbers("block_size", shared.block_size);
        fields.numbers("num_blocks", shared.num_blocks);
        fields.texts("order", shared.order);
        let groups = self.groups.iter().map(|group| group.to_value(&shared));
        fields.list("group", groups);
        fields.table()
    }
}

struct Shared<'a> {
    block_size: Option<u64>,
    num_blocks: Option<u64>,
    order: Option<&'a str>,
}

impl<'a> Shared<'a> {
    fn of(groups: &'a [GroupDocument]) -> Self {
        // Pages of several specs do not inherit an order.
        let ordered = groups.iter().filter(|group| group.specs.len() == 1);
        Self {
            block_size: same(groups.iter().map(|group| group.block_size)),
            num_blocks: same(groups.iter().map(|group| group.num_blocks)),
            order: same(ordered.map(|group| group.order.as_deref())).flatten(),
        }
    }
}

fn same<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

impl GroupDocument {
    fn to_value(&self, shared: &Shared<'_>) -> Value {
        let mut fields = Fields::default();
        fields.text("name", &self.name);
        fields.text("layers", &self.layers);
        if shared.block_size.is_none() {
            fields.number("block_size", self.block_size);
        }
        if shared.num_blocks.is_none() {
            fields.number("num_blocks", self.num_blocks);
        }
        if !self.dealt {
            fields.text("tokens", "whole");
        }
        if shared.order.is_none() || self.specs.len() != 1 {
            fields.texts("order", self.order.as_deref());
        }
        if self.allocation == Allocation::PerLayer {
            fields.text("allocation", "per_layer");
        }
        if self.offset > 0 {
            fields.number("offset", self.offset);
        }
        fields.numbers("block_stride", self.block_stride);
        fields.numbers("layer_stride", self.layer_stride);
        if !self.stages.is_empty() {
            fields.0.push(("stage".to_owned(), self.stages[..].into()));
        }
        if self.draft {
            fields.0.push(("draft".to_owned(), true.into()));
        }
        fields.list("spec", self.specs.iter().map(Spec::to_value));
        fields.table()
    }
}

impl From<&[StageDocument]> for Value {
    fn from(stages: &[StageDocument]) -> Self {
        let stages = stages.iter().map(|stage| {
            let mut fields = Fields::default();
            fields.numbers("offset", stage.offset);
            fields.numbers("block_stride", stage.block_stride);
            fields.numbers("layer_stride", stage.layer_stride);
            fields.table()
        });
        Value::List(stages.collect())
    }
}

impl Spec {
    /// Returns the spec as a table of a document, with `kind` first.
    pub fn to_value(&self) -> Value {
        let mut fields = Fields::default();
        fields.text("kind", self.kind());
        for (name, value) in self.identity() {
            match (name, value) {
                (_, FieldValue::Absent) => {}
                ("v_head_dim", value) if Some(&value) == self.field("head_dim").as_ref() => {}
                // A document gives the kernel's size. The number of taps follows from it.
                ("conv_states", FieldValue::Number(states)) => {
                    fields.number("conv_kernel", states.saturating_add(1));
                }
                (name, FieldValue::Number(value)) => fields.number(name, value),
                (name, FieldValue::Text(value)) => fields.text(name, &value),
            }
        }
        if let Some(layout) = self.conv_layout() {
            fields.text("conv_layout", layout.name());
        }
        fields.table()
    }

    fn field(&self, name: &str) -> Option<FieldValue> {
        let mut fields = self.identity().into_iter();
        fields.find(|(field, _)| *field == name).map(|(_, value)| value)
    }
}

#[derive(Default)]
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn text(&mut self, name: &str, value: &str) {
        self.0.push((name.to_owned(), value.into()));
    }

    fn texts(&mut self, name: &str, value: Option<&str>) {
        value.into_iter().for_each(|value| self.text(name, value));
    }

    fn number(&mut self, name: &str, value: u64) {
        self.0.push((name.to_owned(), value.into()));
    }

    fn numbers(&mut self, name: &str, value: Option<u64>) {
        value.into_iter().for_each(|value| self.number(name, value));
    }

    fn list(&mut self, name: &str, items: impl Iterator<Item = Value>) {
        self.0.push((name.to_owned(), Value::List(items.collect())));
    }

    fn table(self) -> Value {
        Value::Table(self.0)
    }
}
