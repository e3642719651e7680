//! Passwords and certificates.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use transload_store::Backend;
use transload_store::backend::redis::{RedisOptions, RedisStore};
use transload_test_stores::redis::quick;
use transload_test_stores::{bytes, hash, name, server};

#[test]
fn the_password_comes_from_the_options() {
    let server = server!("--requirepass", "hunter2");
    let uri = |uri: &str| uri.parse().unwrap();
    let plain = server.uri("");
    for options in [quick(), RedisOptions { password: Some("wrong".into()), ..quick() }] {
        let error = RedisStore::open(&uri(&plain), options).unwrap_err().to_string();
        assert!(error.contains("TRANSLOAD_REDIS_PASSWORD"), "{error}");
        assert!(!error.contains("hunter2") && !error.contains("wrong "), "{error}");
    }
    let store = RedisStore::open(&uri(&plain), RedisOptions { password: Some("hunter2".into()), ..quick() }).unwrap();
    store.put_manifest(&name("m"), b"1").unwrap();
    let mut client =
        redis::Client::open(format!("redis://:hunter2@127.0.0.1:{}/", server.port)).unwrap().get_connection().unwrap();
    // A user who may do what the store does and nothing else.
    let _: () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("kv")
        .arg("on")
        .arg(">secret")
        .arg("~transload:*")
        .arg("+@read")
        .arg("+@write")
        .arg("+@scripting")
        .arg("+@connection")
        .arg("+time")
        .query(&mut client)
        .unwrap();
    let as_user = format!("redis://kv@127.0.0.1:{}/1", server.port);
    let store = RedisStore::open(&uri(&as_user), RedisOptions { password: Some("secret".into()), ..quick() }).unwrap();
    let data = bytes(1, 1000);
    store.put_chunk(&hash(&data), &data).unwrap();
    store.put_manifest(&name("m"), b"1").unwrap();
    store.delete_manifest(&name("m")).unwrap();
    assert_eq!(store.get_chunk(&hash(&data)).unwrap().unwrap(), data);
    let inventory = store.inventory().unwrap();
    assert_eq!(inventory.usage().unwrap().chunks, 1);
    assert!(RedisStore::open(&uri(&as_user), RedisOptions { password: Some("hunter2".into()), ..quick() }).is_err());
}

#[test]
fn a_user_is_logged_in_without_a_password_too() {
    let server = server!();
    let mut client = server.client();
    let _: () =
        redis::cmd("ACL").arg(&["SETUSER", "kv", "on", "nopass", "~transload:*", "+@all"]).query(&mut client).unwrap();
    let open = |user: &str| {
        let uri = format!("redis://{user}@127.0.0.1:{}/0", server.port);
        RedisStore::open(&uri.parse().unwrap(), quick())
    };
    let store = open("kv").unwrap();
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut client).unwrap();
    assert!(clients.contains("user=kv"), "{clients}");
    store.put_manifest(&name("m"), b"1").unwrap();
    let error = open("nobody").unwrap_err().to_string();
    assert!(error.contains("TRANSLOAD_REDIS_PASSWORD"), "{error}");
}

struct Authority {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    fn new(dir: &Path, name: &str, host: &str) -> Self {
        let file = |what: &str, text: String| {
            let path = dir.join(format!("{name}-{what}.pem"));
            fs::write(&path, text).unwrap();
            path
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        Self {
            ca: file("ca", issuer.pem()),
            certificate: file("certificate", certificate.pem()),
            key: file("key", key.serialize_pem()),
        }
    }
}

#[test]
fn tls_with_the_right_authority_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let right = Authority::new(dir.path(), "right", "127.0.0.1");
    let wrong = Authority::new(dir.path(), "wrong", "127.0.0.1");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let server = server!(
        "--tls-cert-file",
        &path(&right.certificate),
        "--tls-key-file",
        &path(&right.key),
        "--tls-ca-cert-file",
        &path(&right.ca),
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "hunter2"
    );
    let uri = format!("rediss://127.0.0.1:{}/0", server.port).parse().unwrap();
    let options = || RedisOptions { password: Some("hunter2".into()), ..quick() };
    let store = RedisStore::open(&uri, RedisOptions { ca_file: Some(right.ca.clone()), ..options() }).unwrap();
    let chunks: Vec<_> = (0..50).map(|n| bytes(n, 300_000)).collect();
    for data in &chunks {
        store.put_chunk(&hash(data), data).unwrap();
    }
    store.put_manifest(&name("m"), b"1").unwrap();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (got, data) in store.get_chunks(&hashes).unwrap().iter().zip(&chunks) {
        assert_eq!(got.as_ref().unwrap(), data);
    }

    let refused = |uri: &str, ca: Option<&Path>, expected: &str| {
        let mut options = options();
        options.ca_file = ca.map(Path::to_owned);
        let error = RedisStore::open(&uri.parse().unwrap(), options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let uri = uri.to_string();
    refused(&uri, Some(&wrong.ca), "certificate");
    refused(&uri, Some(&right.key), "certificate");
    refused(&uri, Some(&dir.path().join("nothing")), "nothing");
    // The same server by a name that its certificate does not have.
    refused(&uri.replace("127.0.0.1", "localhost"), Some(&right.ca), "certificate");
    // And without TLS it is no Redis server.
    let plain = uri.replace("rediss", "redis");
    assert!(RedisStore::open(&plain.parse().unwrap(), options()).is_err());
}
