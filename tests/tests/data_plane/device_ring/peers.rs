//! Hostile or failing peers: they hand over other memory, lie, keep slots, or die.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use transload_tests::fake_cuda::{Fake, run};
use transload_tests::pair::download;
use transload_tests::process::{self, Other};
use transload_transfer::device::Gpu;
use transload_transfer::internal::data::{Outgoing, ReceiveError, SendError, SendEvent};
use transload_transfer::internal::device_ring::{accept, offer};
use transload_transfer::internal::handover::{HandoverError, Limits, Listener, connect};
use transload_transfer::internal::ring::random_token;
use transload_transfer::internal::slots::{Producer, RingError, RingShape};
use transload_transfer::memory::copy::Crc32c;
use transload_transfer::plan::ids::{Nonce, TransferId};
use transload_transfer::wire::internal::ring::{SocketName, Token};
use transload_transfer::wire::internal::stream::{StreamHeader, StreamTrailer};

use super::{NO_DELAYS, OnGpu, SLOT, connection, ready, receiver, settles};
use crate::support::{Arrival, Desk, PATIENCE, bytes_of, runtime, soon};

/// Makes a memfd, which the fake driver accepts as its own memory if it has the right name.
fn memfd(name: &str, bytes: u64) -> OwnedFd {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, bytes).unwrap();
    memfd
}

fn shape() -> RingShape {
    RingShape::new(4, 4096).unwrap()
}

#[test]
fn memory_that_is_not_as_announced_is_refused() {
    let test = "device_ring::peers::memory_that_is_not_as_announced_is_refused";
    let two_gpus = &[("FAKE_CUDA_DELAY_US", "0"), ("FAKE_CUDA_DEVICES", "2")];
    run(test, two_gpus, |fake| {
        let (gpu, before) = ready(&fake);
        fake.fail("cuDeviceCanAccessPeer", 1, 801);
        let enough = 4 * u64::from(SLOT);
        let file = || std::fs::File::open("/proc/self/exe").unwrap().into();
        let cases: Vec<(&str, Option<OwnedFd>, u32, RingShape)> = vec![
            ("cuMemImportFromShareableHandle", Some(memfd("other", enough)), SLOT, shape()),
            ("cuMemImportFromShareableHandle", Some(file()), SLOT, shape()),
            ("cuMemMap", Some(memfd("fake-cuda-shared-0", enough / 2)), SLOT, shape()),
            ("nor on one that it reaches", Some(memfd("fake-cuda-shared-1", enough)), SLOT, shape()),
            ("1 descriptors instead of 2", None, SLOT, shape()),
            ("multiples of 4096", Some(memfd("fake-cuda-shared-0", enough)), 100, shape()),
            ("67108864 at most", Some(memfd("fake-cuda-shared-0", enough)), 1 << 30, shape()),
            ("multiples of 4096", Some(memfd("fake-cuda-shared-0", enough)), SLOT, RingShape::DEFAULT),
        ];
        runtime().block_on(async {
            let (_, receiver) = receiver();
            for (why, descriptor, slot_bytes, shape) in cases {
                let (here, there) = connection().await;
                let source = "source".parse().unwrap();
                let (offered, taken) = tokio::join!(
                    here.offer_with(shape, descriptor),
                    accept(there, &gpu, slot_bytes, receiver.clone(), source)
                );
                let error = taken.unwrap_err().to_string();
                assert!(error.contains(why), "{why}: {error}");
                assert!(matches!(offered, Err(HandoverError::Refused)));
                settles(&fake, before);
            }
            // And the right one is taken.
            let (here, there) = connection().await;
            let right = Some(memfd("fake-cuda-shared-0", enough));
            let source = "source".parse().unwrap();
            let (offered, taken) =
                tokio::join!(here.offer_with(shape(), right), accept(there, &gpu, SLOT, receiver.clone(), source));
            offered.map(drop).unwrap();
            taken.map(drop).unwrap();
        });
        settles(&fake, before);
    });
}

/// A peer that publishes arbitrary words.
struct Liar {
    producer: Producer,
    tag: u64,
}

impl Liar {
    fn publish(&mut self, offset: u64, record: &[u8], len: usize) {
        let mut slot = self.producer.reserve(None).unwrap();
        slot.put(0, record).unwrap();
        // The other side may have hung up already.
        let _ = slot.publish(self.tag, offset, len);
    }

    /// A whole stream of one slot.
    fn stream(&mut self, header: &StreamHeader, body: u32, trailer: StreamTrailer) {
        self.tag += 1;
        let record = [&body.to_le_bytes()[..], &header.encode(), &trailer.encode()].concat();
        self.publish(0, &record, record.len());
    }
}

