//! Saves the destination's request into a store and restores it into a third layout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use transload::archive::{Archive, ArchiveError, Model, Part, Prompt, SaveRequest};
use transload::layout::Deployment;
use transload::store::Backend;

use super::broken;
use super::contents::Checked;
use super::engine::{Engine, Party};
use super::pair::{Pair, verify};
use crate::commands::shapes::Llama;
use crate::failure::{Failure, chain};

/// The result of a request that was saved, restored and checked.
pub(in crate::commands) struct Archived {
    pub(in crate::commands) deployment: Deployment,
    /// The number of tokens in whole token chunks.
    pub(in crate::commands) tokens: u64,
    /// The number of bytes that were new to the store.
    pub(in crate::commands) saved: u64,
    pub(in crate::commands) save: Duration,
    /// The number of pieces and of bytes that were read.
    pub(in crate::commands) pieces: u64,
    pub(in crate::commands) restored: u64,
    pub(in crate::commands) restore: Duration,
    pub(in crate::commands) checked: Checked,
}

impl Pair {
    /// Saves the destination's request, finds it by its tokens, restores it into an engine of `shape`, and checks every
    /// byte there.
    pub(in crate::commands) fn save_and_restore(
        &self,
        store: Arc<dyn Backend>,
        shape: Llama,
        mut progress: impl FnMut(u64),
    ) -> Result<Archived, Failure> {
        let dst = &self.dst;
        let tokens: Vec<u32> = (0..dst.contents.tokens as u32).collect();
        let prompt = Prompt::new(&tokens);
        // The contents are derived from the seed, so the seed distinguishes the models.
        let model = Model::new(shape.model, format!("made up from {}", self.seed));
        let archive = Archive::new(store, model, &dst.deployment).map_err(not_archived)?;

        let begun = Instant::now();
        let request = SaveRequest::tokens(dst.contents.tokens);
        let missing = archive.missing(&prompt, &request).map_err(not_archived)?;
        let mut parts: Vec<Part> = Vec::new();
        for (rank, cache) in dst.caches() {
            let rank = archive.rank(&dst.deployment, rank).map_err(not_archived)?;
            let part = rank.save(&missing, &[cache], &dst.tables);
            parts.push(part.map_err(not_archived)?);
            progress(parts.last().map_or(0, |part| part.written));
        }
        archive.publish(&missing, &parts).map_err(not_archived)?;
        let save = begun.elapsed();

        let found = archive.find(&prompt).map_err(not_archived)?;
        let deployment = shape.deployment()?;
        let third = Engine::new(deployment, found.tokens(), self.seed, Party::Third, self.gpu.as_ref())?;
        third.clear(&mut progress).map_err(broken)?;
        let begun = Instant::now();
        let (mut pieces, mut restored) = (0, 0);
        for (rank, cache) in third.caches() {
            let rank = archive.rank(&third.deployment, rank).map_err(not_archived)?;
            let done = rank.restore(&found, 0, &[cache], &third.tables);
            let done = done.map_err(not_archived)?;
            pieces += done.pieces;
            restored += done.bytes;
            progress(done.bytes);
        }
        let restore = begun.elapsed();
        let checked = verify(&third, self.seed, " of what was restored", progress)?;
        Ok(Archived {
            tokens: found.tokens(),
            saved: parts.iter().map(|part| part.written).sum(),
            deployment: third.deployment,
            save,
            pieces,
            restored,
            restore,
            checked,
        })
    }
}

fn not_archived(error: ArchiveError) -> Failure {
    let next = match &error {
        ArchiveError::Store(_) | ArchiveError::Missing { .. } | ArchiveError::Damaged { .. } => {
            "check the store's free space and your permissions; `--store` names another store"
        }
        _ => "this is a fault of transload: please report it",
    };
    let wrong = format!("the request could not be saved and restored: {}", chain(&error));
    Failure::no(wrong, next)
}
