//! States of llama.cpp: keeps what `llama_state_seq_get_data` returns for a sequence, so that other conversations find
//! it.
//!
//! A state is one run of bytes, and the state of 32 tokens is not a prefix of that of 64. Stored as it is, each turn of
//! a chat would store all earlier turns again. Here its *rows* (what one cell stores of a layer's keys or values) go
//! into the [archive](crate) in whole token chunks, sorted by position. So turns share their common tokens, and the
//! longest saved prefix of any prompt is found. Saved rows do not depend on whether values are transposed, as they are
//! when flash attention is off: a state saved in one form can be restored in the other.
//!
//! Up to 255 tokens follow the last whole token chunk. Their rows are the *rest*: an [object](crate::objects) under the
//! key of the preceding token chunk, stored with its tokens. A prompt may share any number of these tokens. Each prefix
//! of whole token chunks has eight slots for rests. A rest replaces the one that it continues.
//!
//! Models with sliding windows or recurrent layers have caches of several kinds in a state. Such a state at one
//! position cannot be cut to an earlier one. These states are kept [whole](States::whole), and found if a prompt begins
//! with exactly their tokens.
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
mod format;
mod found;
mod parse;
mod save;
mod session;
mod shape;
mod states;

pub use error::LlamaError;
pub use found::Found;
pub use save::Saved;
pub use session::{Layers, Session};
pub use states::{NAMESPACE, States};
