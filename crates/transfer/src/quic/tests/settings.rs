//! Settings: which are refused, which are clamped, and which follow from the path.

use quinn::udp::Transmit;

use super::{
    super::{
        path::Path,
        socket::{self, MAX_BATCH, parts},
    },
    *,
};

#[test]
fn settings_that_cannot_be_are_named() {
    let check = |change: fn(&mut QuicOptions)| {
        let mut options = QuicOptions::default();
        change(&mut options);
        match options.check() {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(check(|_| {}), "");
    for (change, field) in [
        ((|o| o.lanes = 0) as fn(&mut QuicOptions), "lanes is 0; it must be 1 to 256"),
        (|o| o.lanes = 257, "lanes"),
        (|o| o.receive_window = 1000, "receive_window"),
        (|o| o.send_window = u32::MAX, "send_window"),
        (|o| o.max_streams = 0, "max_streams"),
        (|o| o.frame_timeout = Duration::ZERO, "frame_timeout"),
        (|o| o.stall_timeout = Duration::MAX, "stall_timeout"),
        (|o| o.handshake_timeout = Duration::ZERO, "handshake_timeout"),
        (|o| o.idle_timeout = Duration::ZERO, "idle_timeout"),
        (|o| o.keep_alive = o.idle_timeout, "keep_alive"),
        (|o| o.max_handshakes = 0, "max_handshakes"),
        (|o| o.max_connections = 0, "max_connections"),
        (|o| o.lane_ports = Some(0..=100), "lane_ports"),
        (
            |o| {
                o.lanes = 3;
                o.lane_ports = Some(7000..=7001);
            },
            "lane_ports has 2 ports for 3 lanes",
        ),
    ] {
        let said = check(change);
        assert!(said.starts_with(field), "{field}: {said:?}");
    }
}

#[test]
fn lanes_take_free_ports_of_their_range() {
    let authority = authority();
    let with = |ports| QuicOptions { lanes: 2, lane_ports: Some(ports), ..QuicOptions::default() };
    // Some range is free; which one, this machine's other programs decide.
    let (first, held) = (20_000..60_000_u16)
        .step_by(16)
        .find_map(|first| {
            let sockets: Option<Vec<_>> =
                (first..first + 4).map(|port| std::net::UdpSocket::bind(loopback(port)).ok()).collect();
            Some((first, sockets?))
        })
        .unwrap();
    let bind = |ports| Endpoints::bind(identity(&authority, "a"), with(ports), loopback(0));
    let mut held = held.into_iter();
    // The first port stays taken, the others become free.
    let taken = held.next().unwrap();
    drop(held);
    let endpoints = bind(first..=first + 3).unwrap();
    assert_eq!(endpoints.lane_ports(), [first + 1, first + 2]);
    match bind(first..=first + 3).unwrap_err() {
        EndpointsError::PortsTaken { found, lanes, .. } => assert_eq!((found, lanes), (1, 2)),
        other => panic!("{other:?}"),
    }
    drop(taken);
    let taken = endpoints.control_addr();
    assert!(matches!(
        Endpoints::bind(identity(&authority, "b"), QuicOptions::default(), taken).unwrap_err(),
        EndpointsError::Socket { addr, .. } if addr == taken
    ));
}

#[test]
fn short_buffers_are_reported_with_the_setting_that_limits_them() {
    let (_socket, buffers) = socket::bind(loopback(0), 1 << 30).unwrap();
    let said: Vec<String> = buffers.short().map(|short| short.to_string()).collect();
    if buffers.receive.granted < 1 << 30 {
        assert!(said[0].contains("net.core.rmem_max=1073741824"), "{said:?}");
    }
    assert_eq!(said.len(), [buffers.receive, buffers.send].iter().filter(|buffer| buffer.granted < 1 << 30).count());
}

const BUFFER: usize = 4 << 20;

fn path(carried: Option<u32>, wanted: Option<u16>, buffer: usize) -> Path {
    let options = QuicOptions { udp_payload: wanted, ..QuicOptions::default() };
    Path::choose(carried, &options, buffer)
}

#[test]
fn loopback_starts_with_the_largest_packets() {
    let v4 = Some(65_535 - 28);
    let v6 = Some(65_536 - 48);
    assert_eq!(path(v4, None, BUFFER).initial, 65_507);
    assert_eq!(path(v6, None, BUFFER).initial, 65_488);
    assert_eq!(path(v4, Some(65_535), BUFFER).initial, 65_507);
    assert_eq!(path(v6, Some(65_535), BUFFER).initial, 65_488);
    assert_eq!(path(v4, Some(0), BUFFER).initial, 1200);
    assert_eq!(path(v4, Some(6500), BUFFER).largest, 6500);
    // With the kernel's default buffers, smaller ones, and never more under way than fits.
    let short = path(v4, None, 212_992);
    assert_eq!((short.initial, short.receive_window), (17_749, 212_992));
    assert_eq!(path(v4, None, 0).initial, 1200);
    assert_eq!(path(v4, None, 0).receive_window, 65_536);
}

#[test]
fn networks_start_small_and_grow_to_what_the_interface_carries() {
    let ends = |carried, wanted| {
        let path = path(carried, wanted, BUFFER);
        (path.initial, path.largest)
    };
    assert_eq!(ends(Some(1472), None), (1452, 1472));
    assert_eq!(ends(Some(8972), None), (1452, 8952));
    assert_eq!(ends(Some(1372), None), (1372, 1372));
    assert_eq!(ends(Some(8972), Some(65_535)), (1452, 8972));
    assert_eq!(ends(Some(8972), Some(0)), (1200, 1200));
    assert_eq!(ends(Some(548), None), (1200, 1200));
    assert_eq!(ends(None, None), (1200, 8952));
    assert_eq!(ends(None, Some(1300)), (1200, 1300));
}

#[test]
fn the_kernel_is_asked_about_routes() {
    let options = QuicOptions::default();
    let path = Path::towards(loopback(1), &options, BUFFER);
    if cfg!(target_os = "linux") {
        assert_eq!(path.initial, 65_507);
        let mapped = "[::ffff:127.0.0.1]:1".parse().unwrap();
        assert_eq!(Path::towards(mapped, &options, BUFFER), path);
    }
}

#[test]
fn batches_are_cut_to_what_the_kernel_takes() {
    let bytes: Vec<u8> = (0..700_000_u32).map(|i| i as u8).collect();
    let cut = |len: usize, segment: Option<usize>| -> Vec<usize> {
        let transmit = Transmit {
            destination: loopback(1),
            ecn: None,
            contents: &bytes[..len],
            segment_size: segment,
            src_ip: None,
        };
        let parts: Vec<_> = parts(&transmit).collect();
        let joined: Vec<u8> = parts.iter().flat_map(|part| part.contents).copied().collect();
        assert_eq!(joined, &bytes[..len]);
        parts.iter().map(|part| part.contents.len()).collect()
    };
    assert_eq!(cut(1200, None), [1200]);
    assert_eq!(cut(65_507, None), [65_507]);
    assert_eq!(cut(14_520, Some(1452)), [14_520]);
    assert_eq!(cut(65_000, Some(6500)), [65_000]);
    assert_eq!(cut(65_500, Some(6550)), [32_750, 32_750]);
    assert_eq!(cut(89_520, Some(8952)), [44_760, 44_760]);
    assert_eq!(cut(2 * 65_507, Some(65_507)), [65_507, 65_507]);
    for segment in 1..=65_507_usize {
        let packets = 10.min(700_000 / segment);
        for len in [packets * segment, packets * segment - segment / 2] {
            let parts = cut_lengths(len, segment);
            assert_eq!(parts.iter().sum::<usize>(), len);
            let (last, whole) = parts.split_last().unwrap();
            assert!(whole.iter().all(|part| part % segment == 0), "{segment}");
            assert!(parts.iter().all(|part| *part <= MAX_BATCH.max(segment)), "{segment}: {parts:?}");
            assert!(*last > 0);
        }
    }
}

fn cut_lengths(len: usize, segment: usize) -> Vec<usize> {
    static ZEROS: [u8; 700_000] = [0; 700_000];
    let transmit = Transmit {
        destination: loopback(1),
        ecn: None,
        contents: &ZEROS[..len],
        segment_size: Some(segment),
        src_ip: None,
    };
    parts(&transmit).map(|part| part.contents.len()).collect()
}
