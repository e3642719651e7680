//! The carriers of paths: offers and connections that succeed, break or come late.
//!
//! Lanes go both ways and belong to their connection; a ring goes one way. Streams wait for their carrier.

use transload_plan::ids::Nonce;

use super::event::{CALM, ChannelEvent, Event, MS, S, Time};
use super::world::World;
use crate::ConnId;
use crate::path::Path;
use crate::path::device_ring::{self, DeviceRings, GpuId, Offer};
use crate::path::negotiation::{Ending, Negotiation, Order, Report, Way, decode, encode};
use crate::path::quic::{self, Lanes};
use crate::path::ring::{self, Rings, SocketName, Token};

fn gpu_id(gpu: u8) -> GpuId {
    GpuId([gpu; 16])
}

impl World {
    pub(super) fn negotiations(&self, n: usize, conn: ConnId, dialled: bool) -> Vec<Box<dyn Negotiation>> {
        let mut paths: Vec<Box<dyn Negotiation>> = vec![Box::new(Lanes::new(dialled, 4))];
        let nodes = self.links[&conn].ends.map(|(node, _)| &self.nodes[node]);
        if nodes[0].host == nodes[1].host {
            paths.push(Box::new(Rings::default()));
            if let Some(gpu) = self.nodes[n].gpu {
                paths.push(Box::new(DeviceRings::new(gpu_id(gpu))));
            }
        }
        paths
    }

    pub(super) fn can_carry(&self, n: usize, conn: ConnId, path: Path) -> bool {
        let channels = &self.links[&conn].channels;
        match path {
            Path::QUIC => channels.lanes,
            _ => channels.rings.contains(&(n, path)),
        }
    }

    fn other_end(&self, n: usize, conn: ConnId) -> (usize, u32) {
        let ends = self.links[&conn].ends;
        ends[usize::from(ends[0].0 == n)]
    }

    fn channel(&mut self, n: usize, delay: Time, conn: ConnId, path: Path, event: ChannelEvent) {
        let life = self.nodes[n].life;
        self.after(delay, Event::Channel(n, life, conn, path, event));
    }

    fn ended(&mut self, n: usize, conn: ConnId, path: Path, way: Way, ending: Ending) {
        let report = ChannelEvent::Report(Report::Ended { way, ending });
        let delay = self.rng.delay(MS, 100 * MS);
        self.channel(n, delay, conn, path, report);
    }

    pub(super) fn obey(&mut self, n: usize, conn: ConnId, path: Path, order: Order) {
        let delay = self.rng.delay(MS, 50 * MS);
        if self.mishap(0.05) {
            let way = if matches!(order, Order::Offer { .. }) { Way::Out } else { Way::In };
            return self.ended(n, conn, path, way, Ending::Failed("no such luck".into()));
        }
        match (path, order) {
            (Path::QUIC, Order::Offer { .. }) => {
                let (ports, nonce) = (vec![1], Nonce([0; 16]));
                let word = encode(&quic::Word::Offer { ports, nonce });
                let offered = ChannelEvent::Report(Report::Offered { word });
                self.channel(n, delay, conn, path, offered);
            }
            (Path::QUIC, Order::Meet { .. }) => {
                self.channel(n, delay, conn, path, ChannelEvent::Lanes);
            }
            (_, Order::Offer { .. }) => {
                let number = self.rng.next();
                let channels = &mut self.links.get_mut(&conn).expect("a link stays").channels;
                channels.offers.insert((n, number));
                let (socket, token) = (SocketName::of(number.into()), Token([0; 32]));
                let fetch = ring::Word { socket, token };
                let word = match self.nodes[n].gpu.filter(|_| path == Path::DEVICE) {
                    None => encode(&fetch),
                    Some(gpu) => encode(&device_ring::Word::Offer(Offer { gpu: gpu_id(gpu), slot_bytes: 4096, fetch })),
                };
                let offered = ChannelEvent::Report(Report::Offered { word });
                self.channel(n, delay, conn, path, offered);
                self.channel(n, delay + S, conn, path, ChannelEvent::Lapse(number));
            }
            (_, Order::Meet { word }) => {
                let fetch = match path {
                    Path::DEVICE => match decode(&word) {
                        Some(device_ring::Word::Offer(offer)) => {
                            assert_eq!(Some(offer.gpu), self.nodes[n].gpu.map(gpu_id));
                            offer.fetch
                        }
                        other => panic!("{other:?} is met"),
                    },
                    _ => decode::<ring::Word>(&word).expect("it makes sense"),
                };
                let digits = fetch.socket.as_str().rsplit('-').next().unwrap_or_default();
                let number = u128::from_str_radix(digits, 16).expect("digits") as u64;
                self.channel(n, delay, conn, path, ChannelEvent::Fetch(number));
            }
        }
    }

    pub(super) fn on_channel(&mut self, n: usize, conn: ConnId, path: Path, event: ChannelEvent) {
        let (other, life) = self.other_end(n, conn);
        let alive = self.lives(other, life);
        let link = self.links.get_mut(&conn).expect("a link stays");
        let end = usize::from(link.ends[1].0 == n);
        if !link.open[end] {
            return;
        }
        match event {
            ChannelEvent::Report(report) => {
                self.call(n, |machine, now| machine.path_reported(now, conn, path, report));
            }
            ChannelEvent::Lanes => link.channels.lanes = true,
            ChannelEvent::Lapse(number) => {
                if link.channels.offers.remove(&(n, number)) {
                    self.ended(n, conn, path, Way::Out, Ending::Lapsed);
                }
            }
            ChannelEvent::Fetch(number) => {
                let there = link.channels.offers.remove(&(other, number));
                if !there || !alive {
                    return self.ended(n, conn, path, Way::In, Ending::Lapsed);
                }
                link.channels.rings.insert((other, path));
                if self.now < CALM && self.mishap(0.1) {
                    let delay = self.rng.below(500 * MS);
                    self.channel(other, delay, conn, path, ChannelEvent::Tear);
                }
            }
            ChannelEvent::Tear => {
                if link.channels.rings.remove(&(n, path)) {
                    let torn = || Ending::Failed("torn".into());
                    self.ended(n, conn, path, Way::Out, torn());
                    self.ended(other, conn, path, Way::In, torn());
                }
            }
        }
    }
}