#[test]
fn records_are_believed_nothing() {
    let test = "device_ring::peers::records_are_believed_nothing";
    run(test, NO_DELAYS, |fake| {
        let (gpu, before) = ready(&fake);
        runtime().block_on(async {
            let (desk, receiver) = receiver();
            let lying = async || {
                let (here, there) = connection().await;
                let source = "source".parse().unwrap();
                let memory = memfd("fake-cuda-shared-0", 4 * u64::from(SLOT));
                let (offered, taken) = tokio::join!(
                    here.offer_with(shape(), Some(memory)),
                    accept(there, &gpu, SLOT, receiver.clone(), source)
                );
                let liar = Liar { producer: offered.unwrap(), tag: 0 };
                (liar, taken.unwrap())
            };
            // What cannot be read ends the ring.
            let long = (SLOT + 1).to_le_bytes();
            for (offset, record, len) in [
                (0, vec![0; 4], 4),
                (0, vec![0; 59], 59),
                (0, vec![0; 61], 61),
                (0, vec![0; 73], 73),
                (0, vec![0; 4], 4096),
                (1, vec![0; 3], 3),
                (1, long.to_vec(), 4),
                (1, vec![0xFF; 16], 16),
            ] {
                let (mut liar, ring) = lying().await;
                liar.publish(offset, &record, len);
                let ended = soon(ring.closed()).await;
                assert!(matches!(ended, RingError::Corrupt { .. }), "{len}: {ended}");
            }
            // What can be read, and is not so, fails its stream and nothing else.
            let to = OnGpu::new(&gpu, 20, false);
            let canaries = bytes_of(&download(&to.dst));
            let bytes = to.routes.1.bytes();
            let (mut liar, _ring) = lying().await;
            let zeros = Crc32c::of(&vec![0; bytes as usize]).value();
            type Fault = fn(&ReceiveError) -> bool;
            let cases: [(u64, u64, u32, u64, u32, Fault); 5] = [
                (0, bytes, bytes as u32, bytes, !zeros, |e| matches!(e, ReceiveError::Checksum { .. })),
                (0, bytes, bytes as u32, bytes - 1, zeros, |e| matches!(e, ReceiveError::Length { .. })),
                (0, bytes, bytes as u32 - 1, bytes, zeros, |e| matches!(e, ReceiveError::TooShort { .. })),
                (0, bytes, bytes as u32 + 1, bytes, zeros, |e| matches!(e, ReceiveError::TooLong { .. })),
                (1, bytes, 1, bytes, zeros, |e| matches!(e, ReceiveError::Outside { .. })),
            ];
            for (offset, length, body, said, crc, is_it) in cases {
                let mut transfer = desk.expect(to.routes.0.clone(), to.routes.1.clone(), 1);
                let header =
                    StreamHeader { transfer: transfer.id, nonce: desk.nonce(transfer.id), stream: 0, offset, length };
                liar.stream(&header, body, StreamTrailer { length: said, crc });
                match soon(transfer.arriving.recv()).await.unwrap() {
                    Arrival::Broken(error) => assert!(is_it(&error), "{error}"),
                    Arrival::Whole(_) => panic!("{body} bytes of {length} are whole"),
                }
            }
            // Slots of no stream, and streams that are never ended, are passed over; the right one arrives.
            let mut transfer = desk.expect(to.routes.0.clone(), to.routes.1.clone(), 1);
            let header = StreamHeader {
                transfer: transfer.id,
                nonce: desk.nonce(transfer.id),
                stream: 0,
                offset: 0,
                length: bytes,
            };
            for offset in [1, 7, u64::MAX - 5] {
                liar.publish(offset, &1_u32.to_le_bytes(), 4);
            }
            liar.stream(&header, bytes as u32, StreamTrailer { length: bytes, crc: zeros });
            transfer.arrived().await;
            assert!(bytes_of(&download(&to.dst)) != canaries);
        });
        settles(&fake, before);
    });
}

