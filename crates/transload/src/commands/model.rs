//! The model of a command: a `config.json`, or a description by the user.

use std::io;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use transload::config;
use transload::document;
use transload::layout::catalog::{CacheDtype, Engine, Model, Options, Serving};
use transload::layout::{Deployment, Order};

use crate::failure::Failure;
use crate::show::number;

/// Where the model comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Data type of cached keys, values and latents: bf16, f16, f32, fp8 (f8e4m3), fp8_e5m2 (f8e5m2), i8, or a packed
    /// type of vLLM: fp8_ds_mla, nvfp4, nvfp4_ds_mla, int4_per_token_head, int8_per_token_head, fp8_per_token_head,
    /// turboquant_k8v4, …. Default: the model's own.
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    dtype: Option<CacheDtype>,

    /// Deployment document that describes the caches, in place of a config. For models that the catalog does not know.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "dtype")]
    spec: Option<PathBuf>,
}

impl ModelArgs {
    pub(crate) fn has_spec(&self) -> bool {
        self.spec.is_some()
    }

    /// Reads the model from this config (`-` for stdin), or from the description given instead. Also returns its name
    /// for messages.
    pub(crate) fn read(&self, config: Option<&Path>) -> Result<(Model, String), Failure> {
        match (config, &self.spec) {
            (Some(config), None) => {
                let options = Options { cache_dtype: self.dtype };
                let config = in_folder(config);
                let called = called(&config);
                let model = match config.as_os_str() == "-" {
                    true => config::read_from(&called, io::stdin().lock(), &options),
                    false => config::read(&config, &options),
                };
                Ok((model?, called))
            }
            (None, Some(spec)) => {
                let described = document::read(spec)?;
                Ok((Model::of_deployment(&described), called(spec)))
            }
            (Some(_), Some(_)) => Err(Failure::input(
                "a config and --spec are both given",
                "give only one: --spec describes a model in place of its config.json",
            )),
            (None, None) => {
                Err(Failure::input("no model is given", "name its config.json, or describe its caches with --spec"))
            }
        }
    }
}

/// vLLM's block sizes are multiples of this number of tokens, which its attention kernels read at once.
const VLLM_BLOCK: u64 = 16;

/// Refuses a model whose blocks a deployment document cannot describe.
pub(crate) fn check_plannable(model: &Model, called: &str) -> Result<(), Failure> {
    match model.packed.and_then(|packed| packed.uncut(model)) {
        None => Ok(()),
        Some(why) => Err(Failure::input(
            format!("{called}: its cache cannot be planned: {why}"),
            "use another type: --dtype fp8 or --dtype bf16",
        )),
    }
}

/// Makes the deployment of a model that is served in this way.
pub(crate) fn served(model: &Model, called: &str, serving: &Serving, tokens: u64) -> Result<Deployment, Failure> {
    if model.groups.is_empty() {
        return Err(Failure::input(
            format!("{called} has no cache of its own: its layers read the caches of another model"),
            "use the config of the model that it drafts for",
        ));
    }
    let ragged = |size: &u64| !size.is_multiple_of(VLLM_BLOCK);
    if let (Some(Engine::Vllm), Some(size)) = (serving.engine, serving.block_size.filter(ragged)) {
        let below = size / VLLM_BLOCK * VLLM_BLOCK;
        let above = below.saturating_add(VLLM_BLOCK);
        let right = match below {
            0 => format!("use {above}"),
            _ => format!("use {below} or {above}"),
        };
        let problem = format!("block size {size}: vLLM requires a multiple of {VLLM_BLOCK}");
        return Err(Failure::input(problem, right));
    }
    if serving.pp > u64::from(model.num_layers) {
        return Err(Failure::input(
            format!(
                "pp = {}: {called} has only {}, so some ranks would have none",
                serving.pp,
                number::count(model.num_layers.into(), "layer")
            ),
            format!("use at most {} stages", model.num_layers),
        ));
    }
    Deployment::from_document(model.serve(serving, tokens)).map_err(|faults| Failure::unservable(called, model, faults))
}

/// Returns the config in a folder, since users often name a model's folder.
fn in_folder(config: &Path) -> PathBuf {
    match config.is_dir() {
        true => config.join("config.json"),
        false => config.to_owned(),
    }
}

fn called(path: &Path) -> String {
    match path.as_os_str() == "-" {
        true => "stdin".to_owned(),
        false => path.display().to_string(),
    }
}

fn dtype(name: &str) -> Result<CacheDtype, String> {
    CacheDtype::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = CacheDtype::names().collect();
        format!("unknown type; the types are {}", names.join(", "))
    })
}

/// Parses an order and returns it in capitals; small letters mean the same.
pub(crate) fn order(text: &str) -> Result<String, String> {
    let capitals = text.to_ascii_uppercase();
    match Order::parse(&capitals) {
        Ok(_) => Ok(capitals),
        Err(error) => Err(Order::parse(text).err().unwrap_or(error).to_string()),
    }
}
