//! What a field of a document is: noted by a [reader](super::reader) when it asks for the field, and told
//! by the [schema](super::schema) to people's editors.

use std::ops::RangeInclusive;

use super::Value;

/// A field as a reader asks for it.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) key: &'static str,
    /// What it is, with its unit: a phrase that can stand after "is missing: ".
    pub(super) about: &'static str,
    pub(super) form: Form,
    pub(super) need: Need,
}

/// What values a field takes.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// Any text.
    Text,
    /// This text and no other.
    Constant(&'static str),
    /// One of these texts.
    Name(Vec<&'static str>),
    /// A whole number within these bounds.
    Number(RangeInclusive<u64>),
    /// A list of such numbers, at least one.
    Numbers(RangeInclusive<u64>),
    /// An order as text, or a permutation of the five axes' indices.
    Order,
    /// A list of tables, at least one and at most so many.
    Tables(usize),
}

/// Whether a field has to be there.
#[derive(Clone, Debug)]
pub(super) enum Need {
    Required,
    /// Without it there is nothing, or something that depends on other fields.
    Optional,
    /// Without it, this.
    Default(Value),
}
