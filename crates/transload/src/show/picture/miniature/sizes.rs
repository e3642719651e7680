//! How small: ranks, heads, blocks and tokens that stand in the same relations as the real ones.

use std::collections::BTreeMap;

use transload::layout::partition::Partition;
use transload::layout::partition::Replication;
use transload::layout::spec::States;
use transload::transfer::plan::Side;

use super::Scene;

/// The most units (heads, channels) of a component.
const MOST_UNITS: u64 = 24;

/// The largest TP size that is no multiple of the other's.
const MOST_TP: u64 = 4;

/// The largest ratio between the two sides' TP sizes, and between their block sizes.
const MOST_RATIO: u64 = 4;

/// TP and PP of both sides, and how many units stand for how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranks {
    tp: (u32, u32),
    pp: (u32, u32),
    units: BTreeMap<u64, u64>,
}

impl Ranks {
    /// For some groups of a plan. If not `strict`, a rank may have one unit where it really has several.
    pub(super) fn of(scene: &Scene<'_>, groups: &[usize], strict: bool) -> Self {
        let real = (u64::from(scene.src.tp()), u64::from(scene.dst.tp()));
        let mut units: Vec<u64> = Vec::new();
        for group in groups {
            let group = &scene.src.groups()[scene.plan.group_of(Side::Source, *group)];
            for spec in group.specs() {
                let geometry = spec.geometry();
                units.extend(geometry.components.iter().map(|c| c.partition.units()));
            }
        }
        units.sort_unstable();
        units.dedup();
        let divisor = gcd(real.0, real.1);
        let (mut a, mut b) = (real.0 / divisor, real.1 / divisor);
        if a.min(b) == 1 || a.max(b) > MOST_TP {
            (a, b) = ratio(a, b);
        }
        let tried = [1, 2, 4].map(|times| (a * times, b * times));
        let mut tried = tried
            .into_iter()
            .filter(|tp| tp.0 <= real.0 && tp.1 <= real.1);
        let found = tried.find_map(|tp| {
            let pairs = units
                .iter()
                .map(|u| Some((*u, alike(*u, real, tp, strict)?)));
            Some((tp, pairs.collect::<Option<BTreeMap<u64, u64>>>()?))
        });
        // What always goes: one rank, with all heads.
        let (tp, units) =
            found.unwrap_or_else(|| ((1, 1), units.iter().map(|u| (*u, (*u).min(2))).collect()));
        let stages = (u64::from(scene.src.pp()), u64::from(scene.dst.pp()));
        let divisor = gcd(stages.0, stages.1);
        let pp = |stages: u64| (stages / divisor).min(3) as u32;
        Self {
            tp: (tp.0 as u32, tp.1 as u32),
            pp: (pp(stages.0), pp(stages.1)),
            units,
        }
    }

    pub(super) fn of_side(&self, side: Side) -> (u32, u32) {
        match side {
            Side::Source => (self.tp.0, self.pp.0),
            Side::Destination => (self.tp.1, self.pp.1),
        }
    }

    /// How many units stand for so many.
    pub(super) fn units(&self, real: u64) -> u64 {
        self.units.get(&real).copied().unwrap_or(real)
    }
}

/// The fewest units that both TP sizes share out as they share out the real ones: several or one on each
/// rank, on one rank or on several.
fn alike(units: u64, real: (u64, u64), tp: (u64, u64), strict: bool) -> Option<u64> {
    let relation = |units: u64, tp: u64| {
        let partition = Partition::new(units, Replication::Any);
        let each = partition.per_rank(u32::try_from(tp).ok()?).ok()?;
        Some((each > 1, tp > units))
    };
    (1..=units.min(MOST_UNITS)).find(|few| {
        let (now, wanted) = (
            (relation(*few, tp.0), relation(*few, tp.1)),
            (relation(units, real.0), relation(units, real.1)),
        );
        let possible = now.0.is_some() && now.1.is_some();
        possible && (now == wanted || !strict) && (*few == 1) == (units == 1)
    })
}

