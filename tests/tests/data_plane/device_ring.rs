//! Rings in device memory, on the fake driver.
//!
//! - [`peers`]: what peers may do.

mod peers;

use std::time::Duration;

use transload_layout::Side;
use transload_tests::fake_cuda::{Fake, run};
use transload_tests::pair::{download, upload};
use transload_transfer::DataOptions;
use transload_transfer::device::{DeviceMemory, Gpu};
use transload_transfer::internal::data::{Receiver, RouteBytes, SendEvent};
use transload_transfer::internal::device_ring::{accept, offer};
use transload_transfer::internal::handover::{Connection, Limits, Listener, connect};
use transload_transfer::internal::ring::{RingIn, RingOut, random_token};
use transload_transfer::memory::Access;

use crate::support::{Arrival, Desk, PATIENCE, Sample, Transfer, bytes_of, runtime, soon};

const NO_DELAYS: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "0")];

/// The slot size that agents choose for a ring.
const SLOT: u32 = 4 << 20;

/// A sample whose memories are on a GPU.
struct OnGpu {
    sample: Sample,
    dst: DeviceMemory,
    routes: (RouteBytes, RouteBytes),
}

impl OnGpu {
    fn new(gpu: &Gpu, tokens: u64, by_layer: bool) -> Self {
        let sample = Sample::new(tokens, by_layer, ("LBSHC", "LBHSC"));
        let on_gpu = |memory| upload(gpu, memory, Access::ReadWrite);
        let (src, dst) = (on_gpu(&sample.src.0), on_gpu(&sample.dst.0));
        let plan = &sample.plan;
        let bind = |side, tables, memory: &DeviceMemory| {
            let stream = plan.bind_stream(&plan.routes()[0], side, tables).unwrap();
            RouteBytes::new(stream, |_| Some(memory.into())).unwrap()
        };
        let routes = (bind(Side::Source, &sample.tables.0, &src), bind(Side::Destination, &sample.tables.1, &dst));
        Self { sample, dst, routes }
    }

    fn check(&self) {
        assert!(bytes_of(&download(&self.dst)) == self.sample.expected());
    }
}

async fn connection() -> (Connection, Connection) {
    let listener = Listener::bind(Limits::default()).unwrap();
    let token = random_token().unwrap();
    let expected = listener.expect(&token).unwrap();
    let limits = Limits::default();
    let connecting = connect(listener.name(), &token, &limits);
    let (here, there) = tokio::join!(connecting, expected.connection(PATIENCE));
    (here.unwrap(), there.unwrap())
}

fn receiver() -> (Desk, Receiver) {
    let desk = Desk::default();
    (desk.clone(), Receiver::new(desk, &DataOptions::default()))
}

async fn rings(gpu: &Gpu, receiver: &Receiver, stall: Duration) -> (RingOut, RingIn) {
    let (here, there) = connection().await;
    let source = "source".parse().unwrap();
    let (out, arriving) = tokio::join!(offer(here, gpu, stall), accept(there, gpu, SLOT, receiver.clone(), source));
    (out.unwrap(), arriving.unwrap())
}

