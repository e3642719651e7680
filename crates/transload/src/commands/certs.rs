//! `transload certs`: creates and lists the certificates of agents.

use std::collections::HashSet;
use std::fmt::Write;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Subcommand, ValueHint};
use serde::Serialize;
use transload::transfer::internal::identity::{names_in, open_keys, random_cluster_name};
use transload::transfer::plan::ids::NameError;
use transload::transfer::wire::UnknownRole;
use transload::transfer::{
    Authority, AuthorityError, ClusterName, Identity, IdentityFileError, Role, Roles, ServiceName, Validity,
};

use crate::failure::{Failure, chain};
use crate::output::Output;
use crate::show::table::Table;
use crate::show::time::utc;

const EXAMPLES: &str = "\
Examples:
  transload certs init certs
  transload certs init certs --cluster blue --agent prefill-0=serve --agent decode-0=pull,renew
  transload certs add certs decode-1=pull,renew
  transload certs ls certs

Roles:
  serve   lease its own blocks, for other agents to pull from or push to
  pull    read other agents' leased blocks into its own
  push    write into blocks that other agents have leased for writing
  renew   extend leases

Copy to each host only what its agent needs: ca.pem, ticket.key, NAME.pem and NAME.key.
ca.key can create more agents; keep it away from hosts that run engines.";

const INIT: &str = "\
Examples:
  transload certs init certs
  transload certs init certs --cluster blue --agent prefill-0=serve --agent decode-0=pull,renew

`transload certs --help` lists the roles.";

const ADD: &str = "\
Examples:
  transload certs add certs decode-1=pull,renew

`transload certs --help` lists the roles.";

/// Create and list the certificates that identify agents.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a certificate authority and certificates for agents.
    #[command(after_help = INIT)]
    Init {
        /// Folder for the files, created if it does not exist; existing files are never overwritten.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Name of the cluster; its agents refuse agents of other clusters. Default: a random name.
        #[arg(long, value_name = "NAME")]
        cluster: Option<ClusterName>,
        /// Agent and its roles; may be repeated.
        #[arg(long = "agent", value_name = "NAME=ROLES", default_values = DEFAULT_AGENTS)]
        agents: Vec<NewAgent>,
        /// Validity of the agents' certificates in days.
        #[arg(long, default_value_t = 365, value_name = "N", value_parser = days())]
        days: u32,
    },
    /// Create certificates for more agents, signed by the authority that `init` created.
    #[command(after_help = ADD)]
    Add {
        /// Folder that `init` created.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Agent and its roles; may be repeated.
        #[arg(value_name = "NAME=ROLES", required = true)]
        agents: Vec<NewAgent>,
        /// Validity of the certificates in days.
        #[arg(long, default_value_t = 365, value_name = "N", value_parser = days())]
        days: u32,
    },
    /// List the certificates in a folder with their expiry dates, and warn about keys that other users can read.
    Ls {
        /// Folder with certificates: the one that `init` created, or that of a host.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// The default agents: decode may pull from prefill, and prefill may push to decode.
const DEFAULT_AGENTS: [&str; 2] = ["prefill=serve,push,renew", "decode=serve,pull,renew"];

/// Limits validity to ten years, that of the authority.
fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=3650)
}

/// An agent to create, typed as `decode-0=pull,renew`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewAgent {
    name: ServiceName,
    roles: Roles,
}

