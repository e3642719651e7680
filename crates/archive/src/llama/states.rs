//! The saved states of one model.

use std::sync::Arc;

use transload_store::Backend;

use super::error::LlamaError;
use super::parse::State;
use super::shape::{RowLayout, Shape};
use crate::objects::Objects;
use crate::{Archive, Model, PrefixKey, Prompt, TOKEN_CHUNK};

/// Tokens of a token chunk.
pub(super) const CHUNK: usize = TOKEN_CHUNK as usize;

/// The namespace of the objects that hold rests and whole states.
pub const NAMESPACE: &[u8] = b"transload.llama/1";

/// How many rests, or whole states, are kept behind one prefix of whole token chunks: of short chats with one model, or of
/// chats that share a system prompt. Each costs a name more in a look-up.
pub(super) const PLACES: usize = 8;

/// In the place of the shape of rows, where states are kept whole.
const WHOLE: &str = "transload llama 1 whole states";

/// The saved states of one model in a store.
///
/// To be used from any thread.
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
    /// Whether values are transposed in states that are restored.
    pub(super) transposed: bool,
}

impl States {
    /// The states of a model of which each token leaves a row in every layer.
    ///
    /// `sample` is any state of the context that will restore, of one cell at least: it says how many layers there are, of
    /// which types and lengths, and whether values are transposed. All but the last is a part of the names of what is
    /// saved. `model` has to say whatever else decides the numbers: weights, adapters, rope settings.
    ///
    /// # Errors
    /// If the sample cannot be read, or has caches of several kinds.
    pub fn new(store: Arc<dyn Backend>, model: Model, sample: &[u8]) -> Result<Self, LlamaError> {
        let State { shape, transposed, .. } = State::parse(sample)?;
        let reference = shape.deployment(&RowLayout::dense(1))?;
        let archive = Archive::new(store.clone(), model.clone(), &reference)?;
        let kind = Kind::Rows(Box::new(Rows { archive, shape, transposed }));
        let objects = Objects::new(store, NAMESPACE)?;
        Ok(Self { model, kind, objects })
    }

    /// The states of a model with sliding windows or recurrent layers, kept whole.
    ///
    /// `model` has to say everything that two contexts that can read each other's states have in common, types of the
    /// caches among it.
    pub fn whole(store: Arc<dyn Backend>, model: Model) -> Result<Self, LlamaError> {
        Ok(Self { model, kind: Kind::Whole, objects: Objects::new(store, NAMESPACE)? })
    }

    /// The store that they are in.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Backend> {
        self.objects.store()
    }

    /// The keys of all whole token chunks of these tokens, the empty prefix first.
    pub(super) fn keys(&self, tokens: &[u32]) -> Vec<PrefixKey> {
        let prompt = Prompt::new(tokens);
        match &self.kind {
            Kind::Rows(rows) => rows.archive.keys(&prompt),
            Kind::Whole => prompt.chain(&blake3::derive_key(WHOLE, &[]), &self.model),
        }
    }
}

/// The key of an object: that of a prefix, and the number of one of its places.
pub(super) type ObjectKey = [u8; 33];

/// The keys of all places behind these prefixes, one prefix after the other.
pub(super) fn places(prefixes: &[PrefixKey]) -> Vec<ObjectKey> {
    let key = |PrefixKey(prefix): &PrefixKey, place| {
        let mut key: ObjectKey = [place; 33];
        key[..32].copy_from_slice(prefix);
        key
    };
    let keys = prefixes.iter();
    keys.flat_map(|prefix| (0..PLACES as u8).map(move |place| key(prefix, place))).collect()
}

/// Turns keys into the slices that `Objects` takes.
pub(super) fn names<'a>(keys: impl IntoIterator<Item = &'a ObjectKey>) -> Vec<&'a [u8]> {
    keys.into_iter().map(|key| &key[..]).collect()
}
