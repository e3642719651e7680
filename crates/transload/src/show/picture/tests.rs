use std::collections::BTreeMap;

use transload::document::{self, Syntax};
use transload::layout::{Axis, Deployment, Rank, Side};
use transload::transfer::plan::BoundPlan;
use transload::transfer::{BlockTable, Plan, Request, Tables};

use super::panel::{Chunk, Panel};
use super::{Scene, plan_svg};
use crate::show::sketch::sketch;

const ATTENTION: &str = "kind = \"attention\"\nheads = 8\nhead_dim = 128\ndtype = \"bf16\"";
const MLA: &str = "kind = \"mla\"\nlatent = 576\ndtype = \"bf16\"";
const SCALED: &str = "kind = \"indexer\"\ndata_bytes = 128\nscale_bytes = 4";

fn side(name: &str, rest: &str, group: &str, specs: &[&str]) -> Deployment {
    let specs: Vec<String> = specs.iter().map(|spec| format!("[[group.spec]]\n{spec}\n")).collect();
    let text = format!(
        "schema = \"transload.deployment/1\"\nname = {name:?}\n{rest}\n[[group]]\nname = \"attn\"\n\
         {group}\n{}",
        specs.join("\n")
    );
    document::parse("side", &text, Syntax::Toml).expect(&text)
}

/// One of 80 layers of attention.
fn attention(tp: u32, block: u64, order: &str) -> Deployment {
    let rest = format!("tp = {tp}\nblock_size = {block}\nnum_blocks = 512\norder = {order:?}");
    side("side", &rest, "layers = \"0-79\"", &[ATTENTION])
}

/// Returns a page of Mamba2.
fn mamba(tp: u32, layout: &str) -> Deployment {
    let conv = format!(
        "kind = \"mamba2_conv\"\nd_inner = 8192\nheads = 128\ngroups = 8\nstate_size = 128\n\
         conv_kernel = 4\ndtype = \"bf16\"\nconv_layout = {layout:?}"
    );
    let ssm = "kind = \"mamba2_ssm\"\nheads = 128\nhead_dim = 64\nstate_size = 128\ndtype = \"f32\"";
    let rest = format!("tp = {tp}\nblock_size = 528\nnum_blocks = 8");
    side("side", &rest, "layers = \"0-41\"", &[&conv, ssm])
}

/// The plan between two sides, and the tables it is bound to.
struct Case {
    src: Deployment,
    dst: Deployment,
    plan: Plan,
    bound: BoundPlan,
    tables: Tables,
}

impl Case {
    fn new(src: Deployment, dst: Deployment, tokens: u64) -> Self {
        let plan = Plan::compile(&src, &dst, &Request::tokens(tokens)).expect("a plan");
        let tables = Tables::identity(&plan);
        let bound = plan.bind(&tables, &tables).expect("bound");
        Self { src, dst, plan, bound, tables }
    }

    fn scene(&self) -> Scene<'_> {
        Scene { sides: [&self.src, &self.dst], plan: &self.plan, bound: &self.bound, tables: [&self.tables; 2] }
    }
}

