//! `transload store` on our own stores.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::{Ran, transload, typed, typed_with};
use crate::stores::{HASHES, fill, uri};
use serde_json::{Value, json};
use transload::archive::objects::{Objects, Source};
use transload::store::backend::MemoryStore;
use transload::store::{ChunkHash, ManifestName, open};

struct Filled(tempfile::TempDir);

impl Filled {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fill(&dir.path().join("kv"));
        Self(dir)
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("kv")
    }

    fn run(&self, action: &str, more: &str) -> Ran {
        typed(self.0.path(), &format!("store {action} {} {more}", uri(&self.folder())))
    }

    #[track_caller]
    fn json(&self, action: &str, more: &str) -> Value {
        let ran = self.run(action, &format!("{more} --format json"));
        ran.is_good();
        let json = ran.json();
        assert_eq!(json["schema"], format!("transload.store.{action}/1"));
        json
    }
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    list.map(|entry| entry[field].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn ls_lists_manifests_and_room() {
    let store = Filled::new();
    let json = store.json("ls", "");
    assert_eq!(names(&json["manifests"], "name"), ["chat-7/slot0", "chat-7/slot1"]);
    assert_eq!(json["usage"]["manifests"], 2);
    assert_eq!(json["usage"]["chunks"], 3);
    assert_eq!(json["usage"]["chunk_bytes"], 65536 + 40000 + 30000);
    assert_eq!(json.get("chunks"), None);
    let json = store.json("ls", "--chunks --sort size");
    let by_size = [HASHES[0], HASHES[1], HASHES[2]];
    assert_eq!(names(&json["chunks"], "hash"), by_size);
    assert_eq!(names(&json["manifests"], "name"), ["chat-7/slot0", "chat-7/slot1"]);

    let table = store.run("ls", "").stdout;
    assert!(table.contains("chat-7/slot1"), "{table}");
    assert!(table.contains("2 manifests of"), "{table}");
}

/// A folder below the root is a prefix of names. Reading a store never creates one.
#[test]
fn a_store_is_found_and_not_made() {
    let store = Filled::new();
    let below = format!("{}/chat-7", uri(&store.folder()));
    let ran = typed(&std::env::temp_dir(), &format!("store ls {below} --format json"));
    assert_eq!(names(&ran.json()["manifests"], "name"), ["slot0", "slot1"]);

    let nowhere = store.0.path().join("typo");
    for (action, names) in [("ls", ""), ("verify", ""), ("gc", ""), ("rm", "name")] {
        let line = format!("store {action} {} {names}", uri(&nowhere));
        typed(store.0.path(), &line).refused("there is no store at");
    }
    assert!(!nowhere.exists());
}

#[test]
fn show_tells_what_a_manifest_needs() {
    let store = Filled::new();
    let json = store.json("show", "chat-7/slot0");
    let mut needed = names(&json["chunks"], "hash");
    needed.sort();
    assert_eq!(needed, [HASHES[1], HASHES[0]]);
    assert_eq!(json["chunk_bytes"], 65536 + 40000);
    let text = json["contents"]["text"].as_str().expect("a text");
    assert!(text.contains("llama-3.1-8b"), "{text}");

    let json = store.json("show", "chat-7/slot1");
    assert_eq!(names(&json["chunks"], "hash"), [HASHES[0]]);
    let hex = format!("0001736c6f74fffe{}", HASHES[0]);
    assert_eq!(json["contents"]["hex"], hex);
    let table = store.run("show", "chat-7/slot1").stdout;
    assert!(table.contains("00 01 73 6c 6f 74 ff fe  b1 94"), "{table}");
    assert!(table.contains("it refers to 1 chunk of 64 KiB"), "{table}");

    store.run("show", "none").fails("has no manifest none");
}

/// Keys may contain any bytes. Those that would harm a terminal are escaped.
#[test]
fn objects_are_told_by_their_keys() {
    let store = Filled::new();
    let long = [b'k'; 300];
    let backend = open(&uri(&store.folder())).expect("a store");
    let objects = Objects::new(backend, b"model@r1").expect("objects");
    let source = |key, parts| Source { key, meta: b"bf16", parts };
    let put = objects.put(&[source(b"a\x1b[2J\xff", &[(&[1; 3000]).into(), (&[2; 2000]).into()]), source(&long, &[])]);
    put.expect("put");

    let json = store.json("ls", "");
    let listed = json["manifests"].as_array().expect("a list").iter();
    let mut listed: Vec<&Value> = listed.filter(|entry| entry.get("object").is_some()).collect();
    listed.sort_by_key(|entry| entry["object"]["bytes"].as_u64());
    assert_eq!(listed.len(), 2);
    let long = String::from_utf8(long.to_vec()).expect("letters");
    let object = |key: &str, bytes: u64| json!({"namespace": "model@r1", "key": key, "bytes": bytes, "meta_bytes": 4});
    let escaped = "a\\x1b[2J\\xff";
    assert_eq!(listed[0]["object"], object(&long, 0));
    assert_eq!(listed[1]["object"], object(escaped, 5000));
    let table = store.run("ls", "").stdout;
    let line = format!("{escaped} of model@r1: 5,000 bytes, 4 bytes of meta");
    assert!(table.contains(&line), "{table}");
    let cut = format!("{}…+{} of", &long[..48], long.len() - 48);
    assert!(table.contains(&cut), "{table}");
    assert!(table.contains(" 2 objects of 4.88 KiB in namespace model@r1"), "{table}");

    let name = listed[1]["name"].as_str().expect("a name");
    let json = store.json("show", name);
    assert_eq!(json["contents"]["object"], object(escaped, 5000));
    assert_eq!(json["chunk_bytes"], 5000);
    let text = store.run("show", name).stdout;
    assert!(text.contains(" an object of 5,000 bytes with 4 bytes of meta\n namespace: model@r1\n"), "{text}");
    assert!(text.contains(&format!(" key:       {escaped}\n")), "{text}");
    assert_eq!(store.json("verify", "")["ok"], true);
    store.run("gc", "--grace 0");
    assert_eq!(store.json("show", name)["chunk_bytes"], 5000);
}

#[test]
fn verify_finds_objects_that_cannot_be_read() {
    let store = Filled::new();
    let backend = open(&uri(&store.folder())).expect("a store");
    // A manifest of a store that has the object's pieces is put into one that lacks them.
    let memory = Arc::new(MemoryStore::new());
    let objects = Objects::new(memory, b"ns").expect("objects");
    let bytes = [b"bytes".into()];
    let source = |key, parts| Source { key, meta: b"", parts };
    objects.put(&[source(b"one", &bytes)]).expect("put");
    let folder = store.0.path().join("other");
    let other = Objects::new(open(&uri(&folder)).expect("a store"), b"ns").expect("objects");
    other.put(&[source(b"one", &bytes)]).expect("put");
    let listed = transload(&["store", "ls", &uri(&folder), "--format", "json"]).json();
    let name = &names(&listed["manifests"], "name")[0];
    let name = ManifestName::new(name.as_str()).expect("a name");
    let manifest = objects.store().get_manifest(&name).expect("memory");
    let manifest = manifest.expect("it was put");
    backend.put_manifest(&name, &manifest).expect("put");
    let cut = format!("{}0", &name.as_str()[..name.as_str().len() - 1]);
    let cut = ManifestName::new(cut).expect("a name");
    backend.put_manifest(&cut, &manifest[1..]).expect("put");

    let ran = store.run("verify", "--format json");
    assert_eq!(ran.code, Some(1));
    let faults = ran.json()["faults"].clone();
    let mut found = names(&faults, "how");
    found.sort();
    assert_eq!(found.len(), 2, "{faults}");
    assert_eq!(found[1], "one of its pieces is missing");
    assert!(found[0].starts_with("it does not begin as"), "{faults}");
    // Listing shows what can be read.
    let listed = store.json("ls", "");
    let listed = listed["manifests"].as_array().expect("a list").iter();
    let told = listed.filter(|entry| entry.get("object").is_some());
    assert_eq!(told.count(), 1);
}

#[test]
fn raw_is_the_bytes_and_nothing_else() {
    let store = Filled::new();
    let output = crate::common::command()
        .args(["store", "show", &uri(&store.folder()), "chat-7/slot1", "--raw"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(&output.stdout[..8], b"\0\x01slot\xff\xfe");
    assert_eq!(output.stdout.len(), 16);
}

#[test]
fn verify_finds_a_flipped_bit() {
    let store = Filled::new();
    let json = store.json("verify", "");
    assert_eq!((&json["ok"], &json["faults"]), (&json!(true), &json!([])));
    assert_eq!(json["complete"], true);
    flip_a_bit(&store.folder());
    let ran = store.run("verify", "--format json");
    assert_eq!(ran.code, Some(1));
    let json = ran.json();
    assert_eq!(json["ok"], false);
    assert_eq!(json["faults"].as_array().map(Vec::len), Some(1), "{json}");
    // The first chunk is the longest, and both manifests name it.
    assert_eq!(json["faults"][0]["what"], format!("chunk {}", HASHES[0]));
    assert_eq!(json["faults"][0]["needed_by"], json!(["chat-7/slot0", "chat-7/slot1"]));
    assert!(ran.told().contains("fault"), "{}", ran.stderr);
    let ran = store.run("verify", "");
    assert_eq!(ran.code, Some(1));
    let table = ran.stdout;
    assert!(table.contains("chat-7/slot0, chat-7/slot1"), "{table}");

    // With another prefix those manifests are not listed, though they need the chunk.
    let other = uri(&store.folder().join("other"));
    let ran = typed(&std::env::temp_dir(), &format!("store verify {other} --format json"));
    let fault = &ran.json()["faults"][0];
    assert_eq!(fault["what"], format!("chunk {}", HASHES[0]));
    assert!(fault["needed_by"].is_null(), "{fault}");

    // The needs of an unreadable manifest are unknown. Those of the others are still reported.
    let path = manifest_files(&store.folder()).remove(0);
    fs::write(&path, "nothing").expect("written");
    let json = store.run("verify", "--format json").json();
    let faults = json["faults"].as_array().expect("a list");
    assert_eq!(faults.len(), 2, "{json}");
    let needed: Vec<_> = faults.iter().map(|fault| &fault["needed_by"]).collect();
    assert_eq!(needed.iter().filter(|by| by.is_null()).count(), 1, "{json}");
    let names = needed.iter().find_map(|by| by.as_array());
    assert_eq!(names.map(Vec::len), Some(1), "{json}");
}

/// Reading a store does not change the order of eviction.
#[test]
fn looking_is_no_use() {
    let store = Filled::new();
    // With a damaged chunk, verifying also reads manifests, to find those that need it.
    flip_a_bit(&store.folder());
    let long_ago = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let paths = manifest_files(&store.folder());
    for path in &paths {
        let file = fs::File::options().append(true).open(path);
        file.and_then(|file| file.set_modified(long_ago)).expect("a time");
    }
    let used = || {
        let times = paths.iter().map(|path| fs::metadata(path)?.modified());
        times.collect::<Result<Vec<_>, _>>().expect("times")
    };
    for (action, more) in [("ls", ""), ("verify", ""), ("rm", "chat-7/slot0 chat-7/slot1 --dry-run")] {
        store.run(action, more);
        assert!(used().iter().all(|used| *used == long_ago), "{action}");
    }
    store.run("show", "chat-7/slot0");
    assert!(used().iter().any(|used| *used > long_ago));
}

/// A folder in place of a manifest is a fault, and counts as a manifest.
#[test]
fn verify_tells_of_what_is_no_manifest() {
    let store = Filled::new();
    flip_a_bit(&store.folder());
    let path = manifest_files(&store.folder()).remove(0);
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a folder");
    let ran = store.run("verify", "--format json");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let json = ran.json();
    let faults = json["faults"].as_array().expect("a list");
    assert_eq!(faults.len(), 2, "{json}");
    assert_eq!(json["usage"]["manifests"], 2, "{json}");
    let table = store.run("verify", "").stdout;
    assert!(table.contains(HASHES[0]), "{table}");
    assert!(table.contains("it is not a regular file"), "{table}");
}

/// Damages the chunk in the middle of the largest file.
fn flip_a_bit(folder: &Path) {
    let (_, largest) = files(folder).into_iter().max().expect("a file");
    let mut bytes = fs::read(&largest).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&largest, bytes).expect("written");
}

/// If an error ends the check early, the faults found so far are reported, and that the check is incomplete.
#[test]
fn verify_tells_what_it_found_before_an_error() {
    let store = Filled::new();
    flip_a_bit(&store.folder());
    let folders = fs::read_dir(store.folder().join("manifests")).expect("a folder");
    let mut folders = folders.map(|folder| folder.expect("an entry").path());
    // Removing a folder succeeds only if it is empty. The others hold manifests.
    let empty = folders.find(|folder| fs::remove_dir(folder).is_ok());
    fs::write(empty.expect("one without manifests"), "").expect("written");
    let ran = store.run("verify", "--format json");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let json = ran.json();
    assert_eq!((&json["ok"], &json["complete"]), (&json!(false), &json!(false)));
    assert_eq!(json["faults"].as_array().map(Vec::len), Some(1), "{json}");
    let told = ran.told();
    assert!(told.contains("has 1 fault, and the rest could not be verified: cannot list manifests"), "{told}");
    let table = store.run("verify", "").stdout;
    assert!(table.contains(HASHES[0]) && table.contains("there may be more"), "{table}");
}

/// Returns all files below a folder, with their lengths.
fn files(folder: &Path) -> Vec<(u64, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let meta = entry.metadata().expect("metadata");
            match meta.is_dir() {
                true => folders.push(entry.path()),
                false => found.push((meta.len(), entry.path())),
            }
        }
    }
    found
}

