//! The admin address: over HTTP, in a real browser, and as Prometheus and Grafana are told of it.

mod browser;
mod dashboards;
mod http;
mod made_up;
mod page;
