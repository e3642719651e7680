//! The archive of one model.

use std::sync::Arc;

use transload_layout::Deployment;
use transload_plan::codec::Codec;
use transload_store::Backend;

use crate::ArchiveError;
use crate::key::{Model, PrefixKey, Prompt};
use crate::shape::Shape;

/// The saved prefixes of one model in a store.
///
/// An archive is cheap to clone and can be used from any thread.
#[derive(Clone, Debug)]
pub struct Archive {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) model: Model,
    pub(crate) shape: Arc<Shape>,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) codec: Codec,
    /// The digest of the cache and the model. Everything that passes between processes is bound to it.
    pub(crate) cache: [u8; 32],
    /// A deployment of the model, to name the differences in another.
    pub(crate) reference: Arc<Deployment>,
    pub(crate) threads: usize,
}

/// The default number of threads that hash and copy for one rank: one for each core of the machine, up to this number.
/// BLAKE3 processes about 3 GB/s a thread, and the engine needs its cores.
const DEFAULT_THREADS: usize = 4;

impl Archive {
    /// Returns the archive, in `store`, of a model whose cache is that of `deployment`.
    ///
    /// # Errors
    /// Returns an error if the cache cannot be divided into pieces.
    pub fn new(store: Arc<dyn Backend>, model: Model, deployment: &Deployment) -> Result<Self, ArchiveError> {
        let shape = Shape::of(deployment)?;
        let codec = Codec::Exact;
        let fingerprint = shape.fingerprint(codec);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            store,
            cache: model.digest(&fingerprint),
            model,
            fingerprint,
            codec,
            shape: Arc::new(shape),
            reference: Arc::new(deployment.clone()),
            threads: cores.min(DEFAULT_THREADS),
        })
    }

    /// Sets the number of threads that hash and copy for one rank (0 counts as 1).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the codec, which stores keys and values in a smaller form. A codec makes a separate cache: an archive finds
    /// only what an archive with the same codec saved.
    ///
    /// If blocks contain anything restored with a codec that is not [exact](Codec::Exact), or computed from that, save
    /// them only in archives of that codec. In other archives their names would be wrong.
    #[must_use]
    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self.fingerprint = self.shape.fingerprint(codec);
        self.cache = self.model.digest(&self.fingerprint);
        self
    }

    /// Returns the codec of keys and values.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Returns the archive's store.
    pub fn store(&self) -> &Arc<dyn Backend> {
        &self.store
    }

    /// Returns the keys of all whole token chunks of a prompt, the empty prefix first.
    pub fn keys(&self, prompt: &Prompt<'_>) -> Vec<PrefixKey> {
        prompt.chain(&self.fingerprint, &self.model)
    }
}