impl FromStr for NewAgent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, roles) =
            text.split_once('=').ok_or("write an agent as NAME=ROLES, for example decode-0=pull,renew")?;
        let name = name.parse().map_err(|e: NameError| e.to_string())?;
        let roles: Roles = roles.parse().map_err(|e: UnknownRole| e.to_string())?;
        if roles == Roles::NONE {
            return Err("an agent needs at least one role: NAME=pull".to_owned());
        }
        Ok(Self { name, roles })
    }
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let (dir, authority, is_new, agents, days) = match args.action {
        Action::Init { dir, cluster, agents, days } => {
            (dir, new_authority(cluster).map_err(unmade)?, true, agents, days)
        }
        Action::Add { dir, agents, days } => {
            let authority = Authority::load(&dir).map_err(|error| unusable(&error, false))?;
            (dir, authority, false, agents, days)
        }
        Action::Ls { dir } => return list(&dir, output),
    };
    if let Some(twice) = first_repeated(&agents) {
        return Err(Failure::input(
            format!("agent {twice} is given twice"),
            "name each agent once, with all its roles: NAME=ROLE,ROLE",
        ));
    }
    // Checked before anything is written: the folder's own files have these names.
    if let Some(agent) = agents.iter().find(|a| ["ca", "ticket"].contains(&a.name.as_str())) {
        let name = agent.name.to_string();
        return Err(unusable(&IdentityFileError::ReservedName(name), is_new));
    }
    let identities = agents
        .iter()
        .map(|agent| authority.issue_for(&agent.name, agent.roles, Validity::days(days)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(unmade)?;
    if is_new {
        authority.save(&dir).map_err(|error| unusable(&error, is_new))?;
    }
    for identity in &identities {
        identity.save(&dir).map_err(|error| unusable(&error, is_new))?;
    }
    let mut listing = Listing::new(&dir, &identities).map_err(|error| unusable(&error, is_new))?;
    listing.valid_days = Some(days);
    listing.authority_expires = Some(unix(authority.valid_until()));
    listing.print(output)
}

/// Lists a folder's agents. It does not need the authority's key, which hosts do not have.
fn list(dir: &Path, output: &mut Output) -> Result<(), Failure> {
    let unusable = |error| unusable(&error, false);
    let mut identities = Vec::new();
    for name in names_in(dir).map_err(unusable)? {
        let name = name.parse().map_err(IdentityFileError::Name);
        let identity = name.and_then(|name| Identity::load_agent(dir, &name));
        identities.push(identity.map_err(unusable)?);
    }
    if identities.is_empty() {
        return Err(Failure::input(
            format!("{} contains no agent certificate", dir.display()),
            "name a folder that `transload certs init` created",
        ));
    }
    Listing::new(dir, &identities).map_err(unusable)?.print(output)
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn new_authority(cluster: Option<ClusterName>) -> Result<Authority, AuthorityError> {
    match cluster {
        Some(cluster) => Authority::new(cluster),
        None => Authority::new(random_cluster_name()?),
    }
}

fn first_repeated(agents: &[NewAgent]) -> Option<&ServiceName> {
    let mut seen = HashSet::new();
    agents.iter().map(|agent| &agent.name).find(|name| !seen.insert(*name))
}

#[derive(Debug, Serialize)]
struct Listing {
    schema: &'static str,
    dir: PathBuf,
    cluster: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_days: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authority_expires: Option<u64>,
    agents: Vec<Listed>,
    open_keys: Vec<OpenKey>,
}

#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    roles: Vec<&'static str>,
    expires: u64,
    certificate: PathBuf,
    key: PathBuf,
}

/// A key file that users other than its owner can read.
#[derive(Debug, Serialize)]
struct OpenKey {
    path: PathBuf,
    mode: String,
}

impl Listing {
    fn new(dir: &Path, identities: &[Identity]) -> Result<Self, IdentityFileError> {
        let agents = identities.iter().map(|identity| {
            let peer = identity.peer();
            Listed {
                name: peer.service.to_string(),
                roles: peer.roles.iter().map(Role::name).collect(),
                expires: unix(identity.valid_until()),
                certificate: dir.join(format!("{}.pem", peer.service)),
                key: dir.join(format!("{}.key", peer.service)),
            }
        });
        let open_keys = open_keys(dir)?.into_iter().map(|(path, mode)| OpenKey { path, mode: format!("{mode:04o}") });
        Ok(Self {
            schema: "transload.certs/1",
            dir: dir.to_owned(),
            cluster: identities.first().map_or_else(String::new, |first| first.peer().cluster.to_string()),
            valid_days: None,
            authority_expires: None,
            agents: agents.collect(),
            open_keys: open_keys.collect(),
        })
    }

    fn print(&self, output: &mut Output) -> Result<(), Failure> {
        for OpenKey { path, mode } in &self.open_keys {
            let path = path.display();
            eprintln!("warning: {path} has mode {mode}: other users can read this key; run chmod 600 {path}");
        }
        output.show(|| self, || self.table())?;
        Ok(())
    }

    fn table(&self) -> String {
        let mut table = Table::new("agent|roles|expires|certificate|key");
        for agent in &self.agents {
            table.row([
                agent.name.as_str(),
                &agent.roles.join(" "),
                &utc(agent.expires),
                &agent.certificate.display().to_string(),
                &agent.key.display().to_string(),
            ]);
        }
        let mut text = table.finish();
        let _ = write!(text, "\n cluster {}", self.cluster);
        if let Some(expires) = self.authority_expires {
            let dir = self.dir.display();
            let _ = write!(
                text,
                "; its authority expires {}\n a host needs {dir}/ca.pem, {dir}/ticket.key and its agent's two \
                 files; keep {dir}/ca.key off hosts that run engines",
                utc(expires)
            );
        }
        text.push('\n');
        text
    }
}

fn unmade(error: AuthorityError) -> Failure {
    Failure::input(
        format!("cannot create the certificates: {}", chain(&error)),
        "check the system's clock and its source of randomness",
    )
}

fn unusable(error: &IdentityFileError, is_new: bool) -> Failure {
    let right = match error {
        IdentityFileError::Exists { .. } if !is_new => {
            "existing files are never overwritten: choose another name for the agent, or move its files away first"
        }
        IdentityFileError::Io { source, .. } if !is_new && source.kind() == NotFound => {
            "create the folder with `transload certs init` first"
        }
        IdentityFileError::Exists { .. } => {
            "existing files are never overwritten, since one may be the only copy of a key: name a new folder, or \
             add agents with `transload certs add`"
        }
        IdentityFileError::ReservedName(_) => "choose another name for the agent",
        IdentityFileError::Io { .. } => "name an existing, writable folder",
        _ => "name a folder that `transload certs init` created",
    };
    Failure::input(chain(error), right)
}