/// Layers, blocks and tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) layers: u64,
    /// Tokens of a block on each side.
    block_size: (u64, u64),
    pub(super) start: u64,
    pub(super) tokens: u64,
    /// Whether a window, or chunked attention, leaves out tokens.
    pub(super) windowed: bool,
}

impl Size {
    /// The sizes worth trying, the one that shows most first.
    pub(super) fn candidates(scene: &Scene<'_>, group: usize, ranks: &Ranks) -> Vec<Self> {
        let request = scene.plan.request();
        let src = &scene.src.groups()[scene.plan.group_of(Side::Source, group)];
        let dst = &scene.dst.groups()[scene.plan.group_of(Side::Destination, group)];
        let layers = src.layers().ids().len() as u64;
        let stages = u64::from(ranks.pp.0.max(ranks.pp.1));
        let windowed = {
            let firsts = src.specs().iter();
            let firsts = firsts.map(|spec| spec.first_token_needed(request.start, request.end()));
            firsts.min().is_some_and(|first| first > request.start)
        };
        let per_state = src.specs().iter().map(|spec| match spec.geometry().states {
            States::PerTokens(tokens) => tokens,
            States::Sequence => 1,
        });
        let per_state = per_state.fold(1, lcm);
        let states = (src.block_size() / per_state, dst.block_size() / per_state);
        let (a, b) = ratio(states.0.max(1), states.1.max(1));
        let mut sizes = Vec::new();
        for layers in [2, 1].map(|few: u64| few.max(stages).min(layers.max(1))) {
            for (times, blocks) in [(4, 2), (2, 2), (4, 1), (2, 1), (1, 2), (1, 1)] {
                let larger = a.max(b) * times;
                let wider_than_real = a * times > states.0 || b * times > states.1;
                if larger > 8 || (wider_than_real && times > 1) {
                    continue;
                }
                let (blocks, recurrent) = match src.is_recurrent() {
                    // The state lies in the first block.
                    true => (1, true),
                    false => (blocks, false),
                };
                let end = lcm(a * times, b * times).max(larger * blocks) * per_state;
                // The range starts inside of the sequence if the real one does.
                let start = match request.start {
                    0 => 0,
                    _ if recurrent => 0,
                    _ => a.min(b) * times * per_state,
                };
                let start = if start < end { start } else { 0 };
                sizes.push(Self {
                    layers,
                    block_size: (a * times * per_state, b * times * per_state),
                    start,
                    tokens: end - start,
                    windowed,
                });
            }
        }
        sizes.dedup();
        sizes
    }

    /// Tokens of a block, and how many blocks there are.
    pub(super) fn blocks(&self, side: Side) -> (u64, u64) {
        let block_size = match side {
            Side::Source => self.block_size.0,
            Side::Destination => self.block_size.1,
        };
        let end = self.start + self.tokens;
        (block_size, end.div_ceil(block_size))
    }

    /// A window, or a length of chunks, that leaves out some of the tokens if the real one does.
    pub(super) fn window(&self) -> u64 {
        let end = self.start + self.tokens;
        match self.windowed {
            true => end / 2 + 1,
            false => 4 * end,
        }
    }
}

/// The ratio of two block sizes, or one like it that can be seen.
fn ratio(a: u64, b: u64) -> (u64, u64) {
    let divisor = gcd(a, b);
    let exact = (a / divisor, b / divisor);
    if exact.0.max(exact.1) <= MOST_RATIO {
        return exact;
    }
    let times = a.max(b) / a.min(b);
    let like = match times {
        0 | 1 => (2, 3),
        times => (1, times.min(MOST_RATIO)),
    };
    if a <= b { like } else { (like.1, like.0) }
}

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a.max(1),
        b => gcd(b, a % b),
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    (a / gcd(a, b)).saturating_mul(b)
}
