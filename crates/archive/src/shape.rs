//! The shape of a model's cache: its parts that are divided into pieces, independent of ranks.

use blake3::Hasher;
use transload_layout::Deployment;
use transload_layout::spec::{ConvLayout, FieldValue, Spec};
use transload_plan::codec::Codec;

use crate::ArchiveError;
use crate::key::{TOKEN_CHUNK, text};

/// The groups of a model's cache, ordered by name, without ranks, blocks and orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) groups: Vec<GroupShape>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupShape {
    pub(crate) name: String,
    /// The global layer ids, ascending.
    pub(crate) layers: Vec<u32>,
    /// The group's specs in the archive's layout.
    pub(crate) specs: Vec<Spec>,
    pub(crate) classes: Vec<Class>,
    pub(crate) growth: Growth,
}

/// Components of a group with the same number of units, so that unit u of each of them is always on the same ranks:
/// heads of keys and values, or heads of `x` and of its state. A piece holds one unit of a class, or a bundle of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) units: u64,
    /// The number of units in a piece. A rank may hold fewer.
    pub(crate) bundle: u64,
    pub(crate) members: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    All,
    /// The last tokens only (a sliding window, or a chunk of attention). The engine may not keep more.
    Window,
    Recurrent,
}

impl Shape {
    pub(crate) fn of(deployment: &Deployment) -> Result<Self, ArchiveError> {
        let groups = deployment.groups().iter().map(|group| {
            let mut specs = group.specs().to_vec();
            for spec in &mut specs {
                if let Some(layout) = spec.conv_layout_mut() {
                    *layout = ConvLayout::Ds;
                }
                if let Some(tokens) = spec.tokens_per_state()
                    && !TOKEN_CHUNK.is_multiple_of(tokens)
                {
                    return Err(ArchiveError::TokensPerState { group: group.name().to_owned(), tokens });
                }
            }
            let recurrent = specs.iter().filter(|spec| spec.is_recurrent()).count();
            if recurrent != 0 && recurrent != specs.len() {
                return Err(ArchiveError::MixedGroup { group: group.name().to_owned() });
            }
            let windowed = specs.iter().any(|spec| spec.without_window() != *spec);
            Ok(GroupShape {
                name: group.name().to_owned(),
                layers: group.layers().ids().to_vec(),
                classes: classes(&specs),
                growth: match (recurrent > 0, windowed) {
                    (true, _) => Growth::Recurrent,
                    (false, true) => Growth::Window,
                    (false, false) => Growth::All,
                },
                specs,
            })
        });
        let mut groups = groups.collect::<Result<Vec<_>, _>>()?;
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { groups })
    }

    /// Returns the BLAKE3-256 of everything that two caches must share for their pieces to be equal.
    ///
    /// For each group, by name: its name, its global layer ids, and for each spec its kind and the fields that both
    /// sides of a transfer must agree on, by name. Numbers are `u64`. The codec's name follows, unless it is exact.
    pub(crate) fn fingerprint(&self, codec: Codec) -> [u8; 32] {
        let mut hasher = Hasher::new_derive_key("transload archive 2 cache");
        count(&mut hasher, TOKEN_CHUNK);
        count(&mut hasher, self.groups.len() as u64);
        for group in &self.groups {
            text(&mut hasher, group.name.as_bytes());
            count(&mut hasher, group.layers.len() as u64);
            for layer in &group.layers {
                count(&mut hasher, u64::from(*layer));
            }
            count(&mut hasher, group.specs.len() as u64);
            for spec in &group.specs {
                text(&mut hasher, spec.kind().as_bytes());
                let fields = spec.identity();
                count(&mut hasher, fields.len() as u64);
                for (name, value) in fields {
                    text(&mut hasher, name.as_bytes());
                    match value {
                        FieldValue::Absent => hasher.update(&[0]),
                        FieldValue::Number(value) => hasher.update(&[1]).update(&value.to_le_bytes()),
                        FieldValue::Text(value) => {
                            hasher.update(&[2]);
                            text(&mut hasher, value.as_bytes());
                            &mut hasher
                        }
                    };
                }
            }
        }
        if !codec.is_exact() {
            text(&mut hasher, codec.name().as_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

impl GroupShape {
    pub(crate) fn needed(&self, end: u64) -> std::ops::Range<u64> {
        let from = self.specs.iter().map(|spec| spec.first_token_needed(0, end));
        from.min().unwrap_or(0).min(end)..end
    }

    pub(crate) fn is_longer_than_a_chunk(&self) -> bool {
        let end = 1 << 32;
        self.needed(end).start + TOKEN_CHUNK <= end
    }
}

/// The maximum number of pieces of a class for a token chunk and a span of layers. No model has more heads. The
/// channels of Mamba1 (thousands, each a few bytes a layer) are bundled.
const MOST_PIECES: u64 = 128;

/// Groups the components of all specs by their number of units, in the order of their first members.
fn classes(specs: &[Spec]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        for (component, of) in spec.geometry().components.iter().enumerate() {
            let units = of.partition.units();
            match classes.iter_mut().find(|class| class.units == units) {
                Some(class) => class.members.push((index, component)),
                None => classes.push(Class {
                    units,
                    bundle: units.div_ceil(MOST_PIECES),
                    members: vec![(index, component)],
                }),
            }
        }
    }
    classes
}

fn count(hasher: &mut Hasher, value: u64) {
    hasher.update(&value.to_le_bytes());
}
