//! The local path between two real processes: this binary starts itself again, as [`other_process`].

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use transload_transfer::internal::handover::{Connection, HandoverError, Limits, Listener, connect};
use transload_transfer::internal::ring::{self, Doorbell, random_token};
use transload_transfer::internal::slots::{Consumer, Producer, RingError, RingShape};
use transload_transfer::wire::internal::ring::{SocketName, Token};

/// A time limit far above what anything here takes, so that a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end of a ring.
trait End: Send + 'static {
    fn bell(&self) -> Doorbell;
}

impl End for Producer {
    fn bell(&self) -> Doorbell {
        self.doorbell()
    }
}

impl End for Consumer {
    fn bell(&self) -> Doorbell {
        self.doorbell()
    }
}

async fn drive<E, R>(mut end: E, work: impl FnOnce(&mut E) -> R + Send + 'static) -> R
where
    E: End,
    R: Send + 'static,
{
    let driven = ring::drive(end.bell(), move || work(&mut end)).unwrap();
    driven.result().await.unwrap()
}

#[test]
fn bytes_cross_between_processes() {
    let _one_at_a_time = alone();
    runtime().block_on(async {
        let listener = Listener::bind(limits()).unwrap();
        let total = 256 << 20;

        let (other, connection) = meet(&listener, "produce").await;
        let consumer = accept_consumer(connection).await;
        let start = Instant::now();
        let received = drive(consumer, move |c| receive_all(c, total)).await;
        received.unwrap();
        report("received", total, start);
        other.kill_and_wait();

        let (other, connection) = meet(&listener, "consume").await;
        let producer = offer_producer(connection).await;
        let start = Instant::now();
        // That there is room for one ring more proves that the rest was taken.
        let more = producer.shape().bytes();
        let sent = drive(producer, move |p| send_all(p, total + more)).await;
        sent.unwrap();
        report("sent", total, start);
        other.kill_and_wait();
    });
}

#[test]
fn survivors_of_kill_9_notice_and_leak_nothing() {
    let _one_at_a_time = alone();
    let before = Belongings::count();
    let mut chance = Chance(0x5EED);
    let (mut met, mut unmet) = (0, 0);
    let runtime = runtime();
    runtime.block_on(async {
        let listener = Listener::bind(limits()).unwrap();
        for round in 0..rounds() {
            // Die somewhere between being started and streaming.
            let role = if round % 2 == 0 { "produce" } else { "consume" };
            let token = random_token().unwrap();
            let expected = listener.expect(&token).unwrap();
            let other = Other::start(role, listener.name(), &token);
            let death = other.die_in(Duration::from_micros(1 << chance.below(16)));
            let survived = async {
                let connection = expected.connection(Duration::from_millis(80)).await?;
                serve(role, connection).await
            };
            match tokio::time::timeout(PATIENCE, survived).await.unwrap() {
                Ok(RingError::PeerGone) => met += 1,
                Ok(other) => panic!("{role}: {other}"),
                Err(HandoverError::PeerGone | HandoverError::TimedOut) => unmet += 1,
                Err(other) => panic!("{role}: {other}"),
            }
            death.await.unwrap();

            // Die in the middle of streaming, for sure.
            let (other, connection) = meet(&listener, role).await;
            let death = other.die_in(Duration::from_micros(2_000 + chance.below(10_000)));
            let end = tokio::time::timeout(PATIENCE, serve(role, connection)).await;
            match end.unwrap() {
                Ok(RingError::PeerGone) | Err(HandoverError::PeerGone) => {}
                other => panic!("{role}: {other:?}"),
            }
            death.await.unwrap();
        }
        // And the next peer is served as ever.
        let (other, connection) = meet(&listener, "produce").await;
        let consumer = accept_consumer(connection).await;
        let received = drive(consumer, |c| receive_all(c, 1 << 20)).await;
        received.unwrap();
        other.kill_and_wait();
    });
    drop(runtime);
    println!("killed at any time: {met} while streaming, {unmet} before");
    assert_eq!(Belongings::count(), before);
}

/// The other process writes garbage over all of the ring that it shares with us, all the time.
#[test]
fn a_peer_that_scribbles_over_the_ring_does_no_harm() {
    let _one_at_a_time = alone();
    let before = Belongings::count();
    let runtime = runtime();
    runtime.block_on(async {
        let listener = Listener::bind(limits()).unwrap();
        for role in ["scribble as producer", "scribble as consumer"] {
            let (other, connection) = meet(&listener, role).await;
            let until = Instant::now() + Duration::from_millis(500);
            if role == "scribble as producer" {
                let consumer = accept_consumer(connection).await;
                let slot_bytes = consumer.shape().slot_bytes() as usize;
                drive(consumer, move |c| {
                    while Instant::now() < until {
                        match c.receive(Some(Instant::now() + Duration::from_millis(1))) {
                            Ok(window) => {
                                let mut bytes = vec![0; window.len()];
                                assert!(bytes.len() <= slot_bytes);
                                window.get(0, &mut bytes).unwrap();
                            }
                            Err(RingError::Corrupt { .. } | RingError::TimedOut) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                })
                .await;
            } else {
                let producer = offer_producer(connection).await;
                drive(producer, move |p| {
                    let bytes = vec![7; p.shape().slot_bytes() as usize];
                    while Instant::now() < until {
                        match p.reserve(Some(Instant::now() + Duration::from_millis(1))) {
                            Ok(mut window) => {
                                window.put(0, &bytes).unwrap();
                                window.publish(0, 0, bytes.len()).unwrap();
                            }
                            Err(RingError::Corrupt { .. } | RingError::TimedOut) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                })
                .await;
            }
            other.kill_and_wait();
        }
    });
    drop(runtime);
    assert_eq!(Belongings::count(), before);
}

#[test]
#[ignore = "is the other process of the tests in this file"]
fn other_process() {
    let of = |name| std::env::var(name).expect("run by the tests in this file only");
    let role = of("TRANSLOAD_TEST_ROLE");
    let name = SocketName::try_from(of("TRANSLOAD_TEST_SOCKET")).unwrap();
    let token = Token(from_hex(&of("TRANSLOAD_TEST_TOKEN")));
    runtime().block_on(async {
        let connection = connect(&name, &token, &limits()).await.unwrap();
        match role.as_str() {
            "produce" => {
                let producer = offer_producer(connection).await;
                let _ = drive(producer, |p| send_all(p, u64::MAX)).await;
            }
            "consume" => {
                let consumer = accept_consumer(connection).await;
                let _ = drive(consumer, |c| receive_all(c, u64::MAX)).await;
            }
            "scribble as producer" => scribble(offer_producer(connection).await),
            "scribble as consumer" => scribble(accept_consumer(connection).await),
            unknown => panic!("no such role: {unknown}"),
        }
    });
}

/// Overwrites what this process shares with its peer, until it is killed.
fn scribble(_end: impl End) {
    let map = shared_maps().pop().expect("a ring is mapped");
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    let mut chance = Chance(99);
    loop {
        // The first words hold the counts and headers: mostly those.
        let reach = if chance.below(4) == 0 { map.len } else { 5_000 };
        let at = map.start + (chance.below(reach - 8) & !7);
        let value = match chance.below(3) {
            0 => chance.below(16),
            1 => chance.below(1 << 20),
            _ => chance.next(),
        };
        memory.write_at(&value.to_ne_bytes(), at).unwrap();
    }
}

/// Serves a peer as the opposite of its `role` until something fails.
async fn serve(role: &str, connection: Connection) -> Result<RingError, HandoverError> {
    if role == "produce" {
        let consumer = connection.accept_consumer().await?;
        let end = drive(consumer, |c| receive_all(c, u64::MAX)).await;
        Ok(end.unwrap_err())
    } else {
        let producer = connection.offer_producer(RingShape::DEFAULT).await?;
        let end = drive(producer, |p| send_all(p, u64::MAX)).await;
        Ok(end.unwrap_err())
    }
}

fn send_all(producer: &mut Producer, total: u64) -> Result<(), RingError> {
    let mut sent = 0;
    let mut bytes = vec![0; producer.shape().slot_bytes() as usize];
    while sent < total {
        let len = total.saturating_sub(sent).min(bytes.len() as u64) as usize;
        let mut window = producer.reserve(None)?;
        bytes.fill(stamp(sent));
        window.put(0, &bytes[..len]).unwrap();
        window.publish(42, sent, len)?;
        sent += len as u64;
    }
    Ok(())
}

fn receive_all(consumer: &mut Consumer, total: u64) -> Result<(), RingError> {
    let mut received = 0;
    let mut bytes = vec![0; consumer.shape().slot_bytes() as usize];
    while received < total {
        let window = consumer.receive(None)?;
        assert_eq!((window.tag(), window.offset()), (42, received));
        let bytes = &mut bytes[..window.len()];
        window.get(0, bytes).unwrap();
        drop(window);
        let expected = stamp(received);
        assert!(bytes.iter().all(|b| *b == expected), "at {received}");
        received += bytes.len() as u64;
    }
    Ok(())
}

fn stamp(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

async fn offer_producer(connection: Connection) -> Producer {
    connection.offer_producer(RingShape::DEFAULT).await.unwrap()
}

async fn accept_consumer(connection: Connection) -> Consumer {
    connection.accept_consumer().await.unwrap()
}

/// Starts the other process and waits until it has connected.
async fn meet(listener: &Listener, role: &str) -> (Other, Connection) {
    let token = random_token().unwrap();
    let expected = listener.expect(&token).unwrap();
    let other = Other::start(role, listener.name(), &token);
    let connection = expected.connection(PATIENCE).await.unwrap();
    (other, connection)
}

/// The other process; killed when dropped.
struct Other(Child);

impl Other {
    fn start(role: &str, name: &SocketName, token: &Token) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture"])
            .env("TRANSLOAD_TEST_ROLE", role)
            .env("TRANSLOAD_TEST_SOCKET", name.as_str())
            .env("TRANSLOAD_TEST_TOKEN", to_hex(&token.0))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Kills the process with SIGKILL, after a while.
    fn die_in(self, delay: Duration) -> tokio::task::JoinHandle<()> {
        tokio::task::spawn_blocking(move || {
            std::thread::sleep(delay);
            self.kill_and_wait();
        })
    }

    fn kill_and_wait(mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts the resources of this process that a dead peer could have left behind.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    descriptors: usize,
    shared_maps: usize,
}

impl Belongings {
    fn count() -> Self {
        // What the first runtime of a process opens for good (its pipe for signals) does not count.
        drop(runtime());
        Self { descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(), shared_maps: shared_maps().len() }
    }
}

struct SharedMap {
    start: u64,
    len: u64,
}

/// Returns the mappings of this process that are rings.
fn shared_maps() -> Vec<SharedMap> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|l| l.contains("memfd:transload"));
    ours.map(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let of = |hex| u64::from_str_radix(hex, 16).unwrap();
        SharedMap { start: of(start), len: of(end) - of(start) }
    })
    .collect()
}

/// Returns how often each side is killed; `TRANSLOAD_TEST_KILLS` asks for more.
fn rounds() -> u64 {
    let asked = std::env::var("TRANSLOAD_TEST_KILLS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(40)
}

fn limits() -> Limits {
    Limits { timeout: PATIENCE, ..Limits::default() }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Locks the tests of this file, which take turns because descriptors are counted.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(what: &str, bytes: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!("{what} {:.2} GB/s", bytes as f64 / 1e9 / seconds);
}

fn to_hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(hex: &str) -> [u8; 32] {
    std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
}

/// A small generator of numbers that look random (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
