//! The figures, and the limits that they are compared with.

use serde_json::{Value, json};

use crate::measure::{Case, Figure, Route, Scale};
use crate::peers::Peer;

/// The figures of one case in all rounds.
pub(crate) struct Table {
    case: Case,
    title: String,
    /// The figures of each peer in each round.
    taken: Vec<(Peer, Vec<Vec<f64>>)>,
}

impl Table {
    pub(crate) fn new(case: Case, scale: &Scale) -> Self {
        Self { case, title: case.title(scale), taken: Vec::new() }
    }

    pub(crate) fn add(&mut self, peer: Peer, values: Vec<f64>) {
        match self.taken.iter_mut().find(|(other, _)| *other == peer) {
            Some((_, rounds)) => rounds.push(values),
            None => self.taken.push((peer, vec![values])),
        }
    }

    /// Returns a peer's figure in each round, minus that of the fakes in the same round if only the addition counts.
    fn rounds(&self, peer: Peer, index: usize) -> Option<Vec<f64>> {
        let of = |peer| self.taken.iter().find(|(other, _)| *other == peer).map(|(_, rounds)| rounds);
        let figures = of(peer)?.iter().map(|values| values[index]);
        let added = self.case.figures()[index].added && peer != Peer::Direct;
        let Some(direct) = of(Peer::Direct).filter(|_| added) else {
            return Some(figures.collect());
        };
        let straight = direct.iter().map(|values| values[index]);
        Some(figures.zip(straight).map(|(figure, straight)| figure - straight).collect())
    }

    fn median(&self, peer: Peer, index: usize) -> Option<f64> {
        self.rounds(peer, index).map(median)
    }

    /// Returns the median over the rounds of one peer's figure divided by another's.
    fn ratio(&self, peer: Peer, other: Peer, index: usize) -> Option<f64> {
        let pairs = self.rounds(peer, index)?.into_iter().zip(self.rounds(other, index)?);
        Some(median(pairs.map(|(figure, other)| figure / other).collect()))
    }

    pub(crate) fn print(&self) {
        print!("\n{:70}", self.title);
        for (peer, _) in &self.taken {
            print!("{:>10}", peer.name());
        }
        println!();
        for (index, Figure { name, unit, added }) in self.case.figures().iter().enumerate() {
            let beyond = if *added { ", added to direct" } else { "" };
            print!("  {:68}", format!("{name}, {unit}{beyond}"));
            for (peer, _) in &self.taken {
                print!("{:>10}", rounded(self.median(*peer, index).unwrap_or(f64::NAN)));
            }
            println!();
        }
    }

    fn json(&self) -> Vec<Value> {
        let figures = self.case.figures().iter().enumerate();
        let of_peers = figures.flat_map(|(index, figure)| {
            self.taken.iter().map(move |(peer, _)| {
                let rounds = self.rounds(*peer, index).unwrap_or_default();
                json!({
                    "case": self.title,
                    "figure": figure.name,
                    "unit": figure.unit,
                    "added": figure.added && *peer != Peer::Direct,
                    "peer": peer.name(),
                    "median": median(rounds.clone()),
                    "rounds": rounds,
                })
            })
        });
        of_peers.collect()
    }
}

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) tables: Vec<Table>,
}

struct Limit {
    what: String,
    figure: f64,
    most: bool,
    limit: f64,
}

impl Limit {
    fn met(&self) -> bool {
        match self.most {
            true => self.figure <= self.limit,
            false => self.figure >= self.limit,
        }
    }
}

impl Report {
    /// Returns the limits for both of our proxies that apply to the measured cases.
    fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        for table in &self.tables {
            for peer in [Peer::Sidecar, Peer::ProxyPass, Peer::Proxy] {
                let mut add = |what: &str, most, figure: Option<f64>, limit: Option<f64>| {
                    if let (Some(figure), Some(limit)) = (figure, limit) {
                        limits.push(Limit {
                            what: format!("{}: {}, {what}", peer.name(), table.title),
                            figure,
                            most,
                            limit,
                        });
                    }
                };
                let (first, second) = (table.median(peer, 0), || table.median(peer, 1));
                match table.case {
                    Case::Added { connections: 1 } => {
                        add("median, us", true, first, Some(150.0));
                        add("p99, us", true, second(), Some(1000.0));
                        add("not above nginx, us", true, first, table.median(Peer::Nginx, 0));
                    }
                    Case::Added { .. } => {
                        add("not above nginx, us", true, first, table.median(Peer::Nginx, 0));
                    }
                    Case::Legs => add("median, us", true, first, Some(300.0)),
                    Case::Rate { route, .. } if route != Route::Disaggregated => {
                        let ratio = table.ratio(peer, Peer::Nginx, 0);
                        add("of nginx", false, ratio, Some(0.8));
                        let python = self.python_rate().zip(first);
                        let ratio = python.map(|(python, ours)| ours / python);
                        add("of vLLM's P/D", false, ratio, Some(20.0));
                    }
                    Case::Rate { .. } => {
                        let ratio = table.ratio(peer, Peer::Python, 0);
                        add("of vLLM's", false, ratio, Some(20.0));
                    }
                    Case::Streams => {
                        add("p99, ms", true, second(), Some(10.0));
                        add("broken", true, table.median(peer, 3), Some(0.0));
                    }
                    Case::Memory => add("KiB", true, first, Some(40.0)),
                }
            }
        }
        limits
    }

    /// Returns the rate of vLLM's proxy. All its requests are P/D, since it forwards none unchanged.
    fn python_rate(&self) -> Option<f64> {
        let rate = |table: &Table| matches!(table.case, Case::Rate { route, .. } if route.is_disaggregated());
        let table = self.tables.iter().find(|table| rate(table))?;
        table.median(Peer::Python, 0)
    }

    pub(crate) fn print_limits(&self) {
        println!("\n{:92}{:>10}{:>10}", "wanted", "is", "limit");
        for limit in self.limits() {
            let sign = if limit.most { "<=" } else { ">=" };
            let bound = format!("{sign} {}", rounded(limit.limit));
            let met = if limit.met() { "met" } else { "MISSED" };
            println!("  {:90}{:>10}{bound:>10}  {met}", limit.what, rounded(limit.figure));
        }
    }

    pub(crate) fn json(&self, scale: &Scale) -> Value {
        let limits = self.limits();
        let limits = limits.iter().map(|limit| {
            let bound = if limit.most { "at_most" } else { "at_least" };
            json!({"what": limit.what, "figure": limit.figure, bound: limit.limit, "met": limit.met()})
        });
        json!({
            "rounds": scale.rounds,
            "seconds": scale.time.as_secs_f64(),
            "streams": scale.streams,
            "results": self.tables.iter().flat_map(Table::json).collect::<Vec<_>>(),
            "limits": limits.collect::<Vec<_>>(),
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        value if value == 0.0 || value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}
