//! The comparison of two deployments: whether they hold the same cache, and how their groups pair up.

use thiserror::Error;
use transload_layout::{Deployment, Group, Spec};

/// The error for deployments with different caches: the first field that differs, with both values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field} differs: {source_value} at the source, {destination_value} at the destination")]
#[non_exhaustive]
pub struct BridgeError {
    /// The field, such as `group "attn": spec[0].head_dim`.
    pub field: String,
    /// The source's value.
    pub source_value: String,
    /// The destination's value.
    pub destination_value: String,
}

impl BridgeError {
    fn new(field: impl Into<String>, source: impl ToString, destination: impl ToString) -> Self {
        Self { field: field.into(), source_value: source.to_string(), destination_value: destination.to_string() }
    }
}

/// Returns the names of a deployment's groups of drafts that another deployment does not have. They take no part in
/// transfers between the two.
pub fn unpaired<'a>(deployment: &'a Deployment, other: &Deployment) -> impl Iterator<Item = &'a str> {
    let alone = |group: &&Group| group.is_draft() && other.group(group.name()).is_none();
    deployment.groups().iter().filter(alone).map(Group::name)
}

/// Pairs the groups of two deployments by name, in the source's order. Groups of drafts that one side alone has are
/// left out.
///
/// # Errors
/// The first field in which the two caches differ, with both values.
pub fn pair_groups<'a>(src: &'a Deployment, dst: &'a Deployment) -> Result<Vec<(&'a Group, &'a Group)>, BridgeError> {
    let names = |side: &Deployment| {
        let mut names: Vec<_> = side.groups().iter().map(Group::name).collect();
        names.sort_unstable();
        names.join(", ")
    };
    let mut pairs = Vec::with_capacity(src.groups().len());
    for group in src.groups() {
        match dst.group(group.name()) {
            Some((_, other)) => {
                check_group(src, dst, group, other)?;
                pairs.push((group, other));
            }
            None if group.is_draft() => {}
            None => return Err(BridgeError::new("group names", names(src), names(dst))),
        }
    }
    // Drafts alone are no cache that anybody could go on with.
    if pairs.len() + unpaired(dst, src).count() != dst.groups().len() || pairs.iter().all(|(group, _)| group.is_draft())
    {
        return Err(BridgeError::new("group names", names(src), names(dst)));
    }
    Ok(pairs)
}

fn check_group(src: &Deployment, dst: &Deployment, group: &Group, other: &Group) -> Result<(), BridgeError> {
    let name = group.name();
    if group.is_draft() != other.is_draft() {
        let field = format!("group \"{name}\": draft");
        return Err(BridgeError::new(field, group.is_draft(), other.is_draft()));
    }
    if group.layers() != other.layers() {
        let field = format!("group \"{name}\": layers");
        return Err(BridgeError::new(field, group.layers(), other.layers()));
    }
    let kinds = |group: &Group| {
        let kinds: Vec<_> = group.specs().iter().map(Spec::kind).collect();
        kinds.join(", ")
    };
    if kinds(group) != kinds(other) {
        let field = format!("group \"{name}\": spec kinds");
        return Err(BridgeError::new(field, kinds(group), kinds(other)));
    }
    for (i, (spec, twin)) in group.specs().iter().zip(other.specs()).enumerate() {
        // Compare the structs first: they are usually equal, and this does not allocate.
        if spec != twin {
            for ((field, a), (_, b)) in spec.identity().into_iter().zip(twin.identity()) {
                if a != b {
                    let field = format!("group \"{name}\": spec[{i}].{field}");
                    return Err(BridgeError::new(field, a, b));
                }
            }
        }
        if let Spec::Opaque(opaque) = spec
            && opaque.packed_heads.is_some()
            && src.tp() != dst.tp()
        {
            let field = format!(
                "tp (group \"{name}\": spec[{i}].packed_heads heads lie inside an entry, where a change of TP cannot find them)"
            );
            return Err(BridgeError::new(field, src.tp(), dst.tp()));
        }
    }
    Ok(())
}
