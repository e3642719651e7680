//! Counters and histograms for Prometheus.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::{FailureKind, Path};
use crate::Role;

/// Buckets, in seconds, of a prefill's time and of the time to the first token: from a cached prompt to a long one
/// after a queue.
const LATENCY: [f64; 15] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Buckets, in seconds, of the time that this process adds.
const OVERHEAD: [f64; 13] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];

const ROLES: [Role; 2] = [Role::Prefill, Role::Decode];

#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    failures: IntCounterVec,
    in_flight: [IntGauge; 2],
    prefill: Histogram,
    first_token: Histogram,
    overhead: Histogram,
}

impl Metrics {
    pub(super) fn new(version: &'static str) -> Self {
        let requests = counter(
            "transload_pd_requests_total",
            "Requests of P/D routes that have ended, by the way they took.",
            &["path"],
        );
        let failures = counter(
            "transload_pd_upstream_failures_total",
            "Failures of servers, by role and kind.",
            &["role", "kind"],
        );
        let in_flight =
            gauge("transload_pd_in_flight", "Legs of P/D requests in flight, by the server's role.", &["role"]);
        let build = gauge("transload_build_info", "Which version this is; always 1.", &["version"]);
        let prefill = histogram(
            "transload_pd_prefill_seconds",
            "Time of an answered prefill leg, to the last byte of the answer.",
            &LATENCY,
        );
        let first_token = histogram(
            "transload_pd_first_token_seconds",
            "Time from a request's head to the first byte of the answer's body.",
            &LATENCY,
        );
        let overhead = histogram(
            "transload_pd_overhead_seconds",
            "Time until the first byte of the answer's body that was spent neither in a leg nor on the client's request.",
            &OVERHEAD,
        );
        let registry = Registry::new();
        let all: [Box<dyn prometheus::core::Collector>; 7] = [
            Box::new(requests.clone()),
            Box::new(failures.clone()),
            Box::new(in_flight.clone()),
            Box::new(build.clone()),
            Box::new(prefill.clone()),
            Box::new(first_token.clone()),
            Box::new(overhead.clone()),
        ];
        for collector in all {
            registry.register(collector).expect("the names above differ");
        }
        // Series are created at 0, so that their first event already counts in a rate.
        for path in Path::ALL {
            requests.with_label_values(&[path.name()]);
        }
        for role in ROLES {
            for kind in FailureKind::ALL {
                failures.with_label_values(&[role.name(), kind.name()]);
            }
        }
        build.with_label_values(&[version]).set(1);
        Self {
            registry,
            requests,
            failures,
            in_flight: ROLES.map(|role| in_flight.with_label_values(&[role.name()])),
            prefill,
            first_token,
            overhead,
        }
    }

    pub(super) fn leg_began(&self, role: Role) {
        self.in_flight[role as usize].inc();
    }

    pub(super) fn leg_ended(&self, role: Role) {
        self.in_flight[role as usize].dec();
    }

    pub(super) fn failure(&self, role: Role, kind: FailureKind) {
        self.failures.with_label_values(&[role.name(), kind.name()]).inc();
    }

    pub(super) fn failures(&self, role: Role, kind: FailureKind) -> u64 {
        self.failures.with_label_values(&[role.name(), kind.name()]).get()
    }

    pub(super) fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    pub(super) fn overhead(&self, time: Duration) {
        self.overhead.observe(time.as_secs_f64());
    }

    pub(super) fn ended(&self, path: Path, prefill: Option<Duration>) {
        self.requests.with_label_values(&[path.name()]).inc();
        if let Some(time) = prefill {
            self.prefill.observe(time.as_secs_f64());
        }
    }

    pub(super) fn requests(&self, path: Path) -> u64 {
        self.requests.with_label_values(&[path.name()]).get()
    }

    pub(super) fn text(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("metrics that were registered can be written")
    }
}

fn counter(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("the name and labels are literals")
}

fn gauge(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).expect("the name and labels are literals")
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
        .expect("the name is a literal and the buckets increase")
}
