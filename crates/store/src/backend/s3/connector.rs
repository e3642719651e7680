//! HTTP connections for `object_store` that treat a 501 as final.
//!
//! The crate retries every 5xx. A server that answers 501 does not know the request and never will, so ten more
//! attempts only delay the same answer.

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// Makes HTTP clients that do not retry a 501.
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
        let body = String::from_utf8_lossy(&body[..body.len().min(MOST_REPEATED)]).into_owned();
        // Use the crate's wording, since other code here reads the server's answer from its errors.
        let source = format!("Server returned non-2xx status code: {status}: {body}");
        // This is the kind of error that the crate never retries.
        Err(HttpError::new_boxed(HttpErrorKind::Unknown, source.into()))
    }
}

/// The maximum bytes of a reply that an error repeats. XML errors are shorter.
const MOST_REPEATED: usize = 1000;
