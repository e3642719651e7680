use proptest::prelude::*;

use super::*;

/// Texts with which a client might try to have another host dialled than was compared, and texts that are no server at
/// all.
const HOSTILE: &[&str] = &[
    // No host, no port, ports of odd spellings.
    "",
    ":",
    ":80",
    "a",
    "a:",
    "a:0",
    "a:00",
    "a:080",
    "a:65536",
    "a:99999",
    "a:100000",
    "a:-1",
    "a:+80",
    "a: 80",
    "a:80 ",
    "a:8_0",
    "a:0x50",
    "a:80a",
    "a:http",
    "a:\u{ff18}\u{ff10}",
    "a:80:80",
    "a:80,b:80",
    "a:18446744073709551696",
    "a:80\0",
    "a:8\t0",
    // Parts of URLs.
    "http://a:80",
    "https://a:80",
    "//a:80",
    "a:80/",
    "a:80/x",
    "/a:80",
    "a/b:80",
    "a:80?x",
    "a?x:80",
    "a:80#x",
    "a#:80",
    "u@a:80",
    "u:p@a:80",
    "@a:80",
    "a@:80",
    "a%2eb:80",
    "%61:80",
    "a:80%20",
    "a\\b:80",
    "\\\\a:80",
    "a;b:80",
    "a&b:80",
    "a=b:80",
    "$a:80",
    "{a}:80",
    "<a>:80",
    "\"a\":80",
    "'a':80",
    "a*:80",
    "*:80",
    "a|b:80",
    "~a:80",
    "a!:80",
    "(a):80",
    "unix:/tmp/a:80",
    // White space and control characters.
    " a:80",
    "a :80",
    "a b:80",
    "a\tb:80",
    "a\r\nb:80",
    "a\n:80",
    "a\0.b:80",
    "\u{feff}a:80",
    "a\u{a0}:80",
    "a\u{200b}:80",
    "a\x7f:80",
    // Names.
    ".:80",
    "..:80",
    ".a:80",
    "a.:80",
    "a..b:80",
    "-a:80",
    "a-:80",
    "a.-b:80",
    "a-.b:80",
    "\u{e4}:80",
    "\u{430}:80",
    "a\u{3002}b:80",
    "\u{ff41}:80",
    "a\u{ad}b:80",
    // IPv4 in spellings that resolvers take.
    "127.1:80",
    "127.0.1:80",
    "1:80",
    "2130706433:80",
    "017700000001:80",
    "0177.0.0.1:80",
    "0x7f000001:80",
    "0x7f.0.0.1:80",
    "0X7F.1:80",
    "127.0.0.0x1:80",
    "127.0.0.01:80",
    "127.000.000.001:80",
    "256.0.0.1:80",
    "1.2.3.4.5:80",
    "1.2.3.:80",
    "1.2.3.4.:80",
    "169.254.43518:80",
    "169.16689662:80",
    "2852039166:80",
    "0xa9fea9fe:80",
    "0xa9.0xfe.0xa9.0xfe:80",
    "a.1:80",
    "a.0x1:80",
    "0x:80",
    "\u{2460}27.0.0.1:80",
    "127\u{3002}0\u{3002}0\u{3002}1:80",
    "1e2:1e1",
    "127.0.0.1/8:80",
    // IPv6.
    "::1:80",
    "[::1:80",
    "::1]:80",
    "[::1]80",
    "[::1]",
    "[::1]:",
    "[]:80",
    "[[::1]]:80",
    "[::1]]:80",
    "[a]:80",
    "[127.0.0.1]:80",
    "[::1%lo]:80",
    "[fe80::1%25eth0]:80",
    "[::1]x:80",
    "x[::1]:80",
    "[:::1]:80",
    "[1:2:3:4:5:6:7:8:9]:80",
    "[::g]:80",
    "[::1 ]:80",
    "[::1/128]:80",
    "[v1.a]:80",
    "[::ffff:127.1]:80",
    "[::1].:80",
    "[::00001]:80",
];

