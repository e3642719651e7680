//! The archive of one model: what it is made of, and how it is set up.

use std::sync::Arc;

use transload_layout::Deployment;
use transload_plan::codec::Codec;
use transload_store::Backend;

use crate::ArchiveError;
use crate::key::{Model, PrefixKey, Prompt};
use crate::shape::Shape;

/// The saved prefixes of one model in a store.
///
/// Cheap to clone; to be used from any thread.
#[derive(Clone, Debug)]
pub struct Archive {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) model: Model,
    pub(crate) shape: Arc<Shape>,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) codec: Codec,
    /// Of the cache and the model: what everything that is handed from process to process is bound to.
    pub(crate) cache: [u8; 32],
    /// A deployment of the model, to name what differs in another.
    pub(crate) reference: Arc<Deployment>,
    pub(crate) threads: usize,
}

/// How many threads hash and copy for one rank, unless told otherwise: as many as the machine has cores, and at
/// most so many. BLAKE3 makes some 3 GB/s a thread, and the engine beside it needs its cores.
const DEFAULT_THREADS: usize = 4;

impl Archive {
    /// The archive of a model whose cache is that of `deployment`, in `store`.
    ///
    /// # Errors
    /// If the cache cannot be cut into pieces.
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

    /// How many threads hash and copy for one rank (0 counts as 1).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Stores keys and values in a smaller form. What is saved so is another cache: an archive finds what one of its own codec
    /// saved.
    ///
    /// Blocks that hold anything restored from an archive of a codec that is not [exact](Codec::Exact), or computed on
    /// that, are not what their names say in others: save them in archives of that codec only.
    #[must_use]
    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self.fingerprint = self.shape.fingerprint(codec);
        self.cache = self.model.digest(&self.fingerprint);
        self
    }

    /// How it stores keys and values.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The store that it is in.
    pub fn store(&self) -> &Arc<dyn Backend> {
        &self.store
    }

    /// The keys of all whole token chunks of a prompt, the empty prefix first.
    pub fn keys(&self, prompt: &Prompt<'_>) -> Vec<PrefixKey> {
        prompt.chain(&self.fingerprint, &self.model)
    }
}