#[test]
fn rm_removes_manifests_and_tells_which_are_not_there() {
    let store = Filled::new();
    let listed = |store: &Filled| names(&store.json("ls", "")["manifests"], "name");
    let json = store.json("rm", "chat-7/slot0 chat-7/slot0 --dry-run");
    assert_eq!(names(&json["removed"], "name"), ["chat-7/slot0"]);
    assert_eq!(listed(&store).len(), 2, "nothing went");

    // Existing manifests before and after a missing one are removed, and nothing else.
    let ran = store.run("rm", "none chat-7/slot0 chat --format json");
    ran.fails("has no manifest none, nor chat");
    let json = ran.json();
    assert_eq!(json["schema"], "transload.store.rm/1");
    assert_eq!(json["missing"], json!(["none", "chat"]));
    assert_eq!(json["removed"].as_array().map(Vec::len), Some(1));
    assert!(json["removed"][0]["bytes"].as_u64() > Some(90), "{json}");
    assert_eq!(listed(&store), ["chat-7/slot1"]);
    assert_eq!(store.json("ls", "")["usage"]["chunks"], 3, "they stay");

    let table = store.run("rm", "chat-7/slot1").stdout;
    assert!(table.contains("removed 1 manifest"), "{table}");
    assert!(table.contains("later gc"), "{table}");
    assert!(listed(&store).is_empty());
    assert_eq!(store.run("rm", "").code, Some(2), "without a name");
}

