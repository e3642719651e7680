//! What a client is told whose bytes are refused.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use thiserror::Error;

/// Why a client's bytes are refused. The connection ends after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Refusal {
    /// The status that the client gets.
    pub status: StatusCode,
    /// What is wrong and what would be right, without a byte of the client's.
    pub message: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: StatusCode, message: &'static str) -> Self {
        Self { status, message }
    }

    /// A refusal with status 400.
    pub(super) const fn bad(message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the answer that says so, in the form of OpenAI's errors.
    #[must_use]
    pub fn response(&self) -> Response<Full<Bytes>> {
        let kind = match self.status {
            StatusCode::REQUEST_TIMEOUT => "RequestTimeoutError",
            StatusCode::URI_TOO_LONG => "UriTooLongError",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "HeaderTooLargeError",
            StatusCode::NOT_IMPLEMENTED => "NotImplementedError",
            StatusCode::HTTP_VERSION_NOT_SUPPORTED => "VersionNotSupportedError",
            _ => "BadRequestError",
        };
        let body = serde_json::json!({
            "object": "error",
            "message": self.message,
            "type": kind,
            "param": "",
            "code": self.status.as_u16(),
        });
        let mut response = Response::new(Full::new(body.to_string().into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/json"),
        );
        headers.insert(
            header::CONNECTION,
            header::HeaderValue::from_static("close"),
        );
        response
    }
}
