//! Traces: what a request did and when, as OpenTelemetry spans named as llm-d's sidecar names them, exported by OTLP.
//!
//! Without [`Otlp`] in the settings there are no spans and clients' headers pass as they came. With it each request of a P/D
//! route has a span of its own, child of the client's, and servers are told of its legs' spans:
//!
//! ```text
//! the client's span
//! └── llm_d.pd_proxy.request
//!     ├── llm_d.pd_proxy.prefill                 one for each server asked
//!     └── llm_d.pd_proxy.decode                  one for each server asked
//!         └── llm_d.pd_proxy.chunked_decode      where a decode is divided
//! ```
//!
//! Nothing in a span is a client's text, but for prefill targets, which have been read as a host and a port.

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

/// The name by which llm-d's sidecar says what makes its spans.
const SCOPE: &str = "llm-d-inference-scheduler";

/// How long the export of the last spans may take, when a process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// The spans of a process, on their way to a collector: in a queue of bounded length, past whose end they are dropped, and then
/// in batches from a thread of their own. Requests never wait for it.
pub(crate) struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    runtime: Handle,
}

impl Telemetry {
    /// Begins to export spans; `None` where that cannot be, which the log tells and no request suffers from. It has to be called
    /// on a runtime.
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

    /// Exports what there is, for as long as [`FLUSH`], and ends.
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
        // Ending waits for the export of the last spans, which no task of the runtime may do.
        let provider = self.provider.clone();
        self.runtime.spawn_blocking(move || provider.shutdown_with_timeout(FLUSH));
    }
}