/// Waits until there is no more of the driver's than before.
fn settles(fake: &Fake, before: u64) {
    for _ in 0..500 {
        if fake.live() == before {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} things are left, {before} were there", fake.live());
}

/// Opens a GPU, and returns it with the number of the driver's objects while it is idle.
fn ready(fake: &Fake) -> (Gpu, u64) {
    let gpu = Gpu::open(0).unwrap();
    let before = fake.live();
    (gpu, before)
}

#[test]
fn streams_cross_on_one_gpu() {
    let test = "device_ring::streams_cross_on_one_gpu";
    run(test, NO_DELAYS, |fake| {
        let (gpu, before) = ready(&fake);
        runtime().block_on(async {
            let (desk, receiver) = receiver();
            let (ring, _arriving) = rings(&gpu, &receiver, PATIENCE).await;
            // Streams of more slots than a ring has, and streams shorter than one, at the same time.
            let samples = [OnGpu::new(&gpu, 1901, false), OnGpu::new(&gpu, 97, true), OnGpu::new(&gpu, 205, true)];
            let mut transfers = Vec::new();
            for OnGpu { routes, .. } in &samples {
                let transfer = desk.expect(routes.0.clone(), routes.1.clone(), 1);
                ring.carry(&transfer.out);
                transfers.push(transfer);
            }
            for transfer in &mut transfers {
                transfer.out.open_all();
            }
            for transfer in &mut transfers {
                transfer.done().await;
            }
            samples.iter().for_each(OnGpu::check);
        });
        settles(&fake, before);
    });
}

/// A cancelled transfer touches nothing after its fences end, and other transfers continue over the same ring.
#[test]
fn fences_stop_a_transfer_in_its_midst() {
    let test = "device_ring::fences_stop_a_transfer_in_its_midst";
    run(test, &[("FAKE_CUDA_DELAY_US", "500")], |fake| {
        let (gpu, before) = ready(&fake);
        runtime().block_on(async {
            let (desk, receiver) = receiver();
            let (ring, _arriving) = rings(&gpu, &receiver, PATIENCE).await;
            for millis in [0, 1, 5, 20, 100] {
                let given_up = OnGpu::new(&gpu, 700, false);
                let (from, to) = given_up.routes.clone();
                let transfer = desk.expect(from, to, 1);
                ring.carry(&transfer.out);
                transfer.out.open_all();
                tokio::time::sleep(Duration::from_millis(millis)).await;
                let fences = async { tokio::join!(transfer.out.fence(), transfer.landing.fence()) };
                soon(fences).await;
                desk.forget(transfer.id);
                let fenced = bytes_of(&download(&given_up.dst));
                let next = OnGpu::new(&gpu, 40, false);
                let mut transfer = desk.expect(next.routes.0.clone(), next.routes.1.clone(), 1);
                ring.carry(&transfer.out);
                transfer.out.open_all();
                transfer.done().await;
                next.check();
                assert!(bytes_of(&download(&given_up.dst)) == fenced, "{millis} ms");
            }
        });
        settles(&fake, before);
    });
}

const OUT_OF_MEMORY: u32 = 2;

/// A call that fails in the middle of a transfer ends at most that transfer; the next one uses the same ring.
#[test]
fn a_call_that_fails_ends_its_transfer_alone() {
    let test = "device_ring::a_call_that_fails_ends_its_transfer_alone";
    run(test, NO_DELAYS, |fake| {
        let (gpu, before) = ready(&fake);
        runtime().block_on(async {
            let (desk, receiver) = receiver();
            let (ring, _arriving) = rings(&gpu, &receiver, PATIENCE).await;
            let calls = [
                ("cuLaunchKernel", 4),
                ("cuLaunchKernel", 7),
                ("cuEventRecord", 2),
                ("cuEventRecord", 5),
                ("cuEventQuery", 3),
            ];
            for (function, nth) in calls {
                let sample = OnGpu::new(&gpu, 1301, false);
                let (from, to) = sample.routes.clone();
                let mut transfer = desk.expect(from, to, 1);
                fake.fail(function, nth, OUT_OF_MEMORY);
                ring.carry(&transfer.out);
                transfer.out.open_all();
                // What is only asked once more does no harm.
                let whole = arrives(&mut transfer).await;
                assert_eq!(whole, function != "cuLaunchKernel", "{function}, call {nth}");
                if whole {
                    sample.check();
                }
                fake.fail(function, 0, 0);
                let fences = async { tokio::join!(transfer.out.fence(), transfer.landing.fence()) };
                soon(fences).await;
                desk.forget(transfer.id);
                let next = OnGpu::new(&gpu, 40, false);
                let mut transfer = desk.expect(next.routes.0.clone(), next.routes.1.clone(), 1);
                ring.carry(&transfer.out);
                transfer.out.open_all();
                transfer.done().await;
                next.check();
            }
        });
        settles(&fake, before);
    });
}

/// Returns whether all of a transfer arrives; if not, one of the two sides says so.
async fn arrives(transfer: &mut Transfer) -> bool {
    let (total, mut arrived) = (transfer.landing.route().bytes(), 0);
    while arrived < total {
        let sent = tokio::select! {
            sent = transfer.sending.next() => sent,
            arrival = transfer.arriving.recv() => match arrival.unwrap() {
                Arrival::Whole(header) => {
                    arrived += header.length;
                    continue;
                }
                Arrival::Broken(_) => return false,
            },
        };
        match sent {
            Some(SendEvent::Written { .. }) => {}
            Some(SendEvent::Failed { .. }) => return false,
            other => panic!("{other:?}"),
        }
    }
    true
}
