//! Digests of plans. Two peers that computed the same plan get the same digest.

use crate::deal::Deal;
use crate::ids::PlanDigest;
use crate::plan::Plan;
use crate::request::Request;
use crate::route::Route;

/// The version of the rules by which plans are made, of replica choice and stream order too. Change it with them.
const VERSION: &[u8] = b"transload.plan rules 4";

impl Plan {
    /// Returns the digest of all routes.
    pub fn digest(&self) -> PlanDigest {
        self.digest_of(&self.routes)
    }

    /// Returns the digest of one route, which its two ranks compare.
    pub fn route_digest(&self, route: &Route) -> PlanDigest {
        self.digest_of(std::slice::from_ref(route))
    }

    fn digest_of(&self, routes: &[Route]) -> PlanDigest {
        let mut writer = Writer(blake3::Hasher::new());
        writer.text(VERSION);
        let Request { start, tokens, by_layer, codec } = self.request;
        writer.numbers(&[start, tokens, by_layer.into()]);
        writer.text(codec.name().as_bytes());
        for route in routes {
            writer.route(self, route);
        }
        PlanDigest(*writer.0.finalize().as_bytes())
    }
}

struct Writer(blake3::Hasher);

impl Writer {
    /// Every field has a fixed length or follows its length, so different plans cannot have the same encoding.
    fn route(&mut self, plan: &Plan, route: &Route) {
        let ranks = [route.src_rank.0.into(), route.dst_rank.0.into()];
        self.numbers(&ranks);
        self.numbers(&[route.groups.len() as u64]);
        for group in &route.groups {
            let planned = &plan.groups[group.group];
            self.text(planned.name.as_bytes());
            self.numbers(&[group.layers().len() as u64]);
            for layer in group.layers() {
                self.numbers(&[u64::from(*layer)]);
            }
            self.numbers(&[group.slices.len() as u64]);
            for slice in &group.slices {
                let range = slice.class.range;
                let is_dealt = !range.deal.is_trivial();
                self.numbers(&[slice.component as u64 | u64::from(is_dealt) << 63, range.first, range.end]);
                self.numbers(&[range.block.src, range.block.dst]);
                if is_dealt {
                    for Deal { ranks, rank, stripe } in [range.deal.src, range.deal.dst] {
                        self.numbers(&[ranks, rank, stripe]);
                    }
                }
                for origin in [slice.at.src, slice.at.dst] {
                    self.numbers(&[origin.base, origin.block_stride, origin.state_stride]);
                }
                self.numbers(&[slice.loops.len() as u64]);
                for l in slice.loops.iter().chain([&slice.units, &slice.layers]) {
                    self.numbers(&[l.count, l.src, l.dst]);
                }
            }
        }
    }

    fn text(&mut self, bytes: &[u8]) {
        self.numbers(&[bytes.len() as u64]);
        self.0.update(bytes);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.0.update(&number.to_le_bytes());
        }
    }
}
