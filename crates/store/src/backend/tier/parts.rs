//! The grammar of `tier://[CAP=]URI,…`.

use crate::size;
use crate::uri::{StoreUri, UriError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) cap: Option<u64>,
    pub(crate) uri: StoreUri,
}

pub(crate) fn is_tier(scheme: &str) -> bool {
    ["tier", "tier+back"].contains(&scheme)
}

/// Parses a tier's URI. A comma inside a part is written `%2C`.
///
/// # Errors
/// [`UriError::Secret`] if any part contains a password, before another error could repeat it; otherwise the first
/// error.
pub(crate) fn parse(uri: &StoreUri) -> Result<Vec<Part>, UriError> {
    let texts: Vec<(Option<&str>, String)> = uri.rest().split(',').map(cap_and_uri).collect();
    // What looks like a cap may be the beginning of a URI's user information.
    let parse = |(cap, text): &(Option<&str>, String)| match cap {
        Some(cap) if cap.contains('@') => Err(UriError::Secret),
        _ => text.parse(),
    };
    let uris: Vec<_> = texts.iter().map(parse).collect();
    if uris.contains(&Err(UriError::Secret)) {
        return Err(UriError::Secret);
    }
    if uri.rest().is_empty() {
        return Err(uri.wrong("it names no store: write tier://8GiB=memory://,file:///var/kv, the fastest first"));
    }
    let mut parts: Vec<Part> = Vec::new();
    for ((cap, text), parsed) in texts.iter().zip(uris) {
        if cap.is_none() && text.is_empty() {
            return Err(uri.wrong("there is nothing before or behind one of its commas"));
        }
        let part: StoreUri = parsed?;
        if is_tier(part.scheme()) {
            return Err(uri.wrong("there are tiers in it that have tiers: name all stores in one list"));
        }
        let is_memory = part.scheme() == "memory";
        if parts.iter().any(|other| other.uri == part || is_memory && other.uri.scheme() == "memory") {
            return Err(uri.wrong(format!("{} is in it twice", part.scheme())));
        }
        parts.push(Part { cap: cap.map(|cap| parse_cap(uri, &part, cap)).transpose()?, uri: part });
    }
    Ok(parts)
}

fn cap_and_uri(part: &str) -> (Option<&str>, String) {
    let scheme = part.split_once("://").map_or("", |(before, _)| before);
    let (cap, uri) = match scheme.split_once('=') {
        Some((cap, _)) => (Some(cap), &part[cap.len() + 1..]),
        None => (None, part),
    };
    (cap, uri.replace("%2C", ",").replace("%2c", ","))
}

fn parse_cap(uri: &StoreUri, part: &StoreUri, cap: &str) -> Result<u64, UriError> {
    if !["memory", "file"].contains(&part.scheme()) {
        return Err(uri.wrong(format!("a store of `{}` takes no cap", part.scheme())));
    }
    match size::parse(cap) {
        Err(why) => Err(uri.wrong(format!("its cap: {why}"))),
        Ok(0) => Err(uri.wrong("a tier with a cap of 0 keeps nothing")),
        Ok(cap) => Ok(cap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> Result<Vec<(Option<u64>, String)>, UriError> {
        let parts = parse(&text.parse()?)?;
        let parts = parts.into_iter();
        Ok(parts.map(|part| (part.cap, part.uri.to_string())).collect())
    }

    #[test]
    fn is_a_list_of_uris_with_caps() {
        let three = "tier://8GiB=memory://,500GiB=file:///var/kv,s3://bucket/kv";
        let expected = [(Some(8 << 30), "memory://"), (Some(500 << 30), "file:///var/kv"), (None, "s3://bucket/kv")];
        let expected: Vec<_> = expected.map(|(cap, uri)| (cap, uri.to_owned())).into();
        assert_eq!(parts(three), Ok(expected));
        let odd = "tier+back://1.5KiB=file:///a%2Cb=c%2c%25,redis://u@h:1/0,foo://x?y=z";
        let expected = [(Some(1536), "file:///a,b=c,%25"), (None, "redis://u@h:1/0"), (None, "foo://x?y=z")];
        let expected: Vec<_> = expected.map(|(cap, uri)| (cap, uri.to_owned())).into();
        assert_eq!(parts(odd), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (uri, told) in [
            ("tier://", "names no store"),
            ("tier://,", "commas"),
            ("tier://memory://,", "commas"),
            ("tier://,memory://", "commas"),
            ("tier://memory://,,file:///a", "commas"),
            ("tier://memory://,tier://file:///a", "tiers in it"),
            ("tier://tier+back://memory://", "tiers in it"),
            ("tier://memory://,1GiB=memory://b", "memory is in it twice"),
            ("tier://file:///a,file:///a", "file is in it twice"),
            ("tier://0=memory://,file:///a", "a cap of 0"),
            ("tier://0GiB=file:///a", "a cap of 0"),
            ("tier://=memory://", "its cap: \"\" is not a size"),
            ("tier://8=memory://", "write 8GiB"),
            ("tier://much=memory://", "\"much\" is not a size"),
            ("tier://-1=memory://", "\"-1\" is not a size"),
            ("tier://1GiB=redis://host", "`redis` takes no cap"),
            ("tier://1GiB=s3://bucket", "`s3` takes no cap"),
            ("tier://8GiB=memory", "begins with a scheme"),
            ("tier:///var/kv", "begins with a scheme"),
            ("tier://memory://,1GiB=", "begins with a scheme"),
        ] {
            let error = parts(uri).unwrap_err().to_string();
            assert!(error.contains(told), "{uri}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_password_is_repeated(
            before in prop::collection::vec(
                prop::sample::select(vec!["memory://", "1GiB=file:///a", "", "x", "tier://", "0=memory://"]), 0..3),
            secret in prop::sample::select(vec![
                "redis://:hunter2@host", "5=redis://me:hunter2@host/0", "me:hunter2@host",
                "redis://:hun,hunter2@host", "redis://a:hunter2%2C@host", "me:hunter2@host=file:///a"]),
            after in prop::sample::select(vec!["", ",", ",file:///b", ",://"]),
        ) {
            let text = format!("tier://{},{secret}{after}", before.join(","));
            let error = parts(&text).unwrap_err();
            prop_assert!(!error.to_string().contains("hunter2"), "{text}: {error}");
            prop_assert_eq!(error, UriError::Secret);
        }

        #[test]
        fn any_text_is_read(rest in "[a-z0-9:/,=%2C@G. ]{0,40}") {
            let _ = parts(&format!("tier://{rest}"));
        }
    }
}