#[test]
fn hostile_targets_are_refused() {
    assert!(HOSTILE.len() >= 60);
    for text in HOSTILE {
        assert!(Target::parse(text).is_err(), "{text:?}");
        // Nor is any of them a server that a header names; one scheme may stand there, and a list ends at a comma.
        if !text.starts_with("http://") && !text.contains(',') && !text.trim_matches([' ', '\t']).is_empty() {
            let named = named([text.as_bytes()].into_iter(), |_| 0);
            assert_eq!(named.is_err(), Target::parse(text.trim_matches([' ', '\t'])).is_err(), "{text:?}");
        }
    }
    let long = format!("{}a:80", "a.".repeat(126));
    assert!(Target::parse(&long).is_ok() && Target::parse(&format!("a{long}")).is_err());
    assert!(Target::parse(&format!("{}:80", "a".repeat(63))).is_ok());
    assert!(Target::parse(&format!("{}:80", "a".repeat(64))).is_err());
    assert!(named([&b"a\xff:80"[..]].into_iter(), |_| 0).is_err());
}

#[test]
fn targets_are_read() {
    let targets = [
        ("a:1", "a:1"),
        ("A-b_C.Example:65535", "a-b_c.example:65535"),
        ("3f2a9b.7z:80", "3f2a9b.7z:80"),
        ("0.0.0.0:80", "0.0.0.0:80"),
        ("10.1.2.3:8000", "10.1.2.3:8000"),
        ("[2001:DB8:0::1]:8000", "[2001:db8::1]:8000"),
        ("[::ffff:10.1.2.3]:8000", "10.1.2.3:8000"),
        ("[::ffff:a01:203]:8000", "10.1.2.3:8000"),
        ("_a:80", "_a:80"),
    ];
    for (text, shown) in targets {
        assert_eq!(Target::parse(text).unwrap().to_string(), shown);
    }
    assert_eq!(Target::parse("a"), Err(TargetError::NoPort));
    assert_eq!(Target::parse("a:80/"), Err(TargetError::Port));
    assert_eq!(Target::parse("a/:80"), Err(TargetError::Host));
}

#[test]
fn server_urls_are_read() {
    let urls = [
        ("http://a:8100", "http://a:8100"),
        ("HTTPS://A/", "https://a:443"),
        ("http://[::1]", "http://[::1]:80"),
        ("http://[::1]:1/", "http://[::1]:1"),
        ("https://10.0.0.1:8443/", "https://10.0.0.1:8443"),
    ];
    for (text, shown) in urls {
        assert_eq!(ServerUrl::parse(text).unwrap().to_string(), shown);
    }
    for text in [
        "",
        "a:80",
        "//a:80",
        "ftp://a:80",
        "http:a:80",
        "http:/a:80",
        "http://",
        "http:///",
        "http://a:80//",
        "http://a:80/x",
        "http://a:80?x",
        "http://a:80#x",
        "http://u@a:80",
        "http://u:p@a",
        "http://a:",
        "http://a:0",
        " http://a",
        "http://a ",
        "http://a,http://b",
        "http://127.1",
        "http://http://a",
        "http://[::1",
        "http://::1",
        "unix:///tmp/a",
    ] {
        assert!(ServerUrl::parse(text).is_err(), "{text:?}");
    }
    assert_eq!(ServerUrl::parse("a:80"), Err(ServerUrlError::Scheme));
    let wrong = ServerUrl::parse("http://a/x").unwrap_err();
    assert!(wrong.to_string().starts_with("after its scheme, its host is neither"), "{wrong}");
}

fn list(texts: &[&str]) -> AllowList {
    AllowList::parse(texts).unwrap()
}