fn cases() -> Vec<(&'static str, Case)> {
    let pair =
        |a: (u32, u64, &str), b: (u32, u64, &str)| Case::new(attention(a.0, a.1, a.2), attention(b.0, b.1, b.2), 2048);
    let one = |rest: &str, group: &str, spec: &str| side("side", rest, group, &[spec]);
    let stages = |pp: u32| format!("tp = 2\npp = {pp}\nblock_size = 16\nnum_blocks = 200");
    let windowed = format!("{ATTENTION}\nsliding_window = 128");
    let wide = ATTENTION.replace("head_dim = 128", "head_dim = 192\nv_head_dim = 128");
    vec![
        ("canonical", pair((4, 16, "LBSHC"), (8, 64, "LBHSC"))),
        ("by heads", pair((4, 16, "LBHSC"), (8, 64, "LBHSC"))),
        ("blocks outside", pair((4, 16, "BLSHC"), (8, 64, "BHLSC"))),
        ("pools", pair((4, 16, "KLBSHD"), (8, 64, "LBHSC"))),
        ("transposed keys", pair((2, 16, "LBH[DS,SD]"), (2, 16, "LBSHC"))),
        ("content outside", pair((1, 16, "LBCHS"), (2, 8, "LBHSC"))),
        ("replicas", pair((16, 16, "NHD"), (32, 16, "HND"))),
        ("gathered", pair((8, 48, "NHD"), (1, 32, "HND"))),
        ("mla", {
            let side = |tp: u32, block: u64| {
                one(&format!("tp = {tp}\nblock_size = {block}\nnum_blocks = 200"), "layers = \"0-60\"", MLA)
            };
            Case::new(side(1, 64), side(4, 16), 2048)
        }),
        ("scales", {
            let side = |order: &str| {
                let group = format!("layers = \"0-60\"\norder = {order:?}");
                one("block_size = 64\nnum_blocks = 64", &group, SCALED)
            };
            Case::new(side("LB[SD,SD]"), side("LBSC"), 2048)
        }),
        ("hybrid", Case::new(mamba(1, "SD"), mamba(2, "DS"), 2048)),
        ("allocations", {
            let group = "layers = \"0-79\"\nallocation = \"per_layer\"";
            let src = one("block_size = 16\nnum_blocks = 512", group, ATTENTION);
            Case::new(src, attention(2, 16, "HND"), 2048)
        }),
        ("stages", {
            let side = |pp| one(&stages(pp), "layers = \"0-79\"", ATTENTION);
            Case::new(side(1), side(2), 2048)
        }),
        ("window", {
            let side = |tp: u32, block: u64| {
                let rest = format!("tp = {tp}\nblock_size = {block}\nnum_blocks = 512");
                one(&rest, "layers = \"0-79\"", &windowed)
            };
            Case::new(side(1, 16), side(2, 64), 2048)
        }),
        ("wide keys", {
            let side =
                |tp: u32| one(&format!("tp = {tp}\nblock_size = 16\nnum_blocks = 512"), "layers = \"0-1\"", &wide);
            Case::new(side(1), side(2), 100)
        }),
        ("as it is", Case::new(tiny(1, 2, "NHD"), tiny(2, 4, "HND"), 7)),
    ]
}

/// Small enough to be drawn as it is.
fn tiny(tp: u32, block: u64, order: &str) -> Deployment {
    let rest = format!("tp = {tp}\nblock_size = {block}\nnum_blocks = 4\norder = {order:?}");
    let spec = "kind = \"attention\"\nheads = 2\nhead_dim = 4\ndtype = \"bf16\"";
    side(if tp == 1 { "prefill" } else { "decode" }, &rest, "layers = \"3,5\"", &[spec])
}

/// Returns what the byte at an address means, from the views alone: layer, token, spec and component, unit, and the
/// position along every content axis.
fn decode(side: &Deployment, group: usize, rank: Rank, address: u64) -> Option<[u64; 8]> {
    let group = &side.groups()[group];
    let (tp, stage) = side.split_rank(rank);
    let layers = &group.layers().ids()[group.stage_slots(stage)];
    group.views(tp, stage).find_map(|component| {
        let mut rest = address.checked_sub(component.view.offset)?;
        let mut dims = component.view.dims.clone();
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.stride));
        let mut at: BTreeMap<Axis, u64> = BTreeMap::new();
        for dim in dims.iter().filter(|dim| dim.extent > 1) {
            let position = (rest / dim.stride).min(dim.extent - 1);
            at.insert(dim.axis, position);
            rest -= position * dim.stride;
        }
        let on = |axis| at.get(&axis).copied().unwrap_or(0);
        (rest == 0).then(|| {
            let states = component.view.dim(Axis::State).extent;
            [
                layers[on(Axis::Layer) as usize].into(),
                on(Axis::Block) * states + on(Axis::State),
                component.spec as u64,
                component.component as u64,
                component.units.start + on(Axis::Unit),
                on(Axis::Content(0)),
                on(Axis::Content(1)),
                on(Axis::Byte),
            ]
        })
    })
}

