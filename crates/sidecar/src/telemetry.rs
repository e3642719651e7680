//! Traces of requests as OpenTelemetry spans, named as llm-d's sidecar names them and exported by OTLP.
//!
//! Without [`Otlp`] in the settings there are no spans, and clients' trace headers are forwarded unchanged. With it,
//! each request of a P/D route has a span of its own, a child of the client's span, and each server gets the span of
//! its leg:
//!
//! ```text
//! the client's span
//! └── llm_d.pd_proxy.request
//!     ├── llm_d.pd_proxy.prefill                 one for each server asked
//!     └── llm_d.pd_proxy.decode                  one for each server asked
//!         └── llm_d.pd_proxy.chunked_decode      where a decode is divided
//! ```
//!
//! No span contains text of a client except prefill targets, which were parsed into a host and a port.

mod context;
mod environment;
mod export;
mod trace;

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

pub use self::environment::Otlp;
pub(crate) use self::trace::Trace;

/// The instrumentation scope, named as in llm-d's sidecar.
const SCOPE: &str = "llm-d-inference-scheduler";

/// The longest time for the export of the last spans when a process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// The span exporter of a process. Spans wait in a bounded queue, which drops them when it is full, and a thread of its
/// own exports them in batches. Requests never wait for it.
pub(crate) struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    runtime: Handle,
}

impl Telemetry {
    /// Starts to export spans. If that fails, logs the error and returns `None`; requests are served without traces.
    /// Must be called on a runtime.
    pub(crate) fn start(otlp: &Otlp) -> Option<Self> {
        let collector = otlp.collector();
        let exporter =
            export::to(otlp).inspect_err(|error| tracing::error!(%collector, %error, "no spans are exported"));
        let processor = BatchSpanProcessor::builder(exporter.ok()?).build();
        let provider = SdkTracerProvider::builder()
            .with_sampler(otlp.sampler.clone())
            .with_resource(environment::resource())
            .with_span_processor(processor)
            .build();
        tracing::info!(%collector, sampler = ?otlp.sampler, "spans are exported");
        Some(Self { tracer: provider.tracer(SCOPE), provider, runtime: Handle::current() })
    }

    /// Exports the remaining spans, for at most [`FLUSH`], and shuts the exporter down.
    pub(crate) async fn flush(&self) {
        let provider = self.provider.clone();
        let ended = self.runtime.spawn_blocking(move || provider.shutdown_with_timeout(FLUSH));
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Shutting down blocks until the last spans are exported, which no task of the runtime may do.
        let provider = self.provider.clone();
        self.runtime.spawn_blocking(move || provider.shutdown_with_timeout(FLUSH));
    }
}
