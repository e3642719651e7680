//! The final step of binding: joins chunks of different segments that are adjacent.

use std::collections::HashMap;

use crate::nest::{ComponentSet, simplify};
use crate::program::{Nest, Placed, Program};

/// Joins chunks that are adjacent on both sides and have the same loops. `components` has an entry for each nest. If
/// nothing joins, nests and places are unchanged.
///
/// Costs O(places) if nothing joins and the places are in the order of the destination, as they are when segments place
/// one nest for each set of loops. Otherwise it sorts.
pub(crate) fn join_neighbours(program: &mut Program, components: &mut Vec<ComponentSet>) {
    let first_same = first_with_same_loops(&program.nests);
    let first_of = |p: &Placed| first_same[p.nest as usize];
    let run_of = |p: &Placed| program.nests[p.nest as usize].run;
    if are_separate(&program.placed, &first_same, run_of) {
        return;
    }
    // Sort by the destination, where all places differ.
    let mut places = program.placed.clone();
    places.sort_unstable_by_key(|p| (first_of(p), p.dst));
    let mut joined: Vec<(Placed, u64, ComponentSet)> = Vec::with_capacity(places.len());
    for p in places {
        let set = components[p.nest as usize];
        match joined.last_mut() {
            Some((last, run, all)) if first_of(last) == first_of(&p) && follows(last, *run, &p) => {
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
        let first = first_of(&place);
        let nest = *known.entry((first, run, set)).or_insert_with(|| {
            let loops = program.nests[first as usize].loops.iter();
            made.nests.push(simplify(loops.copied().collect(), run));
            sets.push(set);
            made.nests.len() as u32 - 1
        });
        made.placed.push(Placed { nest, ..place });
    }
    (*program, *components) = (made, sets);
}

/// Returns, for each nest, the first one with the same loops.
fn first_with_same_loops(nests: &[Nest]) -> Vec<u32> {
    let mut first = HashMap::new();
    let nests = (0..).zip(nests);
    nests.map(|(index, nest)| *first.entry(&nest.loops).or_insert(index)).collect()
}

/// Tells whether nothing joins, as far as one pass over the places in order can tell.
fn are_separate(places: &[Placed], first_same: &[u32], run: impl Fn(&Placed) -> u64) -> bool {
    let mut latest: Vec<Option<&Placed>> = vec![None; first_same.len()];
    places.iter().all(|p| {
        let before = latest[first_same[p.nest as usize] as usize].replace(p);
        before.is_none_or(|last| last.dst < p.dst && !follows(last, run(last), p))
    })
}

/// Tells whether `next` starts where `run` bytes from `place` end, on both sides.
fn follows(place: &Placed, run: u64, next: &Placed) -> bool {
    place.src + run == next.src && place.dst + run == next.dst
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::*;
    use crate::program::Loop;

    /// Bytes of all chunks, and of the gaps between them, are multiples of this.
    const UNIT: u64 = 16;

    /// Nests whose loops go so far that no two places come near one another in them.
    fn nests() -> Vec<Nest> {
        let far = |src: u64, dst: u64| Loop { count: 2, src: src << 30, dst: dst << 30 };
        let loops = [smallvec![], smallvec![far(1, 2)], smallvec![far(2, 1)]];
        let runs = [1, 2].map(|units| units * UNIT);
        let of = |run| loops.iter().cloned().map(move |loops| Nest { loops, run });
        runs.into_iter().flat_map(of).collect()
    }

    /// Chunks in a row, each after a gap on either side or on none; in that order or any other.
    fn program() -> impl Strategy<Value = Program> {
        // Most of them touch.
        let gap = || prop_oneof![3 => Just(0), 1 => Just(UNIT)];
        let step = (0..nests().len(), gap(), gap());
        let steps = proptest::collection::vec(step, 0..24);
        let placed = steps.prop_map(|steps| {
            let (mut src, mut dst) = (0, 0);
            let placed = steps.into_iter().map(|(nest, before_src, before_dst)| {
                (src, dst) = (src + before_src, dst + before_dst);
                let place = Placed { nest: nest as u32, src, dst };
                let run = nests()[nest].run;
                (src, dst) = (src + run, dst + run);
                place
            });
            placed.collect::<Vec<_>>()
        });
        let placed = prop_oneof![placed.clone(), placed.prop_shuffle()];
        placed.prop_map(|placed| Program { nests: nests(), placed })
    }

    /// For each unit of the destination, where it comes from and the component that it is of.
    fn units(program: &Program, components: &[ComponentSet]) -> BTreeMap<u64, (u64, ComponentSet)> {
        let mut units = BTreeMap::new();
        for place in &program.placed {
            let one = Program { nests: program.nests.clone(), placed: vec![*place] };
            one.for_each_chunk(|src, dst, run| {
                for at in (0..run).step_by(UNIT as usize) {
                    let unit = (src + at, components[place.nest as usize]);
                    assert_eq!(units.insert(dst + at, unit), None, "written twice");
                }
            });
        }
        units
    }

    proptest! {
        #[test]
        fn all_that_joins_is_joined_and_nothing_else(before in program()) {
            let sets: Vec<_> = (0..nests().len()).map(|nest| ComponentSet(1 << nest)).collect();
            let (mut after, mut joined) = (before.clone(), sets.clone());
            join_neighbours(&mut after, &mut joined);
            let (was, is) = (units(&before, &sets), units(&after, &joined));
            prop_assert!(was.keys().eq(is.keys()));
            for ((_, (from, of)), (_, (now, all))) in was.iter().zip(&is) {
                prop_assert_eq!(from, now);
                prop_assert_eq!(of.0 & all.0, of.0);
            }
            let nest = |place: &Placed| &after.nests[place.nest as usize];
            for a in &after.placed {
                for b in &after.placed {
                    let same_loops = nest(a).loops == nest(b).loops;
                    prop_assert!(!(same_loops && follows(a, nest(a).run, b)), "{a:?} and {b:?}");
                }
            }
        }
    }
}
