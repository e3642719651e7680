//! Certificates in an agent's folder that are replaced while it runs.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::identity::Renewals;
use crate::quic::Endpoints;

/// Checks the files periodically, and makes new connections use what has changed. Never returns.
///
/// Files that are invalid or incomplete change nothing, and are logged once.
pub(super) async fn keep(endpoints: &Endpoints, renewals: Option<Renewals>, every: Duration) {
    let mut renewals = renewals;
    // The certificate whose end was logged already.
    let mut logged = None;
    loop {
        let identity = endpoints.identity();
        let until = identity.valid_until();
        if identity.is_ending() && logged != Some(until) {
            logged = Some(until);
            let left = until.duration_since(std::time::SystemTime::now());
            let hours = left.unwrap_or_default().as_secs() / 3600;
            tracing::warn!(service = %identity.peer().service, hours, "the certificate ends soon");
        }
        sleep(every).await;
        let Some(mut files) = renewals.take() else {
            continue;
        };
        let looked = spawn_blocking(move || {
            let found = files.look();
            (files, found)
        });
        let Ok((files, found)) = looked.await else {
            tracing::error!("reading the certificate's files has panicked: they are not looked at any more");
            continue;
        };
        renewals = Some(files);
        let renewed = match found {
            None => continue,
            Some(read) => read.map_err(Into::into).and_then(|new| endpoints.renew(new)),
        };
        let service = &identity.peer().service;
        match renewed {
            Ok(()) => tracing::info!(%service, "the certificate was read again"),
            Err(error) => tracing::warn!(
                %service, error = %chain(&error),
                "the changed certificate does not serve; the one from before stays in use"
            ),
        }
    }
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}