#[test]
fn the_lowest_chunks_of_a_rank_are_drawn_and_hold_the_same_on_both_sides() {
    for (name, case) in cases() {
        let panel = Panel::new(&case.scene(), 0).expect(name);
        // The lowest of all, where listing them takes no time.
        if case.bound.chunks() < 1 << 19 {
            let followed = usize::from(case.dst.ranks().count() < case.src.ranks().count());
            let mut lowest = Vec::new();
            for route in case.bound.routes.iter().filter(|route| route.group == 0) {
                let ranks = [route.src_rank, route.dst_rank];
                let program = route.program();
                program.for_each_chunk(|src, dst, bytes| {
                    let at = [src, dst];
                    lowest.push(Chunk { at, ranks, bytes });
                });
            }
            lowest.retain(|chunk| chunk.ranks[followed] == Rank(0));
            lowest.sort_by_key(|chunk| (chunk.at[followed], *chunk));
            lowest.truncate(20);
            assert_eq!(panel.chunks, lowest, "{name}");
        }
        for chunk in &panel.chunks {
            for byte in [0, chunk.bytes - 1] {
                let [there, here] = [0, 1].map(|side| {
                    let deployment = [&case.src, &case.dst][side];
                    let group = case.plan.group_of([Side::Source, Side::Destination][side], 0);
                    decode(deployment, group, chunk.ranks[side], chunk.at[side] + byte)
                });
                assert!(there.is_some(), "{name}");
                assert_eq!(there, here, "{name}");
            }
        }
        let labels = panel.sides.each_ref().map(|strips| {
            let cells = strips.iter().flat_map(|strip| &strip.cells);
            let chunks = cells.filter_map(|cell| Some((cell.chunk?, &cell.labels)));
            let mut labels: Vec<_> = chunks.collect();
            labels.sort();
            labels
        });
        // A block has another number on each side.
        let meant = |labels: &[(usize, &Vec<(String, String)>)]| -> Vec<_> {
            let meant = labels.iter().map(|(chunk, labels)| {
                let labels = labels.iter().filter(|(axis, _)| axis != "block");
                (*chunk, labels.cloned().collect::<Vec<_>>())
            });
            meant.collect()
        };
        if labels[0].len() == labels[1].len() {
            assert_eq!(meant(&labels[0]), meant(&labels[1]), "{name}");
        }
        assert!(labels[1].iter().all(|(_, labels)| !labels.is_empty()), "{name}");
    }
}

#[test]
fn pictures_are_xml_of_a_bounded_size() {
    for (name, case) in cases() {
        let picture = plan_svg(&case.scene());
        let document = roxmltree::Document::parse(&picture).expect(name);
        assert_eq!(document.root_element().tag_name().name(), "svg");
        assert!(picture.len() < 150_000, "{name}: {}", picture.len());
        assert_eq!(picture, plan_svg(&case.scene()), "{name}");
    }
}

#[test]
fn thousands_of_ranks_make_no_large_picture() {
    let layers = "layers = \"0-79\"";
    let many = |tp: u32, pp: u32, heads: u64| {
        let rest = format!("tp = {tp}\npp = {pp}\nblock_size = 16\nnum_blocks = 512");
        let spec = ATTENTION.replace("heads = 8", &format!("heads = {heads}"));
        side("side", &rest, layers, &[&spec])
    };
    for (src, dst) in [
        (many(64, 64, 64), many(16, 80, 64)),
        (many(1, 1, 4096), many(4096, 1, 4096)),
        (many(7, 1, 35), many(5, 1, 35)),
        (many(63, 1, 1), many(62, 2, 1)),
        (many(21, 1, 3), many(15, 1, 3)),
    ] {
        let picture = plan_svg(&Case::new(src, dst, 2048).scene());
        roxmltree::Document::parse(&picture).expect("XML");
        assert!(picture.len() < 300_000, "{}", picture.len());
    }
}

