//! Requests that are forwarded to a decode server unchanged, and their answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::connections::Busy;
use super::reply::Reply;
use super::service::path_of;
use super::{Broken, Choice, Client, Front, Phase, headers, incoming};
use crate::Role;
use crate::exchange::Trouble;
use crate::observe::FailureKind;
use crate::servers::Claim;
use crate::strict::Upgrade;
use crate::upstream::{Answer, BodyError, Outgoing, SendError};

const MOST_MOVES: usize = 4;

impl Front {
    /// Forwards a request to a decode server, streaming its body.
    pub(super) async fn pass(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        client: Client,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<Reply>, Trouble> {
        let protocol = request.headers().get(UPGRADE);
        let protocol = protocol.filter(|_| upgrade.is_some()).cloned();
        let upgraded = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        let busy = head.extensions.remove::<Busy>();
        let choice = self.decode_choice(&head, client)?;
        headers::to_server(&mut head.headers);
        // The body is checked by the type that the server will see.
        let body = if headers::may_carry_params(&head.method) && !self.settings.trust_client_params {
            let kind = headers::body_kind(&head.headers);
            if kind != headers::BodyKind::Other && headers::is_encoded(&head.headers) {
                let message = "A body of JSON, or a form, has a Content-Encoding. Send it without one.";
                return Err(Trouble::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
            }
            if headers::may_be_form(&head.headers) {
                let message = "A form has several media types. Send it with one.";
                return Err(Trouble::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
            }
            incoming::filtered(kind, body, &self.settings.limits, &self.rules.bodies).await?
        } else {
            Outgoing::streamed(Bytes::new(), body)
        };
        if let Some(protocol) = protocol {
            head.headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol);
        }
        if body.is_whole() {
            head.headers.remove(http::header::CONTENT_LENGTH);
        }
        let (mut response, claim) = self.send(head, body, &choice).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.passing(response, claim));
        }
        let (Some(client_side), Some(upgrade)) = (upgraded, upgrade) else {
            return Err(Trouble::new(
                StatusCode::BAD_GATEWAY,
                "The decode server upgraded a connection that was not to be upgraded.",
            ));
        };
        upgrade.accept();
        let server_side = hyper::upgrade::on(&mut response);
        let response = response.map(Answer::detach);
        let mut phase = self.phase.subscribe();
        tokio::spawn(async move {
            let _held = (claim, busy);
            let (Ok(client), Ok(server)) = (client_side.await, server_side.await) else {
                return;
            };
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            tokio::select! {
                // When one side closes, the copy closes the other.
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                _ = phase.wait_for(|phase| *phase == Phase::Over) => {}
            }
        });
        Ok(response.map(|_| Reply::here(Bytes::new())))
    }

    /// Forwards a request of a P/D route whose body is not an object.
    pub(super) async fn pass_whole(
        self: &Arc<Self>,
        mut head: http::request::Parts,
        body: Bytes,
        client: Client,
    ) -> Result<Response<Reply>, Trouble> {
        let choice = self.decode_choice(&head, client)?;
        headers::to_server(&mut head.headers);
        head.headers.remove(http::header::CONTENT_LENGTH);
        let (response, claim) = self.send(head, Outgoing::whole(body), &choice).await?;
        Ok(self.passing(response, claim))
    }

    fn passing(self: &Arc<Self>, mut response: Response<Answer>, claim: Claim) -> Response<Reply> {
        headers::end_hop(response.headers_mut());
        response.map(|answer| {
            let passing = Passing { front: self.clone(), answer, claim };
            passing.judge_if_over();
            Reply::passed(passing)
        })
    }

    fn decode_choice(&self, head: &http::request::Parts, client: Client) -> Result<Choice, Trouble> {
        let decode = self.decode_of(&head.headers, client)?;
        Ok(Choice { decode, ..Choice::default() })
    }

    async fn send(
        &self,
        mut head: http::request::Parts,
        body: Outgoing,
        choice: &Choice,
    ) -> Result<(Response<Answer>, Claim), Trouble> {
        self.authorize(&mut head.headers);
        head.uri = Uri::from(path_of(&head.uri));
        head.version = http::Version::HTTP_11;
        head.extensions.clear();
        let mut request = Request::from_parts(head, body);
        let mut refused = Vec::new();
        let mut trouble = Trouble::not_ready();
        // A request that a server has not seen can go to another one.
        while let Some(claim) = self.claim(Role::Decode, choice, &refused, None, Instant::now()) {
            let sent = self.upstream.offer(Role::Decode, claim.url(), request);
            let (error, unsent) = match sent.await {
                Ok(response) => {
                    match response.status().is_server_error() {
                        true => self.blame(&claim, FailureKind::Status),
                        false => claim.answered(),
                    }
                    return Ok((response, claim));
                }
                Err(error) => error,
            };
            tracing::debug!(server = %claim.url(), %error, "a decode server failed");
            let kind;
            (kind, trouble) = match error {
                SendError::Broken(error) if error.is_user() => {
                    let refused = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<BodyError>());
                    return Err(match refused {
                        Some(BodyError::Refused(trouble)) => trouble.clone(),
                        _ => Trouble::bad_request("The body broke off, or its framing is not valid HTTP."),
                    });
                }
                SendError::NoFiles => return Err(Trouble::no_files()),
                SendError::Untrusted(_) => (FailureKind::Broken, Trouble::untrusted("decode")),
                SendError::Unreachable(_) => (FailureKind::Refused, Trouble::not_ready()),
                SendError::ConnectTimeout(_) => (FailureKind::Timeout, Trouble::not_ready()),
                _ => (FailureKind::Broken, Trouble::broken("decode")),
            };
            self.blame(&claim, kind);
            match unsent {
                Some(unsent) if refused.len() < MOST_MOVES => request = *unsent,
                _ => break,
            }
            refused.push(claim.url().clone());
        }
        Err(trouble)
    }

    fn blame(&self, claim: &Claim, kind: FailureKind) {
        claim.failed(kind, Instant::now());
        self.observer.failure(Role::Decode, kind);
    }
}

pub(super) struct Passing {
    front: Arc<Front>,
    answer: Answer,
    claim: Claim,
}

impl Passing {
    fn judge_if_over(&self) {
        if self.answer.is_end_stream() {
            self.claim.succeeded(Instant::now());
        }
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = ready!(Pin::new(&mut self.answer).poll_frame(cx));
        match &frame {
            Some(Err(error)) => {
                tracing::debug!(server = %self.claim.url(), %error, "a decode server broke off");
                self.front.blame(&self.claim, FailureKind::Broken);
            }
            Some(Ok(_)) => self.judge_if_over(),
            // Chunked answers end only here.
            None => self.claim.succeeded(Instant::now()),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|_| Broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}
