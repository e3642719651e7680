//! Documents of any shape: writing and reading one gives the same document, or the same faults.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use transload_layout::document::{Document, GroupDocument, StageDocument, Value};
use transload_layout::spec::{
    Attention, ConvLayout, GdnConv, GdnSsm, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm, Mla, Opaque,
    ScaledLatent, Spec,
};
use transload_layout::{Allocation, Deployment, Dtype};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_document_is_read_as_it_was_written(document in documents()) {
        let checked = Deployment::from_document(document.clone());
        let text = serde_json::to_string(&document.to_value()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        match (checked, Deployment::from_value(&read)) {
            (Ok(side), read) => {
                prop_assert_eq!(read.as_ref(), Ok(&side), "{}", text);
                prop_assert_eq!(side.document().to_value(), document.to_value());
            }
            (Err(_), Err(_)) => {}
            (Err(faults), Ok(_)) => {
                return Err(TestCaseError::fail(format!("read, but refused: {faults}\n{text}")));
            }
        }
    }
}

/// The strategy is only useful if many of its documents are deployments.
#[test]
fn many_of_these_documents_are_deployments() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let good = (0..500).filter(|_| {
        let document = documents().new_tree(&mut runner).unwrap().current();
        Deployment::from_document(document).is_ok()
    });
    let good = good.count();
    assert!((50..450).contains(&good), "{good} of 500");
}

/// Returns a size, mostly one that others divide.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        60 => select(vec![1, 2, 4, 4, 8, 16, 64]),
        1 => Just(3),
        1 => 0..(1u64 << 41),
    ]
}

fn dtype() -> impl Strategy<Value = Dtype> {
    select(vec![Dtype::F32, Dtype::Bf16, Dtype::F8E4M3, Dtype::I8])
}

fn conv_layout() -> impl Strategy<Value = ConvLayout> {
    select(vec![ConvLayout::Sd, ConvLayout::Ds])
}

fn sizes() -> impl Strategy<Value = [u64; 5]> {
    [size(), size(), size(), size(), size()]
}

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    prop_oneof![
        (sizes(), dtype(), option::of(size()), option::of(size())).prop_map(
            |([heads, head_dim, v_head_dim, ..], dtype, sliding_window, chunk_size)| {
                vec![Spec::Attention(Attention { heads, head_dim, v_head_dim, dtype, sliding_window, chunk_size })]
            }
        ),
        (size(), dtype(), option::of(size()))
            .prop_map(|(latent, dtype, sliding_window)| { vec![Spec::Mla(Mla { latent, dtype, sliding_window })] }),
        (sizes(), option::of(size()), any::<bool>()).prop_map(
            |([data_bytes, scale_bytes, tokens_per_state, ..], window, indexer)| {
                let spec = ScaledLatent { data_bytes, scale_bytes, tokens_per_state, sliding_window: window };
                vec![match indexer {
                    true => Spec::Indexer(spec),
                    false => Spec::Compressed(spec),
                }]
            }
        ),
        (sizes(), option::of(size())).prop_map(|([heads, entry_bytes, tokens_per_state, ..], packed_heads)| {
            vec![Spec::Opaque(Opaque { heads, entry_bytes, tokens_per_state, packed_heads })]
        }),
        pages(),
    ]
}

fn pages() -> impl Strategy<Value = Vec<Spec>> {
    let sizes = (sizes(), dtype(), dtype(), conv_layout());
    (0..4, sizes).prop_map(|(kind, ([a, b, c, d, e], dtype, ssm, conv_layout))| match kind {
        0 => vec![
            Spec::Mamba2Conv(Mamba2Conv {
                d_inner: a.saturating_mul(b),
                heads: a,
                groups: c,
                state_size: d,
                conv_states: e,
                dtype,
                conv_layout,
            }),
            Spec::Mamba2Ssm(Mamba2Ssm { heads: a, head_dim: b, state_size: d, dtype: ssm }),
        ],
        1 => vec![
            Spec::GdnConv(GdnConv {
                key_heads: a,
                key_head_dim: b,
                value_heads: c,
                value_head_dim: d,
                conv_states: e,
                dtype,
                conv_layout,
            }),
            Spec::GdnSsm(GdnSsm { value_heads: c, value_head_dim: d, key_head_dim: b, dtype: ssm }),
        ],
        2 => vec![
            Spec::Mamba1Conv(Mamba1Conv { d_inner: a, conv_states: b, dtype, conv_layout }),
            Spec::Mamba1Ssm(Mamba1Ssm { d_inner: a, state_size: c, dtype: ssm }),
        ],
        _ => vec![Spec::Linear(Linear { heads: a, head_dim: b, v_head_dim: c, dtype })],
    })
}

fn groups() -> impl Strategy<Value = GroupDocument> {
    let order = prop_oneof![
        8 => Just(None),
        1 => select(vec!["LBSHC", "LBHSC", "BLHSC", "LB", "nonsense"]).prop_map(|order| Some(order.to_owned())),
    ];
    let sizes = (
        prop_oneof![20 => select(vec![16, 64, 64, 128]), 1 => Just(0)],
        select(vec![1, 5, 5, 100]),
        prop_oneof![20 => select(vec![0, 0, 4096]), 1 => Just(u64::MAX)],
        prop_oneof![14 => Just(None), 1 => size().prop_map(Some)],
        prop_oneof![14 => Just(None), 1 => size().prop_map(Some)],
    );
    let bytes = || option::of(select(vec![4096, 1 << 24]));
    let stage = (bytes(), bytes(), bytes());
    let stage =
        stage.prop_map(|(offset, block_stride, layer_stride)| StageDocument { offset, block_stride, layer_stride });
    let stages = prop_oneof![24 => Just(Vec::new()), 1 => vec(stage, 1..3)];
    let layers = prop_oneof![20 => select(vec!["0-3", "0,2", "1,3", "3"]), 1 => Just("")];
    (layers, sizes, order, any::<[bool; 3]>(), stages, specs()).prop_map(
        |(
            layers,
            (block_size, num_blocks, offset, block_stride, layer_stride),
            order,
            [apart, dealt, draft],
            stages,
            specs,
        )| {
            GroupDocument {
                name: String::new(),
                layers: layers.to_owned(),
                block_size,
                num_blocks,
                dealt,
                order,
                allocation: if apart { Allocation::PerLayer } else { Allocation::One },
                offset,
                block_stride,
                layer_stride,
                stages,
                specs,
                draft,
            }
        },
    )
}

fn documents() -> impl Strategy<Value = Document> {
    let split = prop_oneof![
        8 => Just((1, None, None)),
        1 => Just((2, Some(4), None)),
        1 => Just((2, Some(5), Some(vec![2, 3]))),
        1 => Just((2, None, Some(vec![4]))),
    ];
    let name = select(vec!["", "prefill", "two words \"quoted\" \u{e9}"]);
    let deal = select(vec![(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (2, 1), (2, 16), (4, 64), (3, 0), (0, 16)]);
    (name, option::of(Just("llama")), select(vec![1, 1, 2, 4]), deal, split, vec(groups(), 0..4)).prop_map(
        |(name, model, tp, (dcp, interleave), (pp, num_layers, pp_layers), mut groups)| {
            for (i, group) in groups.iter_mut().enumerate() {
                group.name = format!("g{i}");
            }
            Document {
                name: name.to_owned(),
                model: model.map(str::to_owned),
                tp,
                pp,
                dcp,
                interleave,
                num_layers,
                pp_layers,
                groups,
            }
        },
    )
}
