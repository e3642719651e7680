//! The single copy out of memory that the source has lent.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use thiserror::Error;
use transload_layout::Rank;

use super::fence::Fence;
use crate::{
    copy::{CopyError, CopyOptions, copy},
    memory::{CheckError, Memory, Side},
    plan::{BindError, Plan, Tables, program::Program},
};

/// One route, to be copied at once from memory that the source has lent read-only. Clones are the same
/// copy.
#[derive(Clone, Debug)]
pub struct SharedCopy {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    steps: Vec<Step>,
    bytes: u64,
    fence: Fence,
    begun: AtomicBool,
    copied: AtomicU64,
}

/// What is copied between two looks at the fence.
#[derive(Debug)]
struct Step {
    program: Program,
    src: Memory,
    dst: Memory,
}

/// Both sides of a route that is to be copied.
#[derive(Debug)]
pub struct SharedRoute<'a> {
    /// The plan, which has to be of both sides' deployments.
    pub plan: &'a Plan,
    /// The source rank.
    pub src_rank: Rank,
    /// The destination rank.
    pub dst_rank: Rank,
    /// The source's block tables, as it says: they are checked.
    pub src_tables: &'a Tables,
    /// Our block tables.
    pub dst_tables: &'a Tables,
}

/// Why a route cannot be copied so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SharedCopyError {
    /// The tables do not suit the plan.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There is no memory for one of the groups.
    #[error("there is no memory of {side} for group {group}")]
    NoMemory {
        /// Of which side.
        side: Side,
        /// Index of the group in the plan.
        group: usize,
    },
    /// A memory is smaller than its deployment says.
    #[error("group {group}: {source}")]
    Check {
        /// Index of the group in the plan.
        group: usize,
        /// What does not fit.
        source: CheckError,
    },
    /// The fence came up.
    #[error("the copy was given up")]
    Fenced,
    /// The copy failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// What is copied at most before the fence is looked at again: less than a millisecond's worth.
const STEP: u64 = 4 << 20;

impl SharedCopy {
    /// Binds a route to both sides' tables and memories; `src` and `dst` give the memory of a group, by
    /// its index in the plan.
    ///
    /// # Errors
    /// [`SharedCopyError`], but not `Fenced`.
    pub fn new<'a>(
        route: &SharedRoute<'_>,
        src: impl Fn(usize) -> Option<&'a Memory>,
        dst: impl Fn(usize) -> Option<&'a Memory>,
    ) -> Result<Self, SharedCopyError> {
        let bound = route.plan.bind(route.src_tables, route.dst_tables)?;
        let ranks = (route.src_rank, route.dst_rank);
        let mut steps = Vec::new();
        for bound in &bound.routes {
            if (bound.src_rank, bound.dst_rank) != ranks {
                continue;
            }
            let (group, program) = (bound.group, bound.program());
            let find = |memory: Option<&Memory>, side| {
                let memory = memory.ok_or(SharedCopyError::NoMemory { side, group })?;
                let checked = memory.check(&program, side);
                checked.map_err(|source| SharedCopyError::Check { group, source })?;
                Ok::<_, SharedCopyError>(memory.clone())
            };
            let (src, dst) = (
                find(src(group), Side::Source)?,
                find(dst(group), Side::Destination)?,
            );
            steps.extend(cut(&program).map(|program| Step {
                program,
                src: src.clone(),
                dst: dst.clone(),
            }));
        }
        let bytes = steps.iter().map(|step| step.program.bytes()).sum();
        Ok(Self {
            inner: Arc::new(Inner {
                steps,
                bytes,
                fence: Fence::default(),
                begun: AtomicBool::new(false),
                copied: AtomicU64::new(0),
            }),
        })
    }

    /// How many bytes there are to copy.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// How many were copied so far.
    pub fn copied(&self) -> u64 {
        self.inner.copied.load(Relaxed)
    }

    /// Whether a thread has got to it.
    pub fn has_begun(&self) -> bool {
        self.inner.begun.load(Relaxed)
    }

    /// Copies everything, on so many threads for blocking work of the tokio runtime that this is called
    /// in. To be called once. When the returned future is dropped, the copy is given up. As long as it
    /// waits for a thread, its fence waits for nothing.
    ///
    /// # Errors
    /// [`SharedCopyError::Fenced`] or [`SharedCopyError::Copy`].
    pub async fn run(&self, threads: usize) -> Result<(), SharedCopyError> {
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        // Also of use after a failure: the other threads need not go on.
        let _stop = StopWhenDropped(&self.inner.fence);
        for _ in 0..threads.clamp(1, self.inner.steps.len().max(1)) {
            let (inner, next) = (self.inner.clone(), next.clone());
            let options = CopyOptions::new().with_threads(1);
            tasks.spawn_blocking(move || {
                // Only now: whoever waited for a thread must not be waited for.
                let inside = inner.fence.enter().ok_or(SharedCopyError::Fenced)?;
                inner.begun.store(true, Relaxed);
                while let Some(step) = inner.steps.get(next.fetch_add(1, Relaxed)) {
                    if inside.is_raised() {
                        return Err(SharedCopyError::Fenced);
                    }
                    copy(&step.program, &step.src, &step.dst, &options)?;
                    inner.copied.fetch_add(step.program.bytes(), Relaxed);
                }
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            // A task ends without a result only with the runtime.
            done.unwrap_or(Err(SharedCopyError::Fenced))?;
        }
        Ok(())
    }

    /// Gives the copy up, without waiting.
    pub fn stop(&self) {
        self.inner.fence.raise();
    }

    /// Gives the copy up, and waits until no byte is read or written any more, nor ever will be.
    /// Cancel-safe: it is given up all the same.
    pub async fn fence(&self) {
        self.inner.fence.quiet().await;
    }
}

struct StopWhenDropped<'a>(&'a Fence);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.raise();
    }
}

/// Cuts a program between its places.
fn cut(program: &Program) -> impl Iterator<Item = Program> + '_ {
    let mut rest = &program.placed[..];
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let count = rest.iter().take_while(|placed| {
            let before = bytes;
            bytes += program.nests[placed.nest as usize].bytes();
            before < STEP
        });
        let (placed, behind) = rest.split_at(count.count());
        rest = behind;
        (!placed.is_empty()).then(|| Program {
            nests: program.nests.clone(),
            placed: placed.to_vec(),
        })
    })
}
