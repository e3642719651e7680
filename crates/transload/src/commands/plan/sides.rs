//! The two sides of a plan: deployment documents, or a model with a description of how each side serves it.

use std::io;
use std::path::{Display, Path, PathBuf};

use clap::ValueHint;
use tracing::info;
use transload::document::{self, DocumentError};
use transload::layout::Deployment;
use transload::layout::catalog::Model;

use super::description::Description;
use crate::commands::model::{self, ModelArgs};
use crate::failure::Failure;

/// What the two sides are.
#[derive(Debug, clap::Args)]
pub(super) struct SideArgs {
    /// Model that --from-side and --to-side serve: its config.json, or the folder that contains it; - reads stdin.
    /// Default: the model of the other side's document.
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    #[command(flatten)]
    model: ModelArgs,

    /// Deployment document of the source, TOML or JSON; - reads stdin, for one side only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    from: Option<PathBuf>,

    /// Deployment document of the destination, TOML or JSON; - reads stdin, for one side only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    to: Option<PathBuf>,

    /// Short description of the source, in place of --from: tp=4,block=16,order=NHD.
    #[arg(long, value_name = "SIDE", conflicts_with = "from")]
    from_side: Option<Description>,

    /// Short description of the destination, in place of --to: tp=8,block=64,order=HND.
    #[arg(long, value_name = "SIDE", conflicts_with = "to")]
    to_side: Option<Description>,
}

impl SideArgs {
    /// Reads the source and the destination. Described sides get room for this many tokens.
    pub(super) fn read(&self, room: u64) -> Result<[Deployment; 2], Failure> {
        let files = [&self.from, &self.to];
        if files.iter().all(|file| file.as_deref().is_some_and(is_stdin)) {
            return Err(Failure::input(
                "--from and --to are both -, but stdin can be only one document",
                "name a file for one of them",
            ));
        }
        let described = self.from_side.is_some() || self.to_side.is_some();
        let model = match self.config.is_some() || self.model.has_spec() {
            true if !described => {
                return Err(Failure::input(
                    "a model is given, but no side that serves it",
                    "describe the sides: --from-side tp=4,block=16 --to-side tp=8,block=64",
                ));
            }
            true => Some(self.model.read(self.config.as_deref())?),
            false => None,
        };
        if let Some((described, called)) = &model {
            model::check_plannable(described, called)?;
        }
        let mut sides = [None, None];
        for (side, file) in sides.iter_mut().zip(files) {
            *side = file.as_deref().map(read_document).transpose()?;
        }
        // Without a config, a described side serves the model of the other side's document.
        let model = model.or_else(|| {
            let (side, file) = sides.iter().zip(files).find(|(side, _)| side.is_some())?;
            let called = called(file.as_deref()?).to_string();
            Some((Model::of_deployment(side.as_ref()?), called))
        });
        let serve =
            |side: Option<Deployment>, description: &Option<Description>, flag: &str| match (side, description, &model)
            {
                (Some(side), _, _) => Ok(side),
                (None, Some(Description(serving)), Some((model, called))) => {
                    model::served(model, called, serving, room)
                }
                (None, Some(_), None) => Err(Failure::input(
                    "the sides are described, but no model is given",
                    "name its config.json, or describe its caches with --spec",
                )),
                (None, None, _) => Err(Failure::input(
                    format!("the {flag} side is missing"),
                    format!("name its document with --{flag}, or describe it with --{flag}-side tp=4,block=16"),
                )),
            };
        let [src, dst] = sides;
        let sides = [serve(src, &self.from_side, "from")?, serve(dst, &self.to_side, "to")?];
        for (side, name) in sides.iter().zip(self.names()) {
            let (ranks, groups) = (side.ranks().count(), side.groups().len());
            info!(side = %name, ranks, groups, "read");
        }
        Ok(sides)
    }

    /// Returns the sides' names for messages: their documents, or their roles.
    pub(super) fn names(&self) -> [String; 2] {
        let named = |file: &Option<PathBuf>, part: &str| match file {
            Some(file) => called(file).to_string(),
            None => format!("the described {part}"),
        };
        [named(&self.from, "source"), named(&self.to, "destination")]
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn called(path: &Path) -> Display<'_> {
    match is_stdin(path) {
        true => Path::new("stdin").display(),
        false => path.display(),
    }
}

fn read_document(path: &Path) -> Result<Deployment, DocumentError> {
    match is_stdin(path) {
        // Stdin is not opened by its path, since it may be a socket, which cannot be opened.
        true => document::read_from("stdin", io::stdin().lock()),
        false => document::read(path),
    }
}
