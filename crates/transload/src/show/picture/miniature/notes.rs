//! What was made smaller, in words.

use transload::layout::{Deployment, Group, Spec};
use transload::transfer::plan::Side;

use super::{Miniature, Scene};
use crate::show::number::grouped;

/// `2 of 80 layers`, `TP 4 → 8 as 1 → 2` …
pub(super) fn differences(scene: &Scene<'_>, group: usize, made: &Miniature) -> Vec<String> {
    let mut notes = Vec::new();
    let real = |side| {
        let deployment: &Deployment = match side {
            Side::Source => scene.src,
            Side::Destination => scene.dst,
        };
        &deployment.groups()[scene.plan.group_of(side, group)]
    };
    let (src, dst) = (real(Side::Source), real(Side::Destination));
    let (few_src, few_dst) = (&made.src.groups()[0], &made.dst.groups()[0]);
    let mut pair = |what: &str, real: (u64, u64), few: (u64, u64)| {
        if real != few {
            let both = |pair: (u64, u64)| match pair.0 == pair.1 {
                true => grouped(pair.0),
                false => format!("{} → {}", grouped(pair.0), grouped(pair.1)),
            };
            notes.push(format!("{what} {} as {}", both(real), both(few)));
        }
    };
    let tp = |d: &Deployment| u64::from(d.tp());
    let pp = |d: &Deployment| u64::from(d.pp());
    pair(
        "TP",
        (tp(scene.src), tp(scene.dst)),
        (tp(&made.src), tp(&made.dst)),
    );
    pair(
        "PP",
        (pp(scene.src), pp(scene.dst)),
        (pp(&made.src), pp(&made.dst)),
    );
    let (a, b) = (src.block_size(), dst.block_size());
    // A block of recurrent state holds one, however many tokens it stands for.
    if !src.is_recurrent() {
        pair(
            "blocks of",
            (a, b),
            (few_src.block_size(), few_dst.block_size()),
        );
    }
    let mut part = |few: u64, real: u64, what: &str| {
        if few != real {
            notes.push(format!("{} of {} {what}", grouped(few), grouped(real)));
        }
    };
    let layers = |group: &Group| group.layers().ids().len() as u64;
    part(layers(few_src), layers(src), "layers");
    let mut seen = Vec::new();
    for (few, real) in few_src.specs().iter().zip(src.specs()) {
        let (few, real) = (few.geometry(), real.geometry());
        for (few, real) in few.components.iter().zip(&real.components) {
            let units = (few.partition.units(), real.partition.units());
            if units.1 > 1 && !seen.contains(&real.field) {
                seen.push(real.field);
                part(units.0, units.1, &super::super::words::units(real.field));
            }
        }
    }
    if !src.is_recurrent() {
        part(
            made.plan.request().tokens,
            scene.plan.request().tokens,
            "tokens",
        );
    }
    let mut taps = src
        .specs()
        .iter()
        .zip(few_src.specs())
        .filter_map(|(real, few)| {
            real.conv_layout()?;
            let taps = |spec: &Spec| {
                let geometry = spec.geometry();
                geometry
                    .components
                    .first()
                    .and_then(|c| c.content.get(1).copied())
            };
            Some((taps(few)?, taps(real)?))
        });
    if let Some((few, real)) = taps.next() {
        part(few, real, "taps");
    }
    let windows = src.specs().iter().zip(few_src.specs());
    let mut windows: Vec<String> = windows
        .filter_map(|(real, few)| match (real, few) {
            (Spec::Attention(real), Spec::Attention(few)) => Some((real, few)),
            _ => None,
        })
        .flat_map(|(real, few)| {
            let tokens = made.plan.request().end();
            let as_few = |what, real: Option<u64>, few: Option<u64>| {
                // One that leaves out nothing is not worth a word.
                let (real, few) = (real?, few.filter(|few| *few <= tokens)?);
                Some(format!("{what} of {} as {few}", grouped(real)))
            };
            [
                as_few("a window", real.sliding_window, few.sliding_window),
                as_few("chunks of attention", real.chunk_size, few.chunk_size),
            ]
        })
        .flatten()
        .collect();
    windows.dedup();
    notes.append(&mut windows);
    let padded = [Side::Source, Side::Destination].into_iter().any(|side| {
        let deployment = match side {
            Side::Source => scene.src,
            Side::Destination => scene.dst,
        };
        let index = scene.plan.group_of(side, group);
        deployment
            .document()
            .groups
            .get(index)
            .is_some_and(|group| {
                group.offset > 0 || group.block_stride.is_some() || group.layer_stride.is_some()
            })
    });
    if padded {
        notes.push("without offset and padding".to_owned());
    }
    notes
}
