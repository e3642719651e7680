//! The two sides of a plan: deployment documents, or a model and how each side serves it.

use std::io;
use std::path::{Display, Path, PathBuf};

use transload::document::{self, DocumentError};
use transload::layout::Deployment;
use transload::layout::catalog::Model;

use super::Args;
use super::description::Description;
use crate::commands::model;
use crate::failure::Failure;

/// The source and the destination.
pub(super) fn read(args: &Args) -> Result<[Deployment; 2], Failure> {
    let files = [&args.from, &args.to];
    if files
        .iter()
        .all(|file| file.as_deref().is_some_and(is_stdin))
    {
        return Err(Failure::input(
            "--from and --to are both -, but stdin is one document",
            "name a file for one of them",
        ));
    }
    let described = args.from_side.is_some() || args.to_side.is_some();
    let model = match args.config.is_some() || args.model.has_spec() {
        true if !described => {
            return Err(Failure::input(
                "there is a model, but no side that serves it",
                "describe the sides: --from-side tp=4,block=16 --to-side tp=8,block=64",
            ));
        }
        true => Some(args.model.read(args.config.as_deref())?),
        false => None,
    };
    if let Some((described, called)) = &model {
        model::check_plannable(described, called)?;
    }
    let mut sides = [None, None];
    for (side, file) in sides.iter_mut().zip(files) {
        *side = file.as_deref().map(read_document).transpose()?;
    }
    // Without a config, a described side serves what the other one's document is about.
    let model = model.or_else(|| {
        let (side, file) = sides.iter().zip(files).find(|(side, _)| side.is_some())?;
        let called = called(file.as_deref()?).to_string();
        Some((Model::of_deployment(side.as_ref()?), called))
    });
    let request = args.request();
    let tokens = request.start.saturating_add(request.tokens);
    let room = tokens.saturating_mul(if args.scattered { 2 } else { 1 });
    let serve = |side: Option<Deployment>, description: &Option<Description>, flag: &str| match (
        side,
        description,
        &model,
    ) {
        (Some(side), _, _) => Ok(side),
        (None, Some(Description(serving)), Some((model, called))) => {
            model::served(model, called, serving, room)
        }
        (None, Some(_), None) => Err(Failure::input(
            "the sides are described, but there is no model that they serve",
            "name its config.json, or describe its caches with --spec",
        )),
        (None, None, _) => Err(Failure::input(
            format!("nothing says what the {flag} side is"),
            format!(
                "name its document with --{flag}, or describe it with --{flag}-side tp=4,block=16"
            ),
        )),
    };
    let [src, dst] = sides;
    Ok([
        serve(src, &args.from_side, "from")?,
        serve(dst, &args.to_side, "to")?,
    ])
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What messages call a document.
fn called(path: &Path) -> Display<'_> {
    match is_stdin(path) {
        true => Path::new("stdin").display(),
        false => path.display(),
    }
}

/// What messages call a side: its document, or the part that it plays.
pub(super) fn named(file: &Option<PathBuf>, part: &str) -> String {
    match file {
        Some(file) => called(file).to_string(),
        None => part.to_owned(),
    }
}

/// A deployment from a file, or from stdin where it is called `-`.
fn read_document(path: &Path) -> Result<Deployment, DocumentError> {
    match is_stdin(path) {
        // Not by the path that systems have for it: a socket cannot be opened.
        true => document::read_from("stdin", io::stdin().lock()),
        false => document::read(path),
    }
}
