//! Connections for the crate that speaks S3, with one rule of ours: a 501 is final.
//!
//! The crate tries every 5xx again. A server that answers 501 does not know the request and never will, so asking ten times
//! more only makes somebody wait for the same answer.

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// Makes clients that take a 501 for an answer.
#[derive(Debug, Default)]
pub(super) struct Connector {
    inner: ReqwestConnector,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.inner.connect(options)?;
        Ok(HttpClient::new(Service { client }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.client.execute(request).await?;
        let status = response.status();
        if status.as_u16() != 501 {
            return Ok(response);
        }
        let body = response.into_body().bytes().await?;
        let body = String::from_utf8_lossy(&body[..body.len().min(MOST_SAID)]).into_owned();
        // As the crate words it, since what a server answered is read off its errors.
        let source = format!("Server returned non-2xx status code: {status}: {body}");
        // Of all kinds of error the crate never tries this one again.
        Err(HttpError::new_boxed(HttpErrorKind::Unknown, source.into()))
    }
}

/// Bytes of an answer that an error repeats: whole XML errors are shorter.
const MOST_SAID: usize = 1000;
