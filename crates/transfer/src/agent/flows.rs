//! Transfers under way: from what the machine wants read or received to the data plane.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::metrics::Chunks;
use super::request::Blocks;
use crate::data::{Landing, Outgoing, Region, RouteBytes};
use crate::ids::Rank;
use crate::plan::{Plan, Side};
use crate::wire::{Flow, Path};

/// Registered memory: for each rank, one for each group of the own document.
pub(super) type Memories = BTreeMap<Rank, Arc<[Region]>>;

/// One transfer, whichever end of it is here.
#[derive(Debug)]
pub(super) enum Moving {
    /// It is not known yet where its bytes lie.
    Binding(Binding),
    Out(Outgoing),
    In(Landing),
}

/// A route that is being bound, and the streams that want in meanwhile: as many as a transfer may have. Dropped, it does
/// not begin any more if it still waits for its turn.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) side: Side,
    pub(super) admitted: Vec<oneshot::Sender<Option<Landing>>>,
    pub(super) task: AbortHandle,
}

/// What binding has given.
pub(super) type Bound = Result<(RouteBytes, Chunks), String>;

impl Drop for Binding {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the driver remembers of a transfer.
#[derive(Debug)]
pub(super) struct Under {
    /// The driver's own number, which tells it from any other. Askers choose the numbers of transfers, and use one again.
    pub(super) number: u64,
    pub(super) flow: Flow,
    pub(super) moving: Moving,
    /// How its bytes travel, once that is known.
    pub(super) path: Option<Path>,
    /// Bytes that had moved when we last looked.
    pub(super) seen: u64,
    pub(super) chunks: Chunks,
}

impl Under {
    /// How many bytes have moved so far.
    pub(super) fn moved(&self) -> u64 {
        match &self.moving {
            Moving::Binding(_) => 0,
            Moving::Out(outgoing) => outgoing.read(),
            Moving::In(landing) => landing.placed(),
        }
    }

    /// The path, and how many bytes it takes, in which chunks.
    pub(super) fn travelled(&self) -> Option<(Path, u64, &Chunks)> {
        Some((self.path?, self.flow.bytes, &self.chunks))
    }

    /// What has to be quiet before its blocks are given back.
    pub(super) fn touching(self) -> Touching {
        match self.moving {
            // Binding looks at no byte, and what comes of it is dropped.
            Moving::Binding(_) => Touching::default(),
            Moving::Out(outgoing) => Touching {
                out: Some(outgoing),
                ..Touching::default()
            },
            Moving::In(landing) => landing.into(),
        }
    }

    /// Whether nothing moves since it is not its turn.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.moving, Moving::Binding(_))
    }

    /// Has a layer read, if `tokens` tokens of it are all that the transfer wants.
    pub(super) fn open_layer(&self, layer: u32, tokens: u64) {
        if let Moving::Out(outgoing) = &self.moving
            && tokens >= self.flow.request.end()
        {
            outgoing.open(outgoing.route().layer(layer));
        }
    }
}

/// Whatever touches the blocks of one transfer here. Clones are handles to the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Touching {
    out: Option<Outgoing>,
    landing: Option<Landing>,
}

impl From<Landing> for Touching {
    fn from(landing: Landing) -> Self {
        Self {
            landing: Some(landing),
            ..Self::default()
        }
    }
}

impl Touching {
    /// Tells all of it to stop, without waiting.
    pub(super) fn stop(&self) {
        self.out.iter().for_each(Outgoing::stop);
        self.landing.iter().for_each(Landing::stop);
    }

    /// Tells all of it to stop, and waits until no byte is read or written any more, nor ever will be.
    pub(super) async fn quiet(&self) {
        self.stop();
        if let Some(outgoing) = &self.out {
            outgoing.fence().await;
        }
        if let Some(landing) = &self.landing {
            landing.fence().await;
        }
    }
}

/// Binds a transfer's bytes to the memory of its rank.
pub(super) fn route(
    flow: &Flow,
    plan: &Plan,
    side: Side,
    blocks: &Blocks,
    memory: &[Region],
) -> Bound {
    let (src, dst) = match side {
        Side::Source => (flow.rank, flow.peer_rank),
        Side::Destination => (flow.peer_rank, flow.rank),
    };
    let route = plan
        .route(src, dst)
        .ok_or_else(|| format!("ranks {src} and {dst} share nothing"))?;
    let tables = plan
        .arrange(side, blocks)
        .map_err(|error| error.to_string())?;
    let stream = plan
        .bind_stream(route, side, &tables)
        .map_err(|error| error.to_string())?;
    let chunks = Chunks::of(&stream);
    let bound = RouteBytes::new(stream, |group| {
        memory.get(plan.group_of(side, group)).cloned()
    });
    let bound = bound.map_err(|error| error.to_string())?;
    if bound.bytes() != flow.bytes {
        return Err(format!(
            "{} bytes are bound, {} were planned",
            bound.bytes(),
            flow.bytes
        ));
    }
    Ok((bound, chunks))
}