/// `rm` removes manifests that `verify` has found to be unreadable.
#[test]
fn rm_removes_what_cannot_be_read() {
    let store = Filled::new();
    let path = manifest_files(&store.folder()).remove(0);
    let bytes = fs::read(&path).expect("a file");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    let ran = store.run("rm", "chat-7/slot0 chat-7/slot1 --format json");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json = ran.json();
    let removed = json["removed"].as_array().expect("a list").iter();
    assert_eq!(removed.filter(|one| one["bytes"].is_null()).count(), 1);
    assert!(manifest_files(&store.folder()).is_empty());
    assert_eq!(store.json("verify", "")["ok"], true);
}

#[test]
fn ls_lists_the_rest_of_what_is_damaged() {
    let store = Filled::new();
    let path = manifest_files(&store.folder()).remove(0);
    let bytes = fs::read(&path).expect("a file");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    let ran = store.run("ls", "");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("not listed: 1 manifest"), "{}", ran.stdout);
    assert_eq!(store.json("ls", "")["manifests"].as_array().map(Vec::len), Some(1));
    let verified = store.run("verify", "--format json");
    assert_eq!(verified.code, Some(1));
    assert_eq!(verified.json()["faults"].as_array().map(Vec::len), Some(1), "{}", verified.stdout);
}

