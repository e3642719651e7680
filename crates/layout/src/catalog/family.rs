//! Families that cache in the same way.

use super::config::{Config, ConfigError, Presets};
use super::layers::Layers;

pub(super) type Caches = fn(&Config<'_>) -> Result<Layers, ConfigError>;

pub(super) struct Kin {
    pub(super) members: &'static [(&'static str, Presets)],
    pub(super) caches: Caches,
}

impl Kin {
    pub(super) fn member(&self, family: &str) -> Option<(Caches, Presets)> {
        let member = self.members.iter().find(|(name, _)| *name == family);
        member.map(|(_, presets)| (self.caches, *presets))
    }
}
