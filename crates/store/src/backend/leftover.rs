//! Manifests that a collection removes once they are unused for the grace period.

/// The prefix of the names of an archive's manifests. The version and a `/` follow.
const ARCHIVE: &str = "transload.archive/";

/// The version of the archive's format that this crate reads.
const VERSION: u32 = 2;

/// Tells whether a manifest of this name is removed once it is unused for the grace period. That holds for parts of a
/// save, which the rank that publishes the save normally removes, and for all manifests of older archive formats. The
/// name may have a prefix in front.
pub fn is_leftover(name: &str) -> bool {
    let Some((before, rest)) = name.rsplit_once(ARCHIVE) else {
        return false;
    };
    let Some((version, own)) = rest.split_once('/') else {
        return false;
    };
    let whole = before.is_empty() || before.ends_with('/');
    let Some(version) = (0..=VERSION).find(|known| whole && known.to_string() == version) else {
        return false;
    };
    let part = own.strip_prefix("part/");
    let digest = part.unwrap_or(own);
    let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_digest && (part.is_some() || version < VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_earlier_versions_are_left_over() {
        let digest = "0f".repeat(32);
        for (name, leftover) in [
            (format!("transload.archive/2/part/{digest}"), true),
            (format!("slot1/transload.archive/2/part/{digest}"), true),
            (format!("transload.archive/2/{digest}"), false),
            (format!("transload.archive/1/{digest}"), true),
            (format!("transload.archive/1/part/{digest}"), true),
            (format!("transload.archive/3/part/{digest}"), false),
            ("transload.archive/1/notes".to_owned(), false),
            (format!("transload.archive/2/part/{digest}/x"), false),
            (format!("part/{digest}"), false),
            (format!("my-transload.archive/1/{digest}"), false),
            (format!("transload.archive/+1/{digest}"), false),
            (format!("transload.archive/01/{digest}"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_leftover(&name), leftover, "{name}");
        }
    }
}
