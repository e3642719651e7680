//! `transload announce`: announces a server at an etcd, where proxies discover it.

use std::path::PathBuf;

use clap::ValueHint;
use transload_sidecar::announce::{AnnounceError, Announcement, announce};
use transload_sidecar::etcd::Cluster;
use transload_sidecar::settings::UpstreamTls;
use transload_sidecar::{Role, ServerUrl};

use super::common::ClientCertificate;
use super::serve::{StopSignals, no_runtime};
use super::values;
use crate::commands::engines;
use crate::failure::{Failure, chain};

pub(super) const EXAMPLES: &str = "\
Examples:
  transload announce --etcd etcd://etcd:2379/transload --role prefill --url http://10.0.1.1:8100
  transload announce --etcd etcd://e1:2379,e2:2379,e3:2379/transload --role decode \\
    --url http://10.0.2.1:8200 --name decode-0
  transload announce --etcd etcds://etcd:2379/transload --upstream-ca ca.pem \\
    --client-cert client.pem --client-key client.key --role decode --url http://10.0.2.1:8200

`transload proxy --discover etcd://…` with the same hosts and prefix finds the
server while this command runs. SIGTERM withdraws the announcement; if this
process dies, the announcement expires within 10 s.";

/// Announce a prefill or decode server in etcd while this command runs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Hosts of etcd and prefix of the keys: etcd://HOST:PORT[,HOST:PORT]/PREFIX, or etcds:// for TLS.
    #[arg(long, value_name = "URI")]
    etcd: String,
    /// Role of the server: prefill or decode.
    #[arg(long, value_name = "ROLE", value_parser = values::role)]
    role: Role,
    /// URL at which proxies reach the server.
    #[arg(long, value_name = "URL", value_parser = values::server)]
    url: ServerUrl,
    /// Name of the server in etcd. Default: its HOST:PORT.
    #[arg(long)]
    name: Option<String>,
    /// PEM file of authorities to verify etcd's certificate (etcds://). Default: those of the system.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    upstream_ca: Option<PathBuf>,
    #[command(flatten)]
    client: ClientCertificate,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let announcement = args.announcement()?;
    let runtime = engines::runtime()?;
    let announced = runtime.block_on(until_stopped(announcement));
    // A DNS look-up may hang longer than the process should wait.
    runtime.shutdown_background();
    announced
}

impl Args {
    pub(super) fn announcement(self) -> Result<Announcement, Failure> {
        // The value is not shown, since it may contain a password.
        let etcd = Cluster::parse(&self.etcd).map_err(|error| {
            Failure::input(
                format!("--etcd is not valid: {error}"),
                "write etcd://HOST:PORT/PREFIX, or etcds:// for TLS",
            )
        })?;
        Ok(Announcement {
            etcd,
            role: self.role,
            url: self.url,
            name: self.name,
            tls: UpstreamTls { ca: self.upstream_ca, client: self.client.pair()?, ..UpstreamTls::default() },
        })
    }
}

async fn until_stopped(announcement: Announcement) -> Result<(), Failure> {
    let mut stop = StopSignals::new().map_err(no_runtime)?;
    let mut second_stop = StopSignals::new().map_err(no_runtime)?;
    let line =
        format!("announcing the {} server {} at {}", announcement.role.name(), announcement.url, announcement.etcd);
    let announcing = announce(announcement, async {
        eprintln!("{line}");
        stop.next().await;
    });
    let cut = async {
        second_stop.next().await;
        second_stop.next().await;
    };
    tokio::select! {
        announced = announcing => announced.map_err(|error| match error {
            AnnounceError::Name(_) => {
                Failure::input(error.to_string(), "choose another name, for example --name decode-0")
            }
            error => Failure::no(
                chain(&error),
                "name existing, readable certificates in PEM",
            ),
        }),
        () = cut => Err(Failure::no(
            "stopped by a second signal: the announcement was not withdrawn",
            "it expires by itself within 10 s",
        )),
    }
}
