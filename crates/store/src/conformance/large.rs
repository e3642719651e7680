//! Items about large values. They run last because they take longest.

use super::context::Context;
use super::item::{Item, must};
use super::outcome::Outcome;

pub(super) const ITEMS: &[Item] = &[
    must("large-chunk", "a chunk of 64 MiB works like any other", chunk),
    must("large-manifest", "a manifest of a few MiB works like any other", manifest),
];

fn chunk(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let data = context.random().bytes(context.options().large);
    let hash = context.hash(32)?;
    store.put(&hash, &data)?;
    store.put_manifest(&context.name("/large-chunk")?, hash.as_bytes())?;
    store.expect(&hash, &data, "after put_manifest")?;
    context.open()?.expect(&hash, &data, "on another handle")?;
    Ok(format!("{} bytes came back", data.len()))
}

fn manifest(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let name = context.name("/large-manifest")?;
    let data = context.random().bytes(context.options().large / 16);
    store.put_manifest(&name, &data)?;
    context.open()?.expect_manifest(&name, &data, "on another handle")?;
    store.put_manifest(&name, b"short")?;
    store.expect_manifest(&name, b"short", "after a short one replaced it")?;
    Ok(format!("{} bytes came back", data.len()))
}
