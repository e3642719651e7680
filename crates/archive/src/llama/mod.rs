//! States of llama.cpp: what its `llama_state_seq_get_data` says of a sequence, kept so that other conversations find it.
//!
//! A state is one run of bytes, and that of 32 tokens is no beginning of that of 64. Kept as it is, each turn of a chat
//! would cost all turns before it again. Here its *rows*, what one cell stores of a layer's keys or values, go into the [archive](crate) by
//! whole token chunks, sorted by position. So turns share what they have in common, and the longest saved prefix of any
//! prompt is found. Whether values are transposed (they are where flash attention is off) makes no difference to what is saved: a
//! state that was saved one way is restored the other.
//!
//! Behind the last whole token chunk there are up to 255 tokens. Their rows are the *rest*: an [object](crate::objects)
//! under the key of the token chunk before them, with their tokens beside it. A prompt may share any number of these.
//! There are eight places for each prefix of whole token chunks: a rest replaces the one that it continues.
//!
//! Models with sliding windows or recurrent layers have caches of several kinds in a state, and one that stands at one position
//! cannot stand at another. Their states are kept [whole](States::whole), and found where a prompt begins with exactly their tokens.
//!
//! ```
//! use std::sync::Arc;
//! use transload_archive::Model;
//! use transload_store::backend::MemoryStore;
//! use transload_archive::llama::States;
//!
//! // A state of 300 tokens: two layers, f16, a key and a value of four numbers each.
//! let state = |tokens: u32| -> Vec<u8> {
//!     let mut words = vec![0xaf143cd8, 0, 1, tokens];
//!     words.extend((0..tokens).flat_map(|position| [position, 1, 0]));
//!     words.extend([0, 2]);
//!     for side_of_layer in 0..4 {
//!         words.extend([1, 8, 0]);
//!         words.extend((0..tokens).flat_map(|position| [side_of_layer, position]));
//!     }
//!     words.into_iter().flat_map(u32::to_le_bytes).collect()
//! };
//! // Any state of the context says what its rows are.
//! let model = Model::new("llama-3.2-1b", "digest of the files, adapters, rope settings");
//! let states = States::new(Arc::new(MemoryStore::new()), model, &state(1))?;
//! let tokens: Vec<u32> = (0..300).collect();
//! states.save(&tokens, &state(300))?;
//!
//! // Another prompt has the first 280 tokens in common.
//! let prompt = [&tokens[..280], &[7, 7, 7]].concat();
//! let found = states.find(&prompt)?.unwrap();
//! assert_eq!(found.tokens(), 280);
//! let restored = states.restore(&found)?.expect("nobody has removed it meanwhile");
//! assert_eq!(restored, state(280));
//! # Ok::<(), transload_archive::llama::LlamaError>(())
//! ```

mod error;
mod found;
mod parse;
mod save;
mod session;
mod shape;

use std::sync::Arc;

pub use error::LlamaError;
pub use found::Found;
pub use save::Saved;
pub use session::{Layers, Session};

use transload_store::Backend;

use crate::objects::Objects;
use crate::{Archive, Model, PrefixKey, Prompt, TOKEN_CHUNK};
use parse::State;
use shape::{RowLayout, Shape};

/// Tokens of a token chunk.
const CHUNK: usize = TOKEN_CHUNK as usize;

/// The namespace of the objects that hold rests and whole states.
pub const NAMESPACE: &[u8] = b"transload.llama/1";

/// How many rests, or whole states, are kept behind one prefix of whole token chunks: of short chats with one model, or of
/// chats that share a system prompt. Each costs a name more in a look-up.
const PLACES: usize = 8;

/// In the place of the shape of rows, where states are kept whole.
const WHOLE: &str = "transload llama 1 whole states";

/// The saved states of one model in a store.
///
/// To be used from any thread.
#[derive(Debug)]
pub struct States {
    model: Model,
    kind: Kind,
    objects: Objects,
}

#[derive(Debug)]
enum Kind {
    Rows(Box<Rows>),
    Whole,
}

#[derive(Debug)]
struct Rows {
    archive: Archive,
    shape: Shape,
    /// As the context that restores wants it.
    transposed: bool,
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
        let State {
            shape, transposed, ..
        } = State::parse(sample)?;
        let reference = shape.deployment(&RowLayout::dense(1))?;
        let archive = Archive::new(store.clone(), model.clone(), &reference)?;
        let kind = Kind::Rows(Box::new(Rows {
            archive,
            shape,
            transposed,
        }));
        let objects = Objects::new(store, NAMESPACE)?;
        Ok(Self {
            model,
            kind,
            objects,
        })
    }

    /// The states of a model with sliding windows or recurrent layers, kept whole.
    ///
    /// `model` has to say everything that two contexts that can read each other's states have in common, types of the
    /// caches among it.
    pub fn whole(store: Arc<dyn Backend>, model: Model) -> Result<Self, LlamaError> {
        Ok(Self {
            model,
            kind: Kind::Whole,
            objects: Objects::new(store, NAMESPACE)?,
        })
    }

    /// The store that they are in.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Backend> {
        self.objects.store()
    }

    /// The keys of all whole token chunks of these tokens, the empty prefix first.
    fn keys(&self, tokens: &[u32]) -> Vec<PrefixKey> {
        let prompt = Prompt::new(tokens);
        match &self.kind {
            Kind::Rows(rows) => rows.archive.keys(&prompt),
            Kind::Whole => prompt.chain(&blake3::derive_key(WHOLE, &[]), &self.model),
        }
    }
}

/// The key of an object: that of a prefix, and the number of one of its places.
type ObjectKey = [u8; 33];

/// The keys of all places behind these prefixes, one prefix after the other.
fn places(prefixes: &[PrefixKey]) -> Vec<ObjectKey> {
    let key = |PrefixKey(prefix): &PrefixKey, place| {
        let mut key: ObjectKey = [place; 33];
        key[..32].copy_from_slice(prefix);
        key
    };
    let keys = prefixes.iter();
    keys.flat_map(|prefix| (0..PLACES as u8).map(move |place| key(prefix, place)))
        .collect()
}

/// As they are looked up.
fn names<'a>(keys: impl IntoIterator<Item = &'a ObjectKey>) -> Vec<&'a [u8]> {
    keys.into_iter().map(|key| &key[..]).collect()
}
