//! The saved states of one model.

use std::sync::Arc;

use transload_store::Backend;

use super::error::LlamaError;
use super::parse::State;
use super::shape::{RowLayout, Shape};
use crate::objects::Objects;
use crate::{Archive, Model, PrefixKey, Prompt, TOKEN_CHUNK};

pub(super) const CHUNK: usize = TOKEN_CHUNK as usize;

/// The namespace of objects that hold rests and whole states.
pub const NAMESPACE: &[u8] = b"transload.llama/1";

/// The number of rests, or whole states, that are kept after one prefix of whole token chunks: of short chats with a
/// model, or of chats with a common system prompt. Each adds a name to a look-up.
pub(super) const SLOTS: usize = 8;

/// Takes the place of the rows' shape in keys, for states that are kept whole.
const WHOLE: &str = "transload llama 1 whole states";

/// The saved states of a model in a store.
///
/// It can be used from any thread.
#[derive(Debug)]
pub struct States {
    pub(super) model: Model,
    pub(super) kind: Kind,
    pub(super) objects: Objects,
}

#[derive(Debug)]
pub(super) enum Kind {
    Rows(Box<Rows>),
    Whole,
}

#[derive(Debug)]
pub(super) struct Rows {
    pub(super) archive: Archive,
    pub(super) shape: Shape,
    pub(super) transposed: bool,
}

impl States {
    /// Returns the states of a model in which each token leaves a row in every layer.
    ///
    /// `sample` is any state, with at least one cell, of the context that will restore. It shows the number of layers,
    /// their types and lengths, and whether values are transposed. All of these except transposition are part of the
    /// names of what is saved. `model` must include everything else that affects the numbers: weights, adapters, rope
    /// settings.
    ///
    /// # Errors
    /// Returns an error if the sample cannot be parsed, or has caches of several kinds.
    pub fn new(store: Arc<dyn Backend>, model: Model, sample: &[u8]) -> Result<Self, LlamaError> {
        let State { shape, transposed, .. } = State::parse(sample)?;
        let reference = shape.deployment(&RowLayout::dense(1))?;
        let archive = Archive::new(store.clone(), model.clone(), &reference)?;
        let kind = Kind::Rows(Box::new(Rows { archive, shape, transposed }));
        let objects = Objects::new(store, NAMESPACE)?;
        Ok(Self { model, kind, objects })
    }

    /// Returns the states of a model with sliding windows or recurrent layers, which are kept whole.
    ///
    /// `model` must include everything that two contexts need in common to read each other's states, such as the types
    /// of the caches.
    pub fn whole(store: Arc<dyn Backend>, model: Model) -> Result<Self, LlamaError> {
        Ok(Self { model, kind: Kind::Whole, objects: Objects::new(store, NAMESPACE)? })
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Backend> {
        self.objects.store()
    }

    /// Returns the keys of all whole token chunks of these tokens, the empty prefix first.
    pub(super) fn keys(&self, tokens: &[u32]) -> Vec<PrefixKey> {
        let prompt = Prompt::new(tokens);
        match &self.kind {
            Kind::Rows(rows) => rows.archive.keys(&prompt),
            Kind::Whole => prompt.chain(&blake3::derive_key(WHOLE, &[]), &self.model),
        }
    }
}

/// The key of an object: that of a prefix, and the number of a slot.
pub(super) type ObjectKey = [u8; 33];

pub(super) fn slots(prefixes: &[PrefixKey]) -> Vec<ObjectKey> {
    let key = |PrefixKey(prefix): &PrefixKey, slot| {
        let mut key: ObjectKey = [slot; 33];
        key[..32].copy_from_slice(prefix);
        key
    };
    let keys = prefixes.iter();
    keys.flat_map(|prefix| (0..SLOTS as u8).map(move |slot| key(prefix, slot))).collect()
}

pub(super) fn names<'a>(keys: impl IntoIterator<Item = &'a ObjectKey>) -> Vec<&'a [u8]> {
    keys.into_iter().map(|key| &key[..]).collect()
}
