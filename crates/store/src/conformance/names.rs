//! Items about names of manifests: they are all distinct, and none is a path.

use super::context::Context;
use super::item::{Item, must, ours};
use super::outcome::{Outcome, Stop};
use crate::name::ManifestName;

pub(super) const ITEMS: &[Item] = &[
    must("names-case", "names are compared as bytes: two that differ in the case of a letter are different", case),
    ours(
        "names-distinct",
        "names that differ in one byte, in case, in escapes or in Unicode normalization are different",
        distinct,
    ),
    ours(
        "names-no-paths",
        "a name is never a path: `../x`, `/x`, `.`, `chunks` and the like are ordinary names",
        no_paths,
    ),
    ours("names-long", "names may have up to 1,024 bytes, and every byte distinguishes them", long),
];

/// Puts a manifest under each name, reads all, removes every other one and reads all again.
fn check_distinct(context: &Context<'_>, names: &[ManifestName]) -> Result<(), Stop> {
    let store = context.open()?;
    let value = |n: usize| format!("manifest {n}").into_bytes();
    for (n, name) in names.iter().enumerate() {
        store.expect_no_manifest(name, "after only other names were put")?;
        store.put_manifest(name, &value(n))?;
    }
    let other = context.open()?;
    for (n, name) in names.iter().enumerate() {
        other.expect_manifest(name, &value(n), "beside the others")?;
    }
    for name in names.iter().skip(1).step_by(2) {
        store.delete_manifest(name)?;
    }
    for (n, name) in names.iter().enumerate() {
        if n % 2 == 0 {
            other.expect_manifest(name, &value(n), "after others were deleted")?;
        } else {
            other.expect_no_manifest(name, "after it was deleted")?;
        }
    }
    Ok(())
}

fn case(context: &Context<'_>) -> Outcome {
    let rests = ["/a/b", "/A/b", "/a/B", "/A/B"];
    let names: Result<Vec<_>, _> = rests.iter().map(|rest| context.name(rest)).collect();
    check_distinct(context, &names?)?;
    Ok("four names that differ in case are different".into())
}

fn distinct(context: &Context<'_>) -> Outcome {
    let rests = [
        "/a/b",
        "/a%2Fb",
        "/a%2fb",
        "/a_b",
        "/a\\b",
        "/a:b",
        "/a.b",
        "/a-b",
        "/a+b",
        "/a b",
        "/A/b",
        "/a/B",
        "/A/B",
        "/a",
        "/a/",
        "/a//b",
        "/a/./b",
        "/a/../a/b",
        "/a/b/",
        "/a/b.",
        "/a/b ",
        " /a/b",
        "/a/b\t",
        "/a/b\n",
        "/a%",
        "/a%00",
        "/a%25",
        "/a%252F",
        "/a$",
        "/a~",
        "/a*",
        "/a?",
        "/a[b]",
        "/a{b}",
        "/a'",
        "/a\"",
        "/a\u{1}",
        "/a\u{7f}",
        "/é",
        "/e\u{301}",
        "/É",
        "/ß",
        "/ss",
        "/ı",
        "/i",
        "/ﬁ",
        "/fi",
        "/K",
        "/\u{212a}",
        "/ключ",
        "/鍵",
        "/🔑",
        "/\u{200b}",
        "/\u{feff}",
        "/\u{10ffff}",
        "/a.tmp",
        "/a.json",
        "",
    ];
    let names: Result<Vec<_>, _> = rests.iter().map(|rest| context.name(rest)).collect();
    check_distinct(context, &names?)?;
    Ok(format!("{} names that are alike are different", rests.len()))
}

fn no_paths(context: &Context<'_>) -> Outcome {
    let own = context.prefix();
    let mut names = Vec::new();
    for text in [
        format!("../{own}"),
        format!("../../../../../../tmp/{own}"),
        format!("/{own}"),
        format!("//{own}"),
        format!("./{own}"),
        format!("{own}/.."),
        format!("{own}/../.."),
        format!("{own}/../../x"),
        format!("{own}/."),
        format!("..\\{own}"),
        format!("C:\\{own}"),
        format!("~/{own}"),
        format!("-{own}"),
        format!("file:///{own}"),
        format!("chunks/{own}"),
        format!("manifests/{own}"),
        format!(".{own}"),
        format!("{own}*"),
    ] {
        names.push(context.exact_name(text)?);
    }
    // Another process may use these names, so they are tried only in a scratch store, and only if they are unused.
    let store = context.open()?;
    let mut taken = Vec::new();
    let common_names = ["", ".", "..", "/", "chunks", "manifests", "kv_store_format", "con", "nul"];
    let scratch = context.options().scratch;
    for text in common_names.into_iter().filter(|_| scratch) {
        match store.get_manifest(&ManifestName::new(text)?)? {
            None => names.push(context.exact_name(text.into())?),
            Some(_) => taken.push(text),
        }
    }
    drop(store);
    check_distinct(context, &names)?;
    let not_tried = match taken.len() {
        0 if scratch => String::new(),
        0 => "; those of everybody are tried only in a scratch store".into(),
        _ => format!("; not tried, since they are in use: {taken:?}"),
    };
    Ok(format!("{} names that look like paths are names{not_tried}", names.len()))
}

fn long(context: &Context<'_>) -> Outcome {
    let mut names = Vec::new();
    for len in [100, 128, 200, 240, 250, 255, 256, 257, 512, 1000, 1023, 1024] {
        for end in ["a", "b"] {
            let mut text = context.prefix();
            while text.len() < len - 1 {
                text.push('x');
            }
            names.push(context.exact_name(text + end)?);
        }
    }
    // Escaping makes these three times as long, or the folders deep.
    for filling in ["%", "é", "鍵", "a/", "../", " "] {
        let mut text = context.prefix();
        while text.len() + filling.len() < ManifestName::MAX {
            text.push_str(filling);
        }
        for end in ["1", "2"] {
            names.push(context.exact_name(format!("{text}{end}"))?);
        }
    }
    check_distinct(context, &names)?;
    Ok(format!("{} names of 100 to 1,024 bytes are different", names.len()))
}
