//! Reads the metrics that our connector exports within vLLM servers.

use std::collections::BTreeMap;

use serde::Serialize;

/// Totals of the connectors of all servers since these started: sums of the metrics under `vllm:transload_…`, which
/// vLLM serves if our connector runs in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Transfers {
    /// The number of servers with such metrics.
    pub servers: usize,
    /// Bytes loaded, by path: `quic`, `local`, ….
    pub bytes: Counts,
    /// Successful loads, on all ranks.
    pub loads: u64,
    /// The total time of these loads.
    pub load_seconds: f64,
    /// Failed loads, by reason.
    pub failures: Counts,
    /// Ended leases of prefill servers, by the way they ended.
    pub leases: Counts,
    /// Bytes loaded from the store or saved to it.
    pub store_bytes: Counts,
    /// Failed calls of the store, by call.
    pub store_failures: Counts,
}

/// Counts by name. Servers choose the names, so their number and form are bounded; further ones count as `other`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Counts(BTreeMap<String, u64>);

impl Transfers {
    /// Adds one server's metrics, given in Prometheus' text format. Metrics of others are skipped.
    pub fn add(&mut self, text: &str) {
        let mut ours = false;
        for line in text.lines() {
            let Some(sample) = line.strip_prefix("vllm:transload_").and_then(Sample::parse) else {
                continue;
            };
            ours = true;
            let count = sample.value as u64; // the cast saturates
            match sample.name {
                "bytes_total" => self.bytes.add(sample.label("path"), count),
                "failures_total" => self.failures.add(sample.label("kind"), count),
                "leases_ended_total" => self.leases.add(sample.label("end"), count),
                "store_bytes_total" => self.store_bytes.add(sample.label("what"), count),
                "store_failures_total" => self.store_failures.add(sample.label("call"), count),
                "load_seconds_count" => self.loads = self.loads.saturating_add(count),
                "load_seconds_sum" => self.load_seconds += sample.value,
                _ => {}
            }
        }
        self.servers += usize::from(ours);
    }
}

impl Counts {
    const NAMES: usize = 16;

    /// Returns the count of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    fn add(&mut self, name: Option<String>, count: u64) {
        let plain = |name: &String| {
            (1..=32).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-. ".contains(&byte))
        };
        let name = name
            .filter(plain)
            .filter(|name| self.0.len() < Self::NAMES || self.0.contains_key(name))
            .unwrap_or_else(|| "other".into());
        let sum = self.0.entry(name).or_default();
        *sum = sum.saturating_add(count);
    }
}

/// One line of the text format: `name{label="value",…} number`.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, rest) = line.split_at(line.find(['{', ' '])?);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inside) => {
                let end = labels(inside).last().map_or(0, |label| label.end);
                (&inside[..end], inside[end..].trim_start_matches([',', ' ']).strip_prefix('}')?)
            }
            None => ("", rest),
        };
        // A timestamp may follow the number.
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then_some(Self { name, labels, value })
    }

    fn label(&self, name: &str) -> Option<String> {
        let label = labels(self.labels).find(|label| label.name == name)?;
        let mut value = String::new();
        let mut escaped = false;
        for letter in label.value.chars() {
            if escaped || letter != '\\' {
                value.push(if escaped && letter == 'n' { '\n' } else { letter });
            }
            escaped = letter == '\\' && !escaped;
        }
        Some(value)
    }
}

struct Label<'a> {
    name: &'a str,
    /// The text between the quotes, with escapes.
    value: &'a str,
    /// The offset of its end in the text, including the closing quote.
    end: usize,
}

fn labels(text: &str) -> impl Iterator<Item = Label<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &text[at..];
        let (name, quoted) = rest.split_once("=\"")?;
        let mut escaped = false;
        let close = quoted.find(|letter| {
            let closes = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            closes
        })?;
        at += name.len() + 2 + close + 1;
        Some(Label { name: name.trim_start_matches([',', ' ']), value: &quoted[..close], end: at })
    })
}
