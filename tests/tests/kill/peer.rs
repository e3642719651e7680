//! Another process with an agent, as seen by the test's process.

use transload_layout::Rank;
use transload_tests::process::Other;
use transload_transfer::plan::ids::DeploymentDigest;
use transload_transfer::{AgentId, Incarnation, RankAddress};

use crate::siege::Siege;

pub(crate) struct Peer {
    process: Other,
    name: &'static str,
    port: u16,
    pub(crate) owner: DeploymentDigest,
}

impl Peer {
    pub(crate) async fn start(siege: &Siege, name: &'static str, ranks: &[Rank], incarnation: Incarnation) -> Self {
        let ranks: Vec<_> = ranks.iter().map(|rank| rank.0.to_string()).collect();
        let path = siege.path.map_or("any".to_owned(), |path| path.to_string());
        let on_gpu = if siege.gpu.is_some() { "1" } else { "0" };
        let patience = siege.patience.map_or(0, |patience| patience.as_secs());
        let patience = patience.to_string();
        let mut process = Other::start(
            "other::other_process",
            &[
                ("TRANSLOAD_TEST_FOLDER", siege.folder.path().to_str().unwrap()),
                ("TRANSLOAD_TEST_NAME", name),
                ("TRANSLOAD_TEST_RANKS", &ranks.join(",")),
                ("TRANSLOAD_TEST_LIFE", &incarnation.0.to_string()),
                ("TRANSLOAD_TEST_PATH", &path),
                ("TRANSLOAD_TEST_ON_GPU", on_gpu),
                ("TRANSLOAD_TEST_PATIENCE", &patience),
            ],
        );
        let said = process.hear().await.expect("it has started");
        let (port, digest) = said.split_once(' ').unwrap();
        let owner = |i| u8::from_str_radix(&digest[2 * i..2 * i + 2], 16).unwrap();
        Self { process, name, port: port.parse().unwrap(), owner: DeploymentDigest(std::array::from_fn(owner)) }
    }

    pub(crate) fn address(&self) -> RankAddress {
        RankAddress {
            agent: AgentId::new(format!("{}/0", self.name)).unwrap(),
            host: "127.0.0.1".to_owned(),
            port: self.port,
        }
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills the process with `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a line to the process, unless it is dead.
    pub(crate) fn say(&mut self, line: &str) {
        self.process.say(line);
    }

    /// Returns the next line that it says; `None` once it is dead.
    pub(crate) async fn hear(&mut self) -> Option<String> {
        self.process.hear().await
    }

    /// Checks that a process which was not killed ends normally.
    pub(crate) fn ended(self, victims: &[u32], round: u64) {
        if !victims.contains(&self.process.id()) {
            assert!(self.process.ended(), "round {round}: {} was not content", self.name);
        }
    }
}
