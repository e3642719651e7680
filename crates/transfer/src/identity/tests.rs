//! Identities: their text, their certificates, their files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, SystemTime},
};

use proptest::prelude::*;
use rustls_pki_types::CertificateDer;

use super::certificate::MAX_CERTIFICATE_BYTES;
use super::name::PeerUriError;
use super::*;
use transload_plan::ids::{ClusterName, NameError, ServiceName};
use transload_wire::{Role, Roles};

fn cluster(name: &str) -> ClusterName {
    name.parse().unwrap()
}

fn service(name: &str) -> ServiceName {
    name.parse().unwrap()
}

fn authority() -> Authority {
    Authority::new(cluster("east")).unwrap()
}

fn certificate(authority: &Authority, uris: &[&str]) -> CertificateDer<'static> {
    authority.sign(uris, Validity::of_agent()).unwrap().0
}

#[test]
fn an_identity_has_one_text() {
    let uri = "transload://east/agent/decode-0?roles=pull,serve";
    let identity: PeerIdentity = uri.parse().unwrap();
    assert_eq!(identity.cluster, cluster("east"));
    assert_eq!(identity.service, service("decode-0"));
    assert!(identity.roles.contains(Role::Pull) && !identity.roles.contains(Role::Push));
    assert_eq!(identity.to_string(), uri);
    let none = "transload://east/agent/a?roles=";
    assert_eq!(none.parse::<PeerIdentity>().unwrap().roles, Roles::NONE);
}

#[test]
fn the_role_map_of_old_certificates_is_ignored() {
    let authority = authority();
    for (named, roles) in [
        ("map", Roles::NONE),
        ("pull,map", Roles::from_iter([Role::Pull])),
        ("pull,push,serve,renew,map", Roles::all()),
    ] {
        let uri = format!("transload://east/agent/a?roles={named}");
        let old = certificate(&authority, &[&uri]);
        let peer = PeerIdentity::from_certificate(&old).unwrap();
        assert_eq!(peer.roles, roles, "{named}");
    }
    for named in ["bitmap", "pull,map,map", "map,pull", "pullmap", "pull,,map"] {
        let uri = format!("transload://east/agent/a?roles={named}");
        uri.parse::<PeerIdentity>().unwrap_err();
    }
    "map".parse::<Role>().unwrap_err();
}

#[test]
fn every_set_of_roles_survives_its_text() {
    for bits in 0..1_u32 << Role::ALL.len() {
        let roles: Roles =
            Role::ALL.into_iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, role)| role).collect();
        assert_eq!(roles.to_string().parse::<Roles>().unwrap(), roles);
        assert_eq!(roles.iter().count() as u32, bits.count_ones());
    }
}

#[test]
fn other_texts_are_no_identities() {
    let error = |uri: &str| uri.parse::<PeerIdentity>().unwrap_err();
    for uri in [
        "",
        "transload://",
        "transload://east",
        "transload://east/agent/a",
        "transload://east/authority",
        "Transload://east/agent/a?roles=",
        "https://east/agent/a?roles=pull",
        "transload://east/AGENT/a?roles=pull",
    ] {
        assert_eq!(error(uri), PeerUriError::Form, "{uri}");
    }
    assert!(matches!(error("transload:///agent/a?roles=pull"), PeerUriError::Name(NameError::Empty)));
    assert!(matches!(
        error("transload://east/agent/a/b?roles=pull"),
        PeerUriError::Name(NameError::Character { found: '/' })
    ));
    assert!(matches!(error("transload://user@east/agent/a?roles=pull"), PeerUriError::Name(_)));
    for roles in ["pull,", ",pull", "pull push", "PULL", "root", "pull&roles=push"] {
        let uri = format!("transload://east/agent/a?roles={roles}");
        assert!(matches!(error(&uri), PeerUriError::Role(_)), "{uri}");
    }
    for roles in ["push,pull", "pull,pull"] {
        let uri = format!("transload://east/agent/a?roles={roles}");
        assert!(matches!(error(&uri), PeerUriError::RoleOrder { .. }), "{uri}");
    }
    let long = format!("transload://east/agent/{}?roles=", "a".repeat(600));
    assert!(matches!(error(&long), PeerUriError::TooLong { .. }));
}