/// A peer that empties no slot fails the transfers that wait for one, and the ring. Nothing is kept for it.
#[test]
fn slots_that_are_never_given_back_fail_the_ring() {
    let test = "device_ring::peers::slots_that_are_never_given_back_fail_the_ring";
    run(test, NO_DELAYS, |fake| {
        let (gpu, before) = ready(&fake);
        runtime().block_on(async {
            for dies in [false, true] {
                let (here, there) = connection().await;
                let (out, held) = tokio::join!(
                    offer(here, &gpu, Duration::from_millis(300)),
                    there.accept_with(|_, descriptor| Ok(descriptor))
                );
                let (ring, (mut consumer, descriptor)) = (out.unwrap(), held.unwrap());
                let sample = OnGpu::new(&gpu, 1901, false);
                let desk = Desk::default();
                let mut transfer = desk.expect(sample.routes.0.clone(), sample.routes.1.clone(), 1);
                ring.carry(&transfer.out);
                transfer.out.open_all();
                let holding = tokio::task::spawn_blocking(move || {
                    // It has one, and then keeps it or dies.
                    std::mem::forget(consumer.receive(None).unwrap());
                    if dies {
                        drop(consumer);
                        return None;
                    }
                    Some(consumer)
                });
                let consumer = holding.await.unwrap();
                let error = loop {
                    match soon(transfer.sending.next()).await.unwrap() {
                        SendEvent::Failed { error, .. } => break error,
                        SendEvent::Written { .. } => {}
                        other => panic!("{other:?}"),
                    }
                };
                let SendError::Path(error) = error else { panic!("{error}") };
                let error = error.downcast_ref::<RingError>().unwrap();
                match dies {
                    true => assert!(matches!(error, RingError::PeerGone), "{error}"),
                    false => assert!(matches!(error, RingError::NoneReleased { slots: 6, .. }), "{error}"),
                }
                assert!(ring.is_closed());
                soon(transfer.out.fence()).await;
                drop((consumer, descriptor));
            }
        });
        settles(&fake, before);
    });
}

const TRANSFER: TransferId = TransferId([1; 16]);
const NONCE: Nonce = Nonce([!1; 16]);

/// The environment variables that say where the other process is met.
const SOCKET: &str = "TRANSLOAD_TEST_SOCKET";
const TOKEN: &str = "TRANSLOAD_TEST_TOKEN";

/// A process that sends one transfer and then waits, or is killed before.
#[test]
#[ignore = "the other process of a test"]
fn other_process() {
    let _fake = Fake::load();
    let gpu = Gpu::open(0).unwrap();
    runtime().block_on(async {
        let socket = SocketName::try_from(std::env::var(SOCKET).unwrap()).unwrap();
        let token: Vec<u8> = std::env::var(TOKEN).unwrap().split(' ').map(|byte| byte.parse().unwrap()).collect();
        let token = Token(token.try_into().unwrap());
        let connection = connect(&socket, &token, &Limits::default()).await.unwrap();
        let ring = offer(connection, &gpu, PATIENCE).await.unwrap();
        let sample = OnGpu::new(&gpu, 1301, false);
        let (out, mut sending) = Outgoing::new(TRANSFER, NONCE, sample.routes.0.clone(), 1);
        ring.carry(&out);
        process::say("sends");
        out.open_all();
        while let Some(event) = sending.next().await {
            assert!(matches!(event, SendEvent::Written { .. }), "{event:?}");
            process::say("sent");
        }
    });
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let test = "device_ring::peers::a_process_that_is_killed_leaves_nothing_behind";
    run(test, &[("FAKE_CUDA_DELAY_US", "1000")], |fake| {
        let (gpu, before) = ready(&fake);
        runtime().block_on(async {
            let listener = Listener::bind(Limits::default()).unwrap();
            for killed in [true, false] {
                let to = OnGpu::new(&gpu, 1301, false);
                let (desk, receiver) = receiver();
                let mut transfer = desk.expect(to.routes.0.clone(), to.routes.1.clone(), 1);
                assert_eq!((transfer.id, desk.nonce(transfer.id)), (TRANSFER, NONCE));
                let token = random_token().unwrap();
                let expected = listener.expect(&token).unwrap();
                let token = token.0.map(|byte| byte.to_string()).join(" ");
                let mut other = Other::start(
                    "device_ring::peers::other_process",
                    &[(SOCKET, listener.name().as_str()), (TOKEN, &token)],
                );
                let connection = expected.connection(PATIENCE).await.unwrap();
                let source = "source".parse().unwrap();
                let ring = accept(connection, &gpu, SLOT, receiver, source).await.unwrap();
                assert_eq!(other.hear().await.as_deref(), Some("sends"));
                if killed {
                    while transfer.landing.placed() == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    other.kill();
                    let ended = soon(ring.closed()).await;
                    assert!(matches!(ended, RingError::PeerGone), "{ended}");
                    soon(transfer.landing.fence()).await;
                } else {
                    transfer.arrived().await;
                    to.check();
                    assert_eq!(other.hear().await.as_deref(), Some("sent"));
                    drop(ring);
                }
            }
        });
        settles(&fake, before);
    });
}