#[test]
fn lists_allow_hosts_with_their_ports() {
    let list = list(&[
        "prefill.example:8000, Other.Example",
        "10.0.0.0/8:8000,192.168.1.7",
        "fd00:1::/32, [fd00:2::]/32:8000, [2001:db8::7]:1, ::ffff:172.16.0.0/108,",
    ]);
    for (text, allowed) in [
        ("prefill.example:8000", true),
        ("PREFILL.EXAMPLE:8000", true),
        ("prefill.example:8001", false),
        ("prefill.example.evil:8000", false),
        ("x.prefill.example:8000", false),
        ("other.example:1", true),
        ("10.255.0.1:8000", true),
        ("[::ffff:10.255.0.1]:8000", true),
        ("10.255.0.1:8001", false),
        ("11.0.0.1:8000", false),
        ("192.168.1.7:5", true),
        ("192.168.1.8:5", false),
        ("[fd00:1:2::3]:9", true),
        ("[fd00:2::3]:8000", true),
        ("[fd00:2::3]:8001", false),
        ("[fd00:3::3]:8000", false),
        ("[2001:db8::7]:1", true),
        ("[2001:db8::7]:2", false),
        ("172.31.255.255:3", true),
        ("172.32.0.0:3", false),
        // A name that looks like an address of the network is none.
        ("10-0-0-1.example:8000", false),
        ("[::10.0.0.1]:8000", false),
        ("169.254.169.254:80", false),
    ] {
        let target = Target::parse(text).unwrap();
        assert_eq!(list.allows(&target), allowed, "{text}");
        assert_eq!(super::allowed(Some(&list), &target), allowed, "{text}");
    }
    for (host, allowed) in [
        ("prefill.example", true),
        ("OTHER.example", true),
        ("example", false),
        ("10.1.2.3", true),
        ("::ffff:10.1.2.3", true),
        ("[::ffff:10.1.2.3]", true),
        ("fd00:2::1", true),
        ("[fd00:2::1]", true),
        ("fd00:3::1", false),
        ("fd00:2::1%eth0", false),
        ("10.1", false),
        ("10.1.2.3:8000", false),
        ("", false),
        ("prefill.example ", false),
    ] {
        let host_allowed = Host::read(host).is_some_and(|host| list.allows_host(&host));
        assert_eq!(host_allowed, allowed, "{host}");
    }
    assert!(!AllowList::default().allows(&Target::parse("a:1").unwrap()));
    let all = self::list(&["0.0.0.0/0", "::/0"]);
    assert!(all.allows(&Target::parse("1.2.3.4:5").unwrap()));
    assert!(all.allows(&Target::parse("[::1]:5").unwrap()));
    assert!(!all.allows(&Target::parse("a:5").unwrap()));
}

#[test]
fn bad_lists_are_refused() {
    for text in [
        "http://a",
        "a:0",
        "a:",
        "a b",
        "*",
        "*.example",
        "a/8",
        "a.example/24:80",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.0/8/8",
        "10.0.0.0/0008",
        "10.0.0/8",
        "10.0.0.0/8:0",
        "10.0.0.0:80/8",
        "::1",
        "fd00::/129",
        "[fd00::/8",
        "fd00::]/8",
        "[fd00::/8]",
        "127.1",
        "a.",
        "10.0.0.1/8",
        "fd00::1/64",
        "::ffff:10.0.0.1/104",
        "a,b,:80",
        "u@a",
    ] {
        assert!(AllowList::parse([text]).is_err(), "{text:?}");
    }
    let wrong = AllowList::parse(["10.0.0.1/8"]).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        r#""10.0.0.1/8" names one address of a network; write 10.0.0.0/8 for the network, or leave /8 out"#
    );
}

#[test]
fn without_a_list_link_local_and_metadata_addresses_are_forbidden() {
    for (text, allowed) in [
        ("a.example:80", true),
        ("127.0.0.1:80", true),
        ("10.0.0.1:80", true),
        ("[::1]:80", true),
        ("[fd00::1]:80", true),
        ("169.253.255.255:80", true),
        ("169.255.0.0:80", true),
        ("[fec0::1]:80", true),
        ("169.254.0.0:80", false),
        ("169.254.169.254:80", false),
        ("169.254.255.255:1", false),
        ("[::ffff:169.254.169.254]:80", false),
        ("[::ffff:a9fe:a9fe]:80", false),
        ("[0:0:0:0:0:ffff:a9fe:a9fe]:80", false),
        ("[::169.254.169.254]:80", false),
        ("[64:ff9b::169.254.169.254]:80", false),
        ("[64:ff9b::10.0.0.1]:80", true),
        ("[fe80::1]:80", false),
        ("[FEBF:ffff::1]:80", false),
        ("[fd00:ec2::254]:80", false),
        ("[fd00:0ec2:0:0:0:0:0:0254]:80", false),
        ("[fd20:ce::254]:80", false),
        ("[fd00:ec2::23]:80", false),
        ("[fd00:ec2:ffff::1]:80", false),
        ("[fd00:c1::a9fe:a9fe]:80", false),
        ("[fd00:c1:1::1]:80", false),
        ("[fd00:c2::a9fe:a9fe]:80", true),
        ("[fd00:42::42]:80", false),
        ("[2002:a9fe:a9fe::1]:80", false),
        ("[2002:a00:1::1]:80", true),
        ("[64:ff9b:1::a9fe:a9fe]:80", false),
        ("[64:ff9b:1:a9fe:a9:fe00::]:80", false),
        ("[64:ff9b:1:ffa9:fe:a9fe::]:80", false),
        ("[64:ff9b:1:ffff:a9:fea9:fe00::]:80", false),
        ("[64:ff9b:1::a00:1]:80", true),
        ("[::ffff:0:a9fe:a9fe]:80", false),
        ("[::ffff:0:a00:1]:80", true),
        ("[2001:0:a::5601:5601]:80", false),
        ("[2001:db8::5efe:a9fe:a9fe]:80", false),
        ("[2001:db8::200:5efe:a9fe:a9fe]:80", false),
        ("[2001:db8::1]:80", true),
        ("100.100.100.200:80", false),
        ("[::ffff:100.100.100.200]:80", false),
        ("168.63.129.16:80", false),
    ] {
        let target = Target::parse(text).unwrap();
        assert_eq!(super::allowed(None, &target), allowed, "{text}");
    }
    // Addresses that a name stands for come as they are.
    assert!(!may_dial("::ffff:169.254.169.254".parse().unwrap()));
}

