//! Tests of the admin address: over HTTP, in a real browser, and against the Prometheus and Grafana documents.

mod browser;
mod dashboards;
mod http;
mod made_up;
mod page;
