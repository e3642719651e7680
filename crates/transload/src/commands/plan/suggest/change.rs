//! Possible changes of one side: another order, block size or layout of convolutions.

use serde::Serialize;
use transload::layout::document::{Document, GroupDocument};
use transload::layout::spec::ConvLayout;
use transload::layout::{Order, Spec};

/// The orders that engines support, the most familiar first, with the engines: vLLM 0.32 with the attention backends
/// that declare them, and SGLang's pools of keys and of values.
pub(super) const ORDERS: [(&str, &str); 8] = [
    ("LBSHC", "vLLM (FlashAttention, Triton, FlashInfer before SM100, FlexAttention)"),
    ("LBHSC", "vLLM (FlashAttention, Triton, FlashInfer, CPU)"),
    ("BLSHC", "vLLM (FlashAttention, Triton)"),
    ("BLHSC", "vLLM (FlashAttention, Triton, FlashInfer)"),
    ("BHLSC", "vLLM (FlashAttention, Triton)"),
    ("LHBSC", "vLLM (FlashAttention, Triton, ROCm)"),
    ("LKBSHD", "vLLM before its orders had names (FlashAttention)"),
    ("KLBSHD", "SGLang"),
];

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block_size: Option<u64>,
    /// The layout of the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) conv_layout: Option<&'static str>,
}

impl Change {
    /// Returns the order's index in the list of orders, in which the most familiar comes first.
    pub(super) fn familiarity(&self) -> Option<usize> {
        ORDERS.iter().position(|(known, _)| Some(*known) == self.order)
    }

    pub(super) fn count(&self) -> usize {
        usize::from(self.order.is_some())
            + usize::from(self.block_size.is_some())
            + usize::from(self.conv_layout.is_some())
    }

    /// Returns the settings that really differ from a side's current ones.
    pub(super) fn new_for(&self, document: &Document) -> Self {
        let differs = |change: Self| {
            let mut groups = document.groups.iter();
            groups.any(|group| {
                let mut changed = group.clone();
                change.apply(&mut changed);
                let order = |g: &GroupDocument| Order::parse(g.order.as_deref().unwrap_or("LBSHC")).ok();
                (changed.block_size, order(&changed)) != (group.block_size, order(group))
            })
        };
        let (order, block_size) = (self.order, self.block_size);
        Self {
            order: order.filter(|_| differs(Self { order, ..Self::default() })),
            block_size: block_size.filter(|_| differs(Self { block_size, ..Self::default() })),
            conv_layout: self.conv_layout.filter(|wanted| conv_layout(document) != Some(*wanted)),
        }
    }

    pub(super) fn applied(&self, document: &Document) -> Document {
        let mut changed = document.clone();
        changed.groups.iter_mut().for_each(|group| self.apply(group));
        changed
    }

    fn apply(&self, group: &mut GroupDocument) {
        if let Some(size) = self.block_size.filter(|_| !group.is_recurrent()) {
            group.block_size = size;
        }
        if let Some(order) = self.order.filter(|_| group.takes_orders()) {
            group.order = Some(order.to_owned());
        }
        if let Some(wanted) = ConvLayout::ALL.into_iter().find(|layout| Some(layout.name()) == self.conv_layout) {
            let layouts = group.specs.iter_mut().filter_map(Spec::conv_layout_mut);
            layouts.for_each(|layout| *layout = wanted);
        }
        if *self != Self::default() {
            // Explicit strides fit only the unchanged layout.
            group.drop_strides();
        }
    }

    /// `order LBHSC, blocks of 64`
    pub(super) fn text(&self) -> String {
        let parts = [
            self.order.map(|order| format!("order {order}")),
            self.block_size.map(|size| format!("blocks of {size}")),
            self.conv_layout.map(|layout| format!("conv {layout}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "unchanged".to_owned(),
            false => parts.join(", "),
        }
    }
}

/// Returns the layout of a side's convolutions, if it has any.
pub(super) fn conv_layout(document: &Document) -> Option<&'static str> {
    let mut specs = document.groups.iter().flat_map(|group| &group.specs);
    specs.find_map(Spec::conv_layout).map(ConvLayout::name)
}
