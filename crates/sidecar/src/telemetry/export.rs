//! Exports spans to a collector: OTLP over gRPC or HTTP, with TLS or without.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol as Encoding, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::SpanData;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::runtime::Handle;
use tonic::transport::Endpoint;

use super::Otlp;
use super::environment::Protocol;
use crate::Role;
use crate::settings::UpstreamTls;
use crate::tls::{self, TlsError};

#[derive(Debug, Error)]
pub(super) enum ExportError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the TLS library: {0}")]
    Rustls(#[from] rustls::Error),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// Creates an exporter. It connects when the first spans are exported.
pub(super) fn to(otlp: &Otlp) -> Result<OnRuntime, ExportError> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(trust(otlp)?);
    let connector = connector.https_or_http();
    let exporter = match otlp.protocol {
        Protocol::Grpc => {
            let channel = Endpoint::from(otlp.endpoint.clone())
                .connect_timeout(otlp.timeout)
                .timeout(otlp.timeout)
                .connect_with_connector_lazy(connector.enable_http2().build());
            let builder = SpanExporter::builder().with_tonic().with_channel(channel);
            builder.with_timeout(otlp.timeout).build()?
        }
        Protocol::Http => {
            let connector = connector.enable_http1().build();
            SpanExporter::builder()
                .with_http()
                .with_http_client(HyperClient::new(connector, otlp.timeout, None))
                .with_endpoint(otlp.endpoint.to_string())
                .with_protocol(Encoding::HttpBinary)
                .with_timeout(otlp.timeout)
                .build()?
        }
    };
    Ok(OnRuntime {
        exporter: Arc::new(exporter),
        runtime: Handle::current(),
        collector: otlp.collector(),
        failing: AtomicBool::new(false),
    })
}

/// Returns the TLS configuration, which checks the collector's certificate as those of servers are checked.
fn trust(otlp: &Otlp) -> Result<ClientConfig, ExportError> {
    if otlp.endpoint.scheme_str() != Some("https") {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let trusting_none = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(RootCertStore::empty());
        return Ok(trusting_none.with_no_client_auth());
    }
    let trust = tls::Upstream::load(&UpstreamTls {
        ca: otlp.ca.clone(),
        client: otlp.client.clone(),
        ..UpstreamTls::default()
    })?;
    let mut config = (*trust.config(Role::Decode)).clone();
    // The connector sets the protocols that it speaks.
    config.alpn_protocols.clear();
    Ok(config)
}

/// An exporter that runs on the runtime of the requests, since the SDK's thread has neither timers nor sockets. It logs
/// when the collector begins to fail and when it works again.
#[derive(Debug)]
pub(super) struct OnRuntime {
    exporter: Arc<SpanExporter>,
    runtime: Handle,
    collector: String,
    failing: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, collector) = (self.exporter.clone(), &self.collector);
        let exported = self
            .runtime
            .spawn(async move { exporter.export(batch).await })
            .await
            .unwrap_or_else(|ended| Err(OTelSdkError::InternalFailure(ended.to_string())));
        let failed = exported.is_err();
        if self.failing.swap(failed, Ordering::Relaxed) != failed {
            match &exported {
                Err(error) => tracing::warn!(%collector, %error, "spans are lost"),
                Ok(()) => tracing::info!(%collector, "spans are exported again"),
            }
        }
        exported
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
