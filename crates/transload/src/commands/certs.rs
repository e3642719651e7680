//! `transload certs`: the certificates that agents prove themselves with.

use std::collections::HashSet;
use std::fmt::Write;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Subcommand, ValueHint};
use serde::Serialize;
use transload::transfer::identity::{
    Authority, AuthorityError, IdentityFileError, Role, Roles, UnknownRole, Validity,
    random_cluster_name,
};
use transload::transfer::ids::{AgentId, ClusterName, NameError};

use crate::failure::{Failure, chain};
use crate::output::Output;
use crate::show::table::{Lean, Table};

const EXAMPLES: &str = "\
Examples:
  transload certs init certs
  transload certs init certs --cluster blue --agent prefill-0=serve --agent decode-0=pull,renew
  transload certs add certs decode-1=pull,renew

Roles:
  serve   hold leases of its own blocks, for others to pull from or push to
  pull    read leased blocks of others into its own
  push    write into blocks that others have opened for it
  renew   prolong leases
  map     map memory that its owner registered as shared, read-only, on the same host

Copy to each host what its agent needs and no more: ca.pem, ticket.key, NAME.pem and NAME.key.
ca.key makes further agents; keep it where no engine runs.";

const INIT: &str = "\
Examples:
  transload certs init certs
  transload certs init certs --cluster blue --agent prefill-0=serve --agent decode-0=pull,renew

`transload certs --help` lists the roles.";

const ADD: &str = "\
Examples:
  transload certs add certs decode-1=pull,renew

`transload certs --help` lists the roles.";

/// Make the certificates that agents prove themselves with.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a certificate authority and agents of it.
    #[command(after_help = INIT)]
    Init {
        /// Folder for the files, made if need be; nothing in it is overwritten.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Name of the cluster; agents of other clusters are refused. Default: a random one.
        #[arg(long, value_name = "NAME")]
        cluster: Option<ClusterName>,
        /// An agent and its roles; may be repeated.
        #[arg(long = "agent", value_name = "NAME=ROLES", default_values = DEFAULT_AGENTS)]
        agents: Vec<NewAgent>,
        /// Days that the agents' certificates are valid.
        #[arg(long, default_value_t = 365, value_name = "N", value_parser = days())]
        days: u32,
    },
    /// Make further agents of an authority that `init` made.
    #[command(after_help = ADD)]
    Add {
        /// The folder that `init` filled.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// An agent and its roles; may be repeated.
        #[arg(value_name = "NAME=ROLES", required = true)]
        agents: Vec<NewAgent>,
        /// Days that the certificates are valid.
        #[arg(long, default_value_t = 365, value_name = "N", value_parser = days())]
        days: u32,
    },
}

/// Either may pull or be pushed to; only decode may map memory that prefill has shared.
const DEFAULT_AGENTS: [&str; 2] = ["prefill=serve,push,renew", "decode=serve,pull,renew,map"];

/// An agent is never valid for longer than its authority, which gets ten years.
fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=3650)
}

/// An agent to make: `decode-0=pull,renew`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewAgent {
    name: AgentId,
    roles: Roles,
}

impl FromStr for NewAgent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, roles) = text
            .split_once('=')
            .ok_or("an agent is given as NAME=ROLES, for instance decode-0=pull,renew")?;
        let name = name.parse().map_err(|e: NameError| e.to_string())?;
        let roles: Roles = roles.parse().map_err(|e: UnknownRole| e.to_string())?;
        if roles == Roles::NONE {
            return Err(
                "an agent without a role may do nothing; give it one: NAME=pull".to_owned(),
            );
        }
        Ok(Self { name, roles })
    }
}

