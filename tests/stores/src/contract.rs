//! The contract that every backend of ours keeps.

use std::sync::Arc;

use transload_store::conformance::{Options, check};
use transload_store::{Backend, ManifestName};

/// Tells whether a server compares a revision and removes the value in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compares {
    InOneStep,
    /// It compares in one step and writes in another, like the S3 servers of the tests.
    InTwo,
}

/// Checks the contract of `kv_store_v1` and what our backends do beyond it. `open` opens the same store at each call.
pub fn contract(what: &str, compares: Compares, open: &(dyn Fn() -> Arc<dyn Backend> + Sync)) {
    let report = check(&|| Ok(open()), &Options::quick());
    assert!(report.is_clean(), "{what}: {report}");
    newer_manifests_stay(&*open());
    if compares == Compares::InOneStep {
        newer_manifests_stay_meanwhile(&*open());
    }
}

/// A manifest that was put again is never removed as the one that was read before.
fn newer_manifests_stay(store: &dyn Backend) {
    let name = ManifestName::new("revised").unwrap();
    let get = || store.get_manifest(&name).unwrap();
    let revision = || store.manifest_revision(&name).unwrap();
    assert!(revision().is_none());

    store.put_manifest(&name, b"root").unwrap();
    let (data, before) = revision().unwrap();
    assert_eq!(data, &b"root"[..]);
    // Somebody has repaired what it names, and puts the same bytes: to a reader that is another manifest.
    store.put_manifest(&name, b"root").unwrap();
    assert!(!store.delete_revision(&name, &before).unwrap());
    assert_eq!(get().as_deref(), Some(&b"root"[..]));

    let (_, now) = revision().unwrap();
    assert!(store.delete_revision(&name, &now).unwrap());
    assert!(get().is_none() && revision().is_none());
    assert!(!store.delete_revision(&name, &now).unwrap(), "gone already");

    // Removed and put by somebody else.
    store.put_manifest(&name, b"other").unwrap();
    assert!(!store.delete_revision(&name, &now).unwrap());
    assert_eq!(get().as_deref(), Some(&b"other"[..]));
    store.delete_manifest(&name).unwrap();
}

/// Checks the same while another client puts, for backends that compare and remove in one step.
fn newer_manifests_stay_meanwhile(store: &dyn Backend) {
    let name = ManifestName::new("revised").unwrap();
    // Many put while one removes what he has read: the last put that nobody has read yet is there at the end.
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            for n in 0..40_u8 {
                store.put_manifest(&name, &[n]).unwrap();
            }
            store.put_manifest(&name, b"last").unwrap();
        });
        while !putting.is_finished() {
            match store.manifest_revision(&name) {
                Ok(Some((data, read))) if &*data != b"last" => {
                    store.delete_revision(&name, &read).unwrap();
                }
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let left = store.get_manifest(&name).unwrap();
    assert_eq!(left.as_deref(), Some(&b"last"[..]));
    store.delete_manifest(&name).unwrap();
}
