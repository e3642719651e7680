//! Error answers of our own to the client.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::strict::Refusal;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Trouble {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) const fn silent(status: StatusCode) -> Self {
        Self { status, message: String::new() }
    }

    pub(crate) fn not_ready() -> Self {
        let message = "The decode node is not ready. Please check that the vLLM service is running and the port \
                       configuration is correct.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub(crate) fn no_files() -> Self {
        let message =
            "No file is left to connect to a server with. Try again, or allow this process more of them (ulimit -n).";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub(crate) fn untrusted(role: &str) -> Self {
        let message =
            format!("The {role} server's certificate is not trusted, or it does not speak TLS. The log has details.");
        Self::new(StatusCode::BAD_GATEWAY, message)
    }

    pub(crate) fn broken(role: &str) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            format!("The {role} server broke the connection before it had answered, or its answer is not valid HTTP."),
        )
    }

    const fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::REQUEST_TIMEOUT => "RequestTimeoutError",
            StatusCode::URI_TOO_LONG => "UriTooLongError",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "HeaderTooLargeError",
            StatusCode::NOT_IMPLEMENTED => "NotImplementedError",
            StatusCode::HTTP_VERSION_NOT_SUPPORTED => "VersionNotSupportedError",
            StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
            StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
            StatusCode::BAD_GATEWAY => "BadGateway",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            StatusCode::GATEWAY_TIMEOUT => "GatewayTimeout",
            _ => "Error",
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status, refusal.message)
    }
}

/// Builds the answer to the client, in the form of the engines' own errors.
pub(crate) fn error(trouble: Trouble) -> (StatusCode, HeaderMap, Bytes) {
    if trouble.message.is_empty() {
        return (trouble.status, HeaderMap::new(), Bytes::new());
    }
    let body = serde_json::json!({
        "object": "error",
        "message": trouble.message,
        "type": trouble.kind(),
        "param": "",
        "code": trouble.status.as_u16(),
    });
    let body = Bytes::from(body.to_string());
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, body.len().into());
    if trouble.status == StatusCode::SERVICE_UNAVAILABLE {
        // Memory, file descriptors and servers are usually available again within moments.
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    (trouble.status, headers, body)
}