pub(crate) fn run(args: Args, output: &mut Output) -> Result<(), Failure> {
    let (dir, authority, is_new, agents, days) = match args.action {
        Action::Init {
            dir,
            cluster,
            agents,
            days,
        } => (
            dir,
            new_authority(cluster).map_err(unmade)?,
            true,
            agents,
            days,
        ),
        Action::Add { dir, agents, days } => {
            let authority = Authority::load(&dir).map_err(|error| unusable(&error, false))?;
            (dir, authority, false, agents, days)
        }
    };
    if let Some(twice) = first_repeated(&agents) {
        return Err(Failure::input(
            format!("agent {twice} is given twice"),
            "give each agent once, with all its roles: NAME=ROLE,ROLE",
        ));
    }
    // Before anything is written: the folder's own files have these names.
    if let Some(agent) = agents
        .iter()
        .find(|a| ["ca", "ticket"].contains(&a.name.as_str()))
    {
        let name = agent.name.to_string();
        return Err(unusable(&IdentityFileError::ReservedName(name), is_new));
    }
    let identities = agents
        .iter()
        .map(|agent| authority.issue_for(&agent.name, agent.roles, Validity::days(days)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(unmade)?;
    if is_new {
        authority
            .save(&dir)
            .map_err(|error| unusable(&error, is_new))?;
    }
    for identity in identities {
        identity
            .save(&dir)
            .map_err(|error| unusable(&error, is_new))?;
    }
    let made = Made::new(&dir, &authority, &agents, days);
    output.show(|| &made, || made.table())?;
    Ok(())
}

fn new_authority(cluster: Option<ClusterName>) -> Result<Authority, AuthorityError> {
    match cluster {
        Some(cluster) => Authority::new(cluster),
        None => Authority::new(random_cluster_name()?),
    }
}

fn first_repeated(agents: &[NewAgent]) -> Option<&AgentId> {
    let mut seen = HashSet::new();
    agents
        .iter()
        .map(|agent| &agent.name)
        .find(|name| !seen.insert(*name))
}

/// What was made, as printed.
#[derive(Debug, Serialize)]
struct Made {
    schema: &'static str,
    dir: PathBuf,
    cluster: String,
    valid_days: u32,
    agents: Vec<MadeAgent>,
}

#[derive(Debug, Serialize)]
struct MadeAgent {
    name: String,
    roles: Vec<&'static str>,
    certificate: PathBuf,
    key: PathBuf,
}

impl Made {
    fn new(dir: &Path, authority: &Authority, agents: &[NewAgent], valid_days: u32) -> Self {
        let agents = agents.iter().map(|agent| MadeAgent {
            name: agent.name.to_string(),
            roles: agent.roles.iter().map(Role::name).collect(),
            certificate: dir.join(format!("{}.pem", agent.name)),
            key: dir.join(format!("{}.key", agent.name)),
        });
        Self {
            schema: "transload.certs/1",
            dir: dir.to_owned(),
            cluster: authority.cluster().to_string(),
            valid_days,
            agents: agents.collect(),
        }
    }

    fn table(&self) -> String {
        let mut table = Table::new(&[
            ("agent", Lean::Left),
            ("roles", Lean::Left),
            ("certificate", Lean::Left),
            ("key", Lean::Left),
        ]);
        for agent in &self.agents {
            table.row([
                agent.name.as_str(),
                &agent.roles.join(" "),
                &agent.certificate.display().to_string(),
                &agent.key.display().to_string(),
            ]);
        }
        let mut text = table.finish();
        let (cluster, days, dir) = (&self.cluster, self.valid_days, self.dir.display());
        let _ = writeln!(text, "\n cluster {cluster}, valid for {days} days");
        let _ = writeln!(
            text,
            " a host needs {dir}/ca.pem, {dir}/ticket.key and its agent's two files; keep {dir}/ca.key away from hosts"
        );
        text
    }
}

fn unmade(error: AuthorityError) -> Failure {
    Failure::input(
        format!("the certificates could not be made: {}", chain(&error)),
        "the clock may be wrong, or the system out of randomness",
    )
}

fn unusable(error: &IdentityFileError, is_new: bool) -> Failure {
    let right = match error {
        IdentityFileError::Exists { .. } if !is_new => {
            "nothing is overwritten: give the agent another name, or move its files away first"
        }
        IdentityFileError::Io { source, .. } if !is_new && source.kind() == NotFound => {
            "make a folder with `transload certs init` first"
        }
        IdentityFileError::Exists { .. } => {
            "nothing is overwritten, since it may be the only copy of a key: \
             name a new folder, or add agents with `transload certs add`"
        }
        IdentityFileError::ReservedName(_) => "give the agent another name",
        IdentityFileError::Io { .. } => "name a folder that exists and may be written to",
        _ => "name a folder that `transload certs init` filled",
    };
    Failure::input(chain(error), right)
}
