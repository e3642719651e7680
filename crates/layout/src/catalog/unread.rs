//! Keys of a config that were not read and may change what is cached.
//!
//! A config describes much more than caches, and a model's next release has new keys. So this module lists harmless
//! keys and reports all others. The list, `keys.txt`, is generated from the config classes by
//! `tests/tools/config_classes.py`. Under `*` are the keys of known families' classes that the catalog never reads.
//! Keys that it reads for some families only are listed under each other family whose class has them.

use super::config::Config;
use super::wrapper::TextPart;
use crate::document::Value;

const HARMLESS: &str = include_str!("keys.txt");

/// Returns the paths of the unread keys in order: of the text model's table, of the tables in it that were read, and of
/// unknown tables around it.
pub(super) fn keys(part: &TextPart<'_>, config: &Config<'_>) -> Vec<String> {
    let mut unread = Vec::new();
    for (path, table, inwards) in &part.around {
        let harmless = |key: &str| key == *inwards || is_harmless("*", key);
        collect(path, table, config, &harmless, &mut unread);
    }
    let harmless = |key: &str| is_harmless("*", key) || is_harmless(part.family, key);
    collect(&config.path, config.table, config, &harmless, &mut unread);
    if let Some(key) = config.unknown_cache.get() {
        unread.push(format!("quantization_config.{key}"));
    }
    unread
}

fn collect(path: &str, table: &Value, config: &Config<'_>, harmless: &dyn Fn(&str) -> bool, unread: &mut Vec<String>) {
    let Value::Table(entries) = table else {
        return;
    };
    for (key, value) in entries {
        let path = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        if config.read.borrow().contains(&path) {
            collect(&path, value, config, harmless, unread);
        } else if says_something(value) && !harmless(key) {
            unread.push(path);
        }
    }
}

/// Tells whether a value differs from what an absent key means.
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