#[test]
fn a_certificate_names_exactly_one_agent() {
    let authority = authority();
    let uri = "transload://east/agent/a?roles=pull";
    let read = |uris: &[&str]| PeerIdentity::from_certificate(&certificate(&authority, uris));
    assert_eq!(read(&[uri]).unwrap().to_string(), uri);
    // Names of other systems may stand beside it.
    assert_eq!(read(&["spiffe://x/y", uri]).unwrap().service, service("a"), "beside another URI");
    assert_eq!(read(&[]).unwrap_err(), PeerIdentityError::NoAgent);
    assert_eq!(read(&["spiffe://x/y"]).unwrap_err(), PeerIdentityError::NoAgent);
    assert_eq!(read(&[uri, uri]).unwrap_err(), PeerIdentityError::Ambiguous { count: 2 });
    assert!(matches!(read(&["transload://east/authority"]).unwrap_err(), PeerIdentityError::Uri(PeerUriError::Form)));
    assert!(matches!(
        PeerIdentity::from_certificate(authority.certificate()).unwrap_err(),
        PeerIdentityError::Uri(PeerUriError::Form)
    ));
}

#[test]
fn oversized_and_broken_certificates_are_refused() {
    let huge = CertificateDer::from(vec![0x30; MAX_CERTIFICATE_BYTES + 1]);
    assert!(matches!(PeerIdentity::from_certificate(&huge).unwrap_err(), PeerIdentityError::TooLarge { .. }));
    let mut trailing = certificate(&authority(), &["transload://east/agent/a?roles="]).to_vec();
    trailing.push(0);
    assert_eq!(PeerIdentity::from_certificate(&trailing.into()).unwrap_err(), PeerIdentityError::Malformed);
}

proptest! {
    #[test]
    fn any_bytes_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = PeerIdentity::from_certificate(&bytes.into());
    }

    #[test]
    fn any_text_can_be_looked_at(text in "(transload://)?[a-z/?=,]{0,40}") {
        let _ = text.parse::<PeerIdentity>();
    }
}

#[test]
fn damaged_certificates_can_be_looked_at() {
    let whole = certificate(&authority(), &["transload://east/agent/a?roles=pull"]);
    for at in 0..whole.len() {
        for bit in [0x01, 0x80] {
            let mut bytes = whole.to_vec();
            bytes[at] ^= bit;
            let _ = PeerIdentity::from_certificate(&bytes.into());
        }
        let _ = PeerIdentity::from_certificate(&whole[..at].into());
    }
}

#[test]
fn parts_that_do_not_fit_make_no_identity() {
    let authority = authority();
    let a = authority.issue(&service("a"), Roles::NONE).unwrap();
    let b = authority.issue(&service("b"), Roles::NONE).unwrap();
    let make = |chain: &[CertificateDer<'static>], key: &Identity, root: &Authority| {
        Identity::new(
            chain.to_vec(),
            key.key().clone_key(),
            vec![root.certificate().clone()],
            TicketSecret::from([0; 32]),
        )
    };
    assert!(make(a.chain(), &a, &authority).is_ok());
    assert!(matches!(make(&[], &a, &authority).unwrap_err(), IdentityError::NoCertificate));
    assert!(matches!(make(a.chain(), &b, &authority).unwrap_err(), IdentityError::Tls(_)));
    // An authority of the same name is another authority.
    assert!(matches!(make(a.chain(), &a, &self::authority()).unwrap_err(), IdentityError::Tls(_)));
    let west = Authority::new(cluster("west")).unwrap();
    assert!(matches!(
        make(a.chain(), &a, &west).unwrap_err(),
        IdentityError::Certificate(PeerIdentityError::WrongCluster { .. })
    ));
    // An agent's certificate is no authority's.
    assert!(matches!(
        Identity::new(a.chain().to_vec(), a.key().clone_key(), vec![b.chain()[0].clone()], TicketSecret::from([0; 32]))
            .unwrap_err(),
        IdentityError::Authority(_)
    ));
}