#[test]
fn no_name_breaks_out() {
    let hostile = "</title><script>alert(1)</script>\" onload='x' &amp; \u{202e}gnp\u{0}\u{1b}[31m";
    let name = |text: &str| {
        let mut document = tiny(1, 2, "NHD").document().clone();
        document.name = text.to_owned();
        document.model = Some(text.repeat(40));
        Deployment::from_document(document).expect("names are free")
    };
    let picture = plan_svg(&Case::new(name(hostile), name(hostile), 7).scene());
    let document = roxmltree::Document::parse(&picture).expect("XML");
    assert!(document.descendants().all(|node| !node.has_tag_name("script")));
    let attributes = document.descendants().flat_map(|node| node.attributes());
    assert!(attributes.into_iter().all(|attribute| attribute.name() != "onload"));
    assert!(!picture.contains(['\u{202e}', '\u{0}', '\u{1b}']));
}

#[test]
fn odd_requests_are_drawn_too() {
    let compressed = SCALED.to_owned() + "\ntokens_per_state = 4";
    let indexer = || side("side", "block_size = 64\nnum_blocks = 64", "layers = \"0-3\"", &[&compressed]);
    let padded = || {
        let group = "layers = \"0-79\"\noffset = 4096\nblock_stride = 100000\nlayer_stride = 60000000";
        side("side", "block_size = 16\nnum_blocks = 512", group, &[ATTENTION])
    };
    for (src, dst, start, tokens) in [
        (attention(1, 16, "NHD"), attention(2, 64, "HND"), 1900, 100),
        (attention(1, 16, "NHD"), attention(2, 64, "HND"), 5, 0),
        (attention(1, 400, "NHD"), attention(2, 784, "HND"), 5, 5000),
        (indexer(), indexer(), 1, 2),
        (indexer(), indexer(), 3, 1000),
        (padded(), attention(2, 64, "HND"), 0, 2000),
        (mamba(2, "SD"), mamba(1, "DS"), 700, 90),
        (tiny(1, 2, "NHD"), tiny(2, 4, "HND"), 3, 2),
        (tiny(1, 1, "LBSHC"), tiny(2, 1, "BSHLC"), 0, 1),
    ] {
        let request = Request { start, ..Request::tokens(tokens) };
        let plan = Plan::compile(&src, &dst, &request).expect("a plan");
        let tables = Tables::identity(&plan);
        let bound = plan.bind(&tables, &tables).expect("bound");
        let case = Case { src, dst, plan, bound, tables };
        let picture = plan_svg(&case.scene());
        roxmltree::Document::parse(&picture).expect("XML");
        assert_eq!(picture.contains("Group "), case.bound.bytes() > 0, "{picture}");
    }
}

#[test]
fn scattered_blocks_stand_where_they_are() {
    let case = Case::new(tiny(1, 2, "NHD"), tiny(2, 4, "HND"), 7);
    let src = Tables(vec![BlockTable::List(vec![3, 0, 2, 1])]);
    let bound = case.plan.bind(&src, &case.tables).expect("bound");
    let scene = Scene { bound: &bound, tables: [&src, &case.tables], ..case.scene() };
    let panel = Panel::new(&scene, 0).expect("a panel");
    let held = |axis: &str| {
        let cells = panel.sides[0][0].cells.iter();
        let mut labels = cells.flat_map(|cell| &cell.labels);
        let label = labels.find(|(of, _)| of == axis);
        label.map(|(_, label)| label.clone()).expect("a label")
    };
    assert_eq!((held("block"), held("token")), ("0".to_owned(), "2".to_owned()));
}

#[test]
fn a_small_plan_looks_so() {
    let case = Case::new(tiny(1, 2, "NHD"), tiny(2, 4, "HND"), 4);
    insta::assert_snapshot!(plan_svg(&case.scene()));
}

#[test]
fn sketches() {
    let mut text = String::new();
    for (name, case) in cases() {
        for side in [&case.src, &case.dst] {
            let sketch = sketch(side, 0, 80);
            assert!(sketch.lines().all(|line| line.chars().count() <= 80), "{name}:\n{sketch}");
            if !text.contains(&sketch) {
                text.push_str(&format!("{sketch}\n"));
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn narrow_terminals_see_the_beginning() {
    let sketch = sketch(&attention(4, 16, "NHD"), 0, 24);
    assert!(sketch.lines().all(|line| line.chars().count() <= 60), "{sketch}");
    assert!(sketch.contains("part"), "{sketch}");
}