fn manifest_files(folder: &Path) -> Vec<PathBuf> {
    files(&folder.join("manifests")).into_iter().map(|(_, path)| path).collect()
}

#[test]
fn gc_removes_what_nothing_needs_when_its_time_is_over() {
    let store = Filled::new();
    let json = store.json("gc", "");
    assert_eq!(json["grace_seconds"], 3600.0);
    assert_eq!((&json["removed"]["chunks"], &json["in_grace"]), (&json!(0), &json!(1)));
    let json = store.json("gc", "--grace 0 --dry-run");
    assert_eq!(json["removed"]["chunks"], 1);
    assert_eq!(json["usage"]["chunks"], 3, "nothing went");
    let json = store.json("gc", "--grace 0");
    assert_eq!(json["removed"]["chunks"], 1);
    assert_eq!((&json["usage"]["chunks"], &json["usage"]["manifests"]), (&json!(2), &json!(2)));
    assert_eq!(json["over_cap_bytes"], Value::Null, "there is none");
    let json = store.json("gc", "--grace 0 --cap 1GiB");
    assert_eq!((&json["removed"]["manifests"], &json["over_cap_bytes"]), (&json!(0), &json!(0)));
    for more in ["--dry-run", ""] {
        let ran = store.run("gc", &format!("--grace 0 --cap 1B --format json {more}"));
        ran.fails("over the cap");
        let json = ran.json();
        assert_eq!(json["removed"]["manifests"], 2, "{more:?}");
        let over = json["over_cap_bytes"].as_u64().expect("a number");
        assert!((1..10_000).contains(&over), "{json}");
    }
    assert_eq!(store.json("ls", "")["usage"]["manifests"], 0);
    let table = store.run("gc", "--cap 1B").stdout;
    assert!(table.contains("over the cap of 1 B: only the store's own"), "{table}");
    store.run("gc", "--cap 5").refused("write 5GiB or 5MiB, or 5B for bytes");
    for (grace, says) in [("fortnight", "for example 90s, 30min or 1h"), ("5", "write 5s, 5min or 5ms")] {
        store.run("gc", &format!("--grace {grace}")).refused(says);
    }
}