#[test]
fn a_certificate_that_is_not_valid_now_makes_no_identity() {
    let authority = authority();
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    for (from, until) in [(now - 2 * hour, now - hour), (now + hour, now + 2 * hour)] {
        let error = authority.issue_for(&service("a"), Roles::all(), Validity { from, until }).unwrap_err();
        assert!(matches!(error, AuthorityError::Identity(IdentityError::Tls(tls::TlsError::Rustls(_)))), "{error:?}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let identity = authority().issue(&service("a"), Roles::NONE).unwrap();
    assert_eq!(format!("{:?}", identity.ticket_secret()), "TicketSecret(..)");
    let shown = format!("{identity:?}");
    assert!(shown.starts_with("Identity(PeerIdentity") && shown.len() < 200, "{shown}");
}

#[test]
fn files_hold_what_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let made = authority();
    made.save(dir.path()).unwrap();
    let a = made.issue(&service("a"), Roles::all()).unwrap();
    a.save(dir.path()).unwrap();

    let loaded = Identity::load(dir.path()).unwrap();
    assert_eq!(loaded.peer(), a.peer());
    assert_eq!(loaded.chain(), a.chain());
    assert_eq!(loaded.ticket_secret().as_bytes(), a.ticket_secret().as_bytes());
    // A loaded authority goes on issuing for the same cluster.
    let again = Authority::load(dir.path()).unwrap();
    assert_eq!(again.cluster(), made.cluster());
    again.issue(&service("b"), Roles::NONE).unwrap().save(dir.path()).unwrap();
    assert_eq!(names_in(dir.path()).unwrap(), ["a", "b"]);
    match Identity::load(dir.path()).unwrap_err() {
        IdentityFileError::WhichAgent { names, .. } => assert_eq!(names, ["a", "b"]),
        other => panic!("{other:?}"),
    }
    let b = Identity::load_agent(dir.path(), &service("b")).unwrap();
    assert_eq!(b.peer().service, service("b"));

    for (name, mode) in
        [("ca.pem", 0o644), ("ca.key", 0o600), ("a.pem", 0o644), ("a.key", 0o600), ("ticket.key", 0o600)]
    {
        let found = fs::metadata(dir.path().join(name)).unwrap().permissions();
        assert_eq!(found.mode() & 0o777 & !mode, 0, "{name} is too open");
    }
    assert_eq!(fs::read(dir.path().join("ticket.key")).unwrap().len(), 32);
}

#[test]
fn keys_that_others_can_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let made = authority();
    made.save(dir.path()).unwrap();
    for mode in [0o640, 0o604, 0o644] {
        let key = dir.path().join("ca.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(open_keys(dir.path()).unwrap(), [(key, mode)]);
    }
}

#[test]
fn certificates_say_until_when_they_are_valid() {
    let made = authority();
    let year = Duration::from_secs(365 * 24 * 3600);
    let until = made.issue(&service("a"), Roles::NONE).unwrap().valid_until();
    let left = until.duration_since(SystemTime::now()).unwrap();
    assert!(year - left < Duration::from_secs(60), "{left:?}");
    assert!(made.valid_until() > until);
}

#[test]
fn nothing_that_exists_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let first = authority();
    first.save(dir.path()).unwrap();
    assert!(matches!(authority().save(dir.path()).unwrap_err(), IdentityFileError::Exists { .. }));
    let a = first.issue(&service("a"), Roles::NONE).unwrap();
    a.save(dir.path()).unwrap();
    assert!(matches!(a.save(dir.path()).unwrap_err(), IdentityFileError::Exists { .. }));
    // Nor does an agent of another authority move in beside it.
    let other = authority().issue(&service("b"), Roles::NONE).unwrap();
    assert!(matches!(other.save(dir.path()).unwrap_err(), IdentityFileError::Exists { .. }));
    for reserved in ["ca", "ticket"] {
        let identity = first.issue(&service(reserved), Roles::NONE).unwrap();
        assert!(matches!(identity.save(dir.path()).unwrap_err(), IdentityFileError::ReservedName(_)));
    }
}

#[test]
fn bad_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    match Identity::load(dir.path()).unwrap_err() {
        IdentityFileError::WhichAgent { names, .. } => assert!(names.is_empty()),
        other => panic!("{other:?}"),
    }
    let made = authority();
    let a = made.issue(&service("a"), Roles::NONE).unwrap();
    a.save(dir.path()).unwrap();
    let check = |file: &str, contents: &[u8], expected: &str| {
        let path = dir.path().join(file);
        let kept = fs::read(&path).unwrap();
        fs::write(&path, contents).unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(expected), "{file}: {error}");
        fs::write(&path, kept).unwrap();
    };
    check("ticket.key", &[0; 31], "exactly 32 bytes");
    check("a.key", b"no key", "private key");
    check("ca.pem", b"no certificate", "a certificate");
    check("a.pem", &vec![b'x'; 1 << 20], "larger than");
    assert!(Identity::load(dir.path()).is_ok());
    fs::remove_file(dir.path().join("a.key")).unwrap();
    assert!(matches!(Identity::load(dir.path()).unwrap_err(), IdentityFileError::Io { .. }));
}
