//! `plan --emit nixl`: a bound plan as descriptor lists for NIXL, for comparison.
//!
//! In NIXL's terms, an agent (here a rank) registers regions of memory. A transfer names a list of local and a list of
//! remote descriptors, each an (address, length, device), with as many entries of the same lengths. Addresses are
//! assigned as if every agent's regions followed each other from 0 on, at multiples of 2 MiB.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use transload::layout::{Allocation, Deployment, Rank, Side};
use transload::transfer::Plan;
use transload::transfer::plan::BoundPlan;
use transload::transfer::plan::program::{Program, split_address};

/// The alignment of regions: a page of a GPU.
const ALIGNMENT: u64 = 2 << 20;

/// The schema `transload.nixl/1`.
#[derive(Debug, Serialize)]
pub(super) struct Lists {
    schema: &'static str,
    agents: Vec<Agent>,
    transfers: Vec<Transfer>,
}

/// The regions that a rank registers.
#[derive(Debug, Serialize)]
struct Agent {
    name: String,
    /// Each entry is `[address, length, device, description]`.
    reg_descs: Vec<(u64, u64, u32, String)>,
    #[serde(skip)]
    rank: Rank,
    /// The index of the first region of each group.
    #[serde(skip)]
    first: Vec<usize>,
}

/// The transfer from a source rank to a destination rank for one group.
#[derive(Debug, Serialize)]
struct Transfer {
    operation: &'static str,
    local_agent: String,
    remote_agent: String,
    group: String,
    descs: u64,
    local_descs: Descriptors,
    remote_descs: Descriptors,
}

/// The `[address, length, device]` of every chunk on one side.
#[derive(Debug)]
struct Descriptors {
    program: Program,
    side: Side,
    /// The start addresses of the group's allocations.
    bases: Vec<u64>,
    device: u32,
}

impl Lists {
    pub(super) fn new(src: &Deployment, dst: &Deployment, plan: &Plan, bound: &BoundPlan) -> Self {
        let agents = [(Side::Source, src), (Side::Destination, dst)].map(|(side, deployment)| {
            let agents = deployment.ranks().map(|rank| Agent::new(side, deployment, rank));
            agents.collect::<Vec<_>>()
        });
        let [sources, destinations] = &agents;
        let transfers = bound.routes.iter().map(|route| {
            let of = |side, agent: &Agent| Descriptors {
                program: route.program(),
                side,
                bases: agent.bases(plan.group_of(side, route.group)),
                device: agent.rank.0,
            };
            let remote = &sources[route.src_rank.0 as usize];
            let local = &destinations[route.dst_rank.0 as usize];
            Transfer {
                operation: "READ",
                local_agent: local.name.clone(),
                remote_agent: remote.name.clone(),
                group: plan.group_names().nth(route.group).unwrap_or_default().to_owned(),
                descs: route.chunks(),
                local_descs: of(Side::Destination, local),
                remote_descs: of(Side::Source, remote),
            }
        });
        Self {
            schema: "transload.nixl/1",
            transfers: transfers.collect(),
            agents: agents.into_iter().flatten().collect(),
        }
    }
}

impl Agent {
    fn new(side: Side, deployment: &Deployment, rank: Rank) -> Self {
        let (_, stage) = deployment.split_rank(rank);
        let (mut reg_descs, mut first, mut end) = (Vec::new(), Vec::new(), 0u64);
        for group in deployment.groups() {
            first.push(reg_descs.len());
            let placement = group.placement(stage);
            let layers = &group.layers().ids()[group.stage_slots(stage)];
            for index in 0..placement.allocations {
                let what = match (group.allocation(), layers.get(index as usize)) {
                    (Allocation::PerLayer, Some(layer)) => format!("{}.{layer}", group.name()),
                    _ => group.name().to_owned(),
                };
                let length = placement.allocation_bytes;
                reg_descs.push((end, length, rank.0, what));
                end = (end + length).next_multiple_of(ALIGNMENT);
            }
        }
        let part = match side {
            Side::Source => "source",
            Side::Destination => "destination",
        };
        Self { name: format!("{part}-{rank}"), reg_descs, rank, first }
    }

    /// Returns the start addresses of a group's allocations and of all regions after them.
    fn bases(&self, group: usize) -> Vec<u64> {
        let regions = &self.reg_descs[self.first[group]..];
        regions.iter().map(|(address, ..)| *address).collect()
    }
}

impl Serialize for Descriptors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut result = Ok(());
        self.program.for_each_chunk(|src, dst, bytes| {
            let (allocation, offset) = split_address(match self.side {
                Side::Source => src,
                Side::Destination => dst,
            });
            let address = self.bases[allocation] + offset;
            if result.is_ok() {
                result = list.serialize_element(&(address, bytes, self.device));
            }
        });
        result?;
        list.end()
    }
}