#[test]
fn a_cap_below_what_is_in_use_removes_nothing() {
    let store = Filled::new();
    for more in ["--dry-run", ""] {
        let ran = store.run("gc", &format!("--grace 2h --cap 1KiB --format json {more}"));
        ["nothing", "put or read", "grace period of 2 h", "larger cap"].iter().for_each(|says| ran.fails(says));
        let json = ran.json();
        let (usage, removed) = (&json["usage"], &json["removed"]);
        assert_eq!((&removed["manifests"], &removed["bytes"]), (&json!(0), &json!(0)));
        assert_eq!((&usage["manifests"], &usage["chunks"]), (&json!(2), &json!(3)));
        let bytes = |of: &str| usage[of].as_u64().expect("a number");
        assert_eq!(json["in_use_bytes"], bytes("manifest_bytes") + bytes("chunk_bytes"));
    }
    let json = store.json("gc", "--cap 1GiB");
    assert_eq!(json["removed"]["manifests"], 0, "it fits");
}

/// The command's cap is for the last tier. The tiers above have their own.
#[test]
fn each_tier_is_held_to_its_own_cap() {
    let dir = tempfile::tempdir().expect("a folder");
    let [near, far] = ["near", "far"].map(|name| uri(&dir.path().join(name)));
    let tiers = format!("tier://{near},{far}");
    let store = open(&tiers).expect("a store");
    let hash: ChunkHash = HASHES[0].parse().expect("a hash");
    store.put_chunk(&hash, &[7; 40_000]).expect("it is put");
    let name = ManifestName::new("m").expect("a name");
    store.put_manifest(&name, HASHES[0].as_bytes()).expect("it is put");
    drop(store);
    let usage =
        |uri: &str| typed(&std::env::temp_dir(), &format!("store ls {uri} --format json")).json()["usage"].clone();
    // Each tier takes up less than the cap, and both together more.
    for more in ["--dry-run", "--format=json"] {
        let ran = typed(dir.path(), &format!("store gc {tiers} --grace 0 --cap 60kB {more}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_eq!((&usage(&near)["chunks"], &usage(&far)["chunks"]), (&json!(1), &json!(1)));
    let ran = transload(&["store", "gc", &format!("tier://20kB={near},{far}"), "--grace", "0"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!((&usage(&near)["chunks"], &usage(&far)["chunks"]), (&json!(0), &json!(1)));
    let ran = transload(&["store", "gc", &tiers, "--grace", "0", "--cap", "20kB"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(usage(&far)["chunks"], 0);
}

/// Data is verified before it is copied, and damaged data is not copied.
#[test]
fn gc_goes_on_past_what_is_damaged() {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = uri(&dir.path().join("kv"));
    let hash = |i: usize| -> ChunkHash { HASHES[i].parse().expect("a hash") };
    let name = |name: &str| ManifestName::new(name).expect("a name");
    let store = open(&uri).expect("a store");
    store.put_chunk(&hash(0), &[1; 10_000]).expect("put");
    store.put_chunk(&hash(1), &[2; 30_000]).expect("put");
    store.put_manifest(&name("both"), b"").expect("published");
    let one = HASHES[0].as_bytes();
    let store = open(&uri).expect("a store");
    store.put_manifest(&name("one"), one).expect("published");
    store.delete_manifest(&name("both")).expect("deleted");
    let (_, pack) = files(dir.path()).into_iter().max().expect("a file");
    let mut bytes = fs::read(&pack).expect("a file");
    bytes[5000] ^= 1;
    fs::write(&pack, bytes).expect("written");
    let args = ["store", "gc", &uri, "--grace", "0"];
    let ran = transload(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json = ran.json();
    assert_eq!((&json["damaged"], &json["removed"]["chunks"]), (&json!(1), &json!(0)));
    let table = transload(&args).stdout;
    assert!(table.contains("kept 1 chunk known to be damaged"), "{table}");
}

#[test]
fn uris_that_are_none_say_what_would_be_right() {
    for (uri, says) in [
        ("/var/kv", "begins with a scheme"),
        ("redis://me:hunter2@host/0", "must not contain a password"),
        ("nonsense://x", "libkv_store_nonsense.so"),
        ("file://relative/kv", "file"),
    ] {
        let ran = transload(&["store", "ls", uri]);
        ran.refused(says);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
    for (variable, value) in [
        ("TRANSLOAD_FILE_CAP", "nonsense"),
        ("TRANSLOAD_FILE_LOCK_TIMEOUT", "0"),
        ("TRANSLOAD_FILE_LOCK_TIMEOUT", "60"),
    ] {
        let ran = typed_with(variable, value, "store ls file:///var/kv");
        ran.refused(&format!("cannot be opened: {variable}={value}"));
    }
}

#[test]
fn a_lock_is_waited_for_as_long_as_the_environment_says() {
    let store = Filled::new();
    let lock = fs::File::open(store.folder().join("store.lock")).expect("a file");
    lock.lock().expect("locked");
    let ran = typed_with("TRANSLOAD_FILE_LOCK_TIMEOUT", "1s", &format!("store gc {}", uri(&store.folder())));
    ran.fails("store.lock was still held after 1s");
    ran.fails("`lslocks` shows the process");
}

/// The bench's own server has no password, and its stores have no cap, whatever the environment says.
#[test]
fn bench_store_measures_what_it_has_started() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = crate::common::command()
        .env("TRANSLOAD_REDIS_PASSWORD", "of another server")
        .env("TRANSLOAD_FILE_CAP", "1MiB")
        .args(["bench", "store", "--rounds", "1", "--format", "json"])
        .arg("--dir")
        .arg(dir.path())
        .output();
    let ran = Ran::new(output.expect("it starts"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json = ran.json();
    let notes = json["notes"].as_array().expect("notes").iter();
    for note in notes.filter_map(Value::as_str) {
        if note.contains("NOT RUN") {
            println!("{note}");
            return;
        }
    }
    let figures = names(&json["results"], "name");
    assert!(figures.iter().any(|name| name.starts_with("redis, get")));
}
