//! The last joints of a bound program: chunks that segments of different extents leave side by side.

use std::collections::HashMap;

use super::nest::{ComponentSet, simplify};
use super::program::{Nest, Placed, Program};

/// Joins chunks that lie together on both sides and go through the same loops. `components` are those of
/// each nest; nests and places stay as they are where nothing joins.
///
/// Costs O(places) time where these come in the order of the destination, as segments do, and nothing
/// joins; else a sort.
pub(super) fn join_neighbours(program: &mut Program, components: &mut Vec<ComponentSet>) {
    let kin = kin(&program.nests);
    let kin_of = |p: &Placed| kin[p.nest as usize];
    let run_of = |p: &Placed| program.nests[p.nest as usize].run;
    if lie_apart(&program.placed, &kin, run_of) {
        return;
    }
    // By the destination, where no two lie at one place.
    let mut places = program.placed.clone();
    places.sort_unstable_by_key(|p| (kin_of(p), p.dst));
    let mut joined: Vec<(Placed, u64, ComponentSet)> = Vec::with_capacity(places.len());
    for p in places {
        let set = components[p.nest as usize];
        match joined.last_mut() {
            Some((last, run, all)) if kin_of(last) == kin_of(&p) && follows(last, *run, &p) => {
                *run += run_of(&p);
                all.0 |= set.0;
            }
            _ => joined.push((p, run_of(&p), set)),
        }
    }
    if joined.len() == program.placed.len() {
        return;
    }
    let mut made = Program::default();
    made.placed.reserve(joined.len());
    let mut sets = Vec::new();
    let mut known: HashMap<(u32, u64, ComponentSet), u32> = HashMap::new();
    for (place, run, set) in joined {
        let kin = kin_of(&place);
        let nest = *known.entry((kin, run, set)).or_insert_with(|| {
            let loops = program.nests[kin as usize].loops.iter();
            made.nests.push(simplify(loops.copied().collect(), run));
            sets.push(set);
            made.nests.len() as u32 - 1
        });
        made.placed.push(Placed { nest, ..place });
    }
    (*program, *components) = (made, sets);
}

/// For each nest, the first one of the same loops.
fn kin(nests: &[Nest]) -> Vec<u32> {
    let mut first = HashMap::new();
    let nests = (0..).zip(nests);
    nests
        .map(|(index, nest)| *first.entry(&nest.loops).or_insert(index))
        .collect()
}

/// Whether nothing joins, as far as one look at the places in their order can tell.
fn lie_apart(places: &[Placed], kin: &[u32], run: impl Fn(&Placed) -> u64) -> bool {
    let mut latest: Vec<Option<&Placed>> = vec![None; kin.len()];
    places.iter().all(|p| {
        let before = latest[kin[p.nest as usize] as usize].replace(p);
        before.is_none_or(|last| last.dst < p.dst && !follows(last, run(last), p))
    })
}

/// Whether `next` starts where `run` bytes from `place` end, on both sides.
fn follows(place: &Placed, run: u64, next: &Placed) -> bool {
    place.src + run == next.src && place.dst + run == next.dst
}
