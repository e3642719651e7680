//! The description of a document's field. A [reader](super::reader) records it when it reads the field, and the
//! [schema](super::schema) shows it to editors.

use std::ops::RangeInclusive;

use super::Value;

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) key: &'static str,
    /// A description with the unit: a phrase that can follow "is missing: ".
    pub(super) about: &'static str,
    pub(super) form: Form,
    pub(super) need: Need,
}

#[derive(Clone, Debug)]
pub(super) enum Form {
    Text,
    Constant(&'static str),
    Name(Vec<&'static str>),
    Flag,
    Number(RangeInclusive<u64>),
    /// A list of at least one number within these bounds.
    Numbers(RangeInclusive<u64>),
    /// An order as text, or a permutation of the five axes' indices.
    Order,
    /// A list of at least one table and at most this many.
    Tables(usize),
}

#[derive(Clone, Debug)]
pub(super) enum Need {
    Required,
    /// The field may be absent, and has no default or one that depends on other fields.
    Optional,
    Default(Value),
}