#[test]
fn a_header_names_one_prefill_server() {
    let first = |lines: &[&str]| {
        let lines = lines.iter().map(|line| line.as_bytes());
        named(lines, |_| 0).map(|target| target.map(|target| target.to_string()))
    };
    let is = |text: &str| Ok(Some(text.to_string()));
    assert_eq!(first(&[]), Ok(None));
    assert_eq!(first(&[""]), Ok(None));
    assert_eq!(first(&[" \t "]), Ok(None));
    assert_eq!(first(&["a:1"]), is("a:1"));
    assert_eq!(first(&["http://a:1"]), is("a:1"));
    assert_eq!(first(&[" a:1 , b:2"]), is("a:1"));
    assert_eq!(first(&["a:1,not a target"]), is("a:1"));
    // A blank first item names none.
    assert_eq!(first(&[", a:1"]), Ok(None));
    assert_eq!(first(&["", "a:1"]), Ok(None));
    // Of several lines each is one server, and none is split.
    assert_eq!(first(&["a:1", "b:2,c:3"]), is("a:1"));
    assert_eq!(first(&["a:1,b:2", "c:3"]), Err(TargetError::Host));
    for text in
        ["https://a:1", "HTTP://a:1", "http://http://a:1", "http://a", "http:// a:1", "http://a:1/", "a:1/", "a"]
    {
        assert!(first(&[text]).is_err(), "{text}");
    }
    let drawn = |lines: &[&str], number: usize| {
        let count = std::cell::Cell::new(0);
        let lines = lines.iter().map(|line| line.as_bytes());
        let target = named(lines, |among| {
            count.set(among);
            number
        });
        (count.get(), target.map(|target| target.map(|target| target.port)))
    };
    assert_eq!(drawn(&["a:1,b:2 ,c:3"], 2), (3, Ok(Some(3))));
    assert_eq!(drawn(&["a:1", "b:2"], 1), (2, Ok(Some(2))));
    assert_eq!(drawn(&["a:1,,c:3"], 1), (3, Ok(None)));
    assert_eq!(drawn(&["a:1"], 7), (1, Ok(None)));
}

proptest! {
    #[test]
    fn targets_are_read_as_by_the_slow_one(text in "[a-zA-Z0-9_.:\\[\\]%-]{1,20}:[0-9]{1,5}") {
        oracle::check(&text, &[&text]);
    }

    #[test]
    fn networks_hold_the_addresses_that_begin_with_their_bits(network in any::<u32>(), bits in 0..=32u32, other in any::<u32>(), near in any::<bool>()) {
        let first = u64::from(network) >> (32 - bits) << (32 - bits);
        let other = if near { (first as u32) ^ (other.checked_shr(bits.saturating_sub(1)).unwrap_or(0)) } else { other };
        let text = format!("{}/{bits}:8000", std::net::Ipv4Addr::from_bits(first as u32));
        let mapped = std::net::Ipv4Addr::from_bits(other).to_ipv6_mapped();
        let other = std::net::Ipv4Addr::from_bits(other);
        prop_assert!(AllowList::parse([&text]).is_ok());
        oracle::check(&text, &[&format!("{other}:8000"), &format!("[{mapped}]:8000"), &format!("[{mapped}]:8001")]);
    }
}
