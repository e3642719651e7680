//! An independent judge of the engine: fakes on both sides, cases as data, hostile targets and malformed HTTP.
//!
//! A case states the client's request, the requests that prefill and decode servers must get, their answers, and the
//! answer that the client must get. All of these are compared on the wire, by readers of HTTP and JSON that share no
//! code with the engine's.

mod breaker;
mod case;
mod crowd;
mod judge;
mod malformed;
mod members;
mod play;
mod reused;
mod rig;
mod targets;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::timeout;
use transload_test_servers::Script;

use crate::case::{Case, File};
use crate::rig::Rig;

/// The number of ways to split a message that are tried.
const SPLITS: usize = 32;

/// Reads the cases of all files, named after their file. With `$CASE`, only those whose name contains it.
fn read() -> Vec<Case> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/cases");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the cases").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let only = std::env::var("CASE").unwrap_or_default();
    let mut cases = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a file of cases");
        let file: File = toml::from_str(&text).unwrap_or_else(|why| panic!("{path:?}: {why}"));
        let area = path.file_stem().expect("a name").display().to_string();
        for mut case in file.case {
            case.name = format!("{area}: {}", case.name);
            cases.push(case);
        }
    }
    cases.retain(|case| case.name.contains(&only));
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_as_data() {
    let cases = read();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases have one name");
    let runs = stream::iter(&cases).map(|case| async move { (&case.name, run(case).await) });
    let results: Vec<_> = runs.buffer_unordered(4).collect().await;
    let mut report = String::new();
    for (name, wrong) in results {
        if !wrong.is_empty() {
            report += &format!("\n{name}:\n  {}", wrong.join("\n  "));
        }
    }
    assert!(report.is_empty(), "of {} cases these fail:{report}", cases.len());
}

/// Runs a case, and all its variants until one fails.
async fn run(case: &Case) -> Vec<String> {
    let rig = Rig::start(case).await;
    let wrong = once(&rig, case, &Parts::Request(Vec::new())).await;
    if !wrong.is_empty() || !case.splits {
        return wrong;
    }
    for parts in variants(&rig, case) {
        // A server that fails several times is not asked any more, so each variant has its own servers.
        let rig = Rig::start(case).await;
        let wrong = once(&rig, case, &parts).await;
        if !wrong.is_empty() {
            return [vec![format!("in {parts:?}")], wrong].concat();
        }
    }
    Vec::new()
}

#[derive(Debug)]
enum Parts {
    Request(Vec<usize>),
    /// A prefill server's answer, by the index of its leg, split at this position.
    Prefill(usize, usize),
    Decode(usize, usize),
}

/// Splits the request and each answer in two, at every position or at many of them.
fn variants(rig: &Rig, case: &Case) -> Vec<Parts> {
    let positions = |length: usize| (1..length).step_by((length / SPLITS).max(1));
    let (head, body) = play::request(rig, case);
    let request = positions(head.len() + body.len()).map(|at| Parts::Request(vec![at]));
    let mut variants: Vec<Parts> = request.collect();
    for (legs, of) in [(&case.prefill, Parts::Prefill as fn(usize, usize) -> Parts), (&case.decode, Parts::Decode)] {
        for (index, leg) in legs.iter().enumerate() {
            let length = play::script(rig, leg).bytes.len();
            variants.extend(positions(length).map(|at| of(index, at)));
        }
    }
    variants
}

async fn once(rig: &Rig, case: &Case, parts: &Parts) -> Vec<String> {
    let scripts = |legs: &[case::Leg], at: usize, split: Option<(usize, usize)>| -> Vec<Script> {
        let legs = legs.iter().enumerate().filter(|(_, leg)| leg.at == at);
        let script = |(index, leg)| {
            let script = play::script(rig, leg);
            match split {
                Some((of, position)) if of == index => Script { parts: vec![position], ..script },
                _ => script,
            }
        };
        legs.map(script).collect()
    };
    let (prefill, decode, request) = match parts {
        Parts::Request(at) => (None, None, &at[..]),
        Parts::Prefill(index, at) => (Some((*index, *at)), None, &[][..]),
        Parts::Decode(index, at) => (None, Some((*index, *at)), &[][..]),
    };
    for (index, fake) in rig.prefill.iter().enumerate() {
        fake.play(scripts(&case.prefill, index, prefill));
    }
    for (index, fake) in rig.decode.iter().enumerate() {
        fake.play(scripts(&case.decode, index, decode));
    }
    let played = timeout(Duration::from_secs(20), play::client(rig, case, request)).await;
    let played = match played {
        Ok(Ok(played)) => played,
        Ok(Err(_)) if case.client.nothing => play::Played::default(),
        Ok(Err(why)) => return vec![format!("client: {why}")],
        Err(_) => return vec!["client: it has waited for 20 s".to_owned()],
    };
    judge::judge(rig, case, &played).await
}
