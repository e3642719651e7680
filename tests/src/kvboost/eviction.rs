//! KVBoost's cache on the policy of `memory://`: its cap, its index of contents, its pins by content and its counters.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};
use transload_store::backend::Policy;

use super::Agreement;

/// A cache that holds sizes instead of tensors.
#[derive(Debug)]
struct Cache {
    cap: u64,
    policy: Policy<String>,
    /// The content and the size of each key.
    chunks: BTreeMap<String, (String, u64)>,
    used: u64,
    /// The key that was stored last with a content.
    index: BTreeMap<String, String>,
    /// The pinned contents, present or not.
    pins: HashSet<String>,
    counts: BTreeMap<&'static str, u64>,
    window: usize,
}

const COUNTS: [&str; 5] = ["hits", "misses", "approx", "evictions", "rejections"];

impl Cache {
    fn new(cap: u64, window: usize) -> Self {
        Self {
            cap,
            policy: Policy::new(window),
            chunks: BTreeMap::new(),
            used: 0,
            index: BTreeMap::new(),
            pins: HashSet::new(),
            counts: COUNTS.map(|name| (name, 0)).into(),
            window,
        }
    }

    /// Stores a chunk and returns the keys that were evicted for it.
    fn store(&mut self, key: &str, content: &str, bytes: u64, weight: f64) -> Vec<String> {
        let mut evicted = Vec::new();
        if self.chunks.contains_key(key) {
            self.policy.put(key.to_owned(), weight);
            return evicted;
        }
        let mut fits = bytes <= self.cap;
        while fits && self.used + bytes > self.cap {
            match self.policy.evict() {
                Some(key) => {
                    self.drop_chunk(&key);
                    self.count("evictions");
                    evicted.push(key);
                }
                None => fits = false,
            }
        }
        if !fits {
            self.count("rejections");
            return evicted;
        }
        self.policy.put(key.to_owned(), weight);
        self.policy.pin(&key.to_owned(), self.pins.contains(content));
        let chunk = (content.to_owned(), bytes);
        self.chunks.insert(key.to_owned(), chunk);
        self.used += bytes;
        self.index.insert(content.to_owned(), key.to_owned());
        evicted
    }

    fn get(&mut self, key: &str) -> Option<String> {
        let hit = self.policy.hit(&key.to_owned());
        self.count(if hit { "hits" } else { "misses" });
        hit.then(|| key.to_owned())
    }

    fn get_by_content(&mut self, content: &str) -> Option<String> {
        let key = self.index.get(content)?.clone();
        self.policy.hit(&key);
        self.count("approx");
        Some(key)
    }

    fn pin(&mut self, content: &str, pinned: bool) {
        match pinned {
            true => self.pins.insert(content.to_owned()),
            false => self.pins.remove(content),
        };
        for (key, (of, _)) in &self.chunks {
            if of == content {
                self.policy.pin(key, pinned);
            }
        }
    }

    fn invalidate(&mut self, key: &str) {
        self.policy.remove(&key.to_owned());
        self.drop_chunk(key);
    }

    fn clear(&mut self) {
        let pins = std::mem::take(&mut self.pins);
        *self = Self::new(self.cap, self.window);
        self.pins = pins;
    }

    fn drop_chunk(&mut self, key: &str) {
        let Some((content, bytes)) = self.chunks.remove(key) else {
            return;
        };
        self.used -= bytes;
        if self.index.get(&content).is_some_and(|last| last == key) {
            self.index.remove(&content);
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    /// Returns the state in the form of the traces.
    fn state(&self) -> Value {
        let keys: Vec<&String> = self.policy.keys().collect();
        let frequencies: BTreeMap<_, _> = keys.iter().map(|key| (*key, self.policy.frequency(key))).collect();
        let mut state = json!({
            "resident": keys,
            "bytes_used": self.used,
            "freq": frequencies,
            "content_index": self.index,
        });
        for (name, count) in &self.counts {
            state[*name] = json!(count);
        }
        state
    }

    /// Runs a step. Returns its result and the evicted keys.
    fn step(&mut self, op: &[Value]) -> Result<(Value, Vec<String>), String> {
        let unknown = || format!("{op:?} is no step");
        let text = |at: usize| op.get(at).and_then(Value::as_str).ok_or_else(unknown);
        let mut evicted = Vec::new();
        let mut result = None;
        match text(0)? {
            "store" => {
                let bytes = op.get(3).and_then(Value::as_u64).ok_or_else(unknown)?;
                let weight = op.get(4).and_then(Value::as_f64).ok_or_else(unknown)?;
                evicted = self.store(text(1)?, text(2)?, bytes, weight);
            }
            "get" => result = self.get(text(1)?),
            "get_by_content" => result = self.get_by_content(text(1)?),
            "pin" => self.pin(text(1)?, true),
            "unpin" => self.pin(text(1)?, false),
            "invalidate" => self.invalidate(text(1)?),
            "clear" => self.clear(),
            _ => return Err(unknown()),
        }
        Ok((json!(result), evicted))
    }
}

/// Replays traces; each step is a case.
///
/// # Errors
/// If they are no traces.
pub(super) fn replay(traces: &Value) -> Result<Agreement, String> {
    let mut agreement = Agreement::default();
    for trace in traces.as_array().ok_or("it is no list of traces")? {
        let number = |name: &str| {
            let number = trace["config"][name].as_u64();
            number.ok_or_else(|| format!("a trace has no {name}"))
        };
        let window = usize::try_from(number("recency_window_chunks")?).map_err(|e| e.to_string())?;
        let mut cache = Cache::new(number("max_cache_bytes")?, window);
        for step in trace["steps"].as_array().ok_or("a trace has no steps")? {
            let op = step["op"].as_array().ok_or("a step has no op")?;
            let (result, evicted) = cache.step(op)?;
            let done = (result, json!(evicted), cache.state());
            let recorded = (&step["result"], &step["evicted"], &step["after"]);
            agreement.count((&done.0, &done.1, &done.2) == recorded);
        }
    }
    Ok(agreement)
}
