//! Names the keys of a config that nobody read, though they may change what is cached.
//!
//! A config is about much more than caches, and a model's next release says new things in new keys. So what is
//! listed is what is harmless, and any other key is named. The list, `keys.txt`, is made from the config classes by
//! `tests/tools/config_classes.py`: keys that classes of known families have and the catalog reads of none, which
//! stand under `*`; and keys that it reads of some families only, which count for those families alone whose class
//! has them.

use super::config::Config;
use super::wrapper::TextPart;
use crate::document::Value;

const HARMLESS: &str = include_str!("keys.txt");

/// Paths of the keys, as they come: of the text model's table, the tables in it that were read, and those around it
/// that nobody knows.
pub(super) fn keys(part: &TextPart<'_>, config: &Config<'_>) -> Vec<String> {
    let mut unread = Vec::new();
    for (path, table, inwards) in &part.around {
        let harmless = |key: &str| key == *inwards || is_harmless("*", key);
        named(path, table, config, &harmless, &mut unread);
    }
    let harmless = |key: &str| is_harmless("*", key) || is_harmless(part.family, key);
    named(&config.path, config.table, config, &harmless, &mut unread);
    if let Some(key) = config.unknown_cache.get() {
        unread.push(format!("quantization_config.{key}"));
    }
    unread
}

fn named(path: &str, table: &Value, config: &Config<'_>, harmless: &dyn Fn(&str) -> bool, unread: &mut Vec<String>) {
    let Value::Table(entries) = table else {
        return;
    };
    for (key, value) in entries {
        let path = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        if config.read.borrow().contains(&path) {
            named(&path, value, config, harmless, unread);
        } else if says_something(value) && !harmless(key) {
            unread.push(path);
        }
    }
}

/// Whether a value is other than what a key means that is not there.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::Integer(0) => false,
        Value::Text(text) => !text.is_empty(),
        Value::List(items) => !items.is_empty(),
        Value::Table(entries) => !entries.is_empty(),
        _ => true,
    }
}

fn is_harmless(family: &str, key: &str) -> bool {
    let lines = HARMLESS.lines().filter_map(|line| line.split_once(": "));
    let mut of_family = lines.filter(|(name, _)| *name == family);
    of_family.any(|(_, keys)| keys.split(' ').any(|known| known == key))
}
