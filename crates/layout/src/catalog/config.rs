//! Reading of keys of a `config.json`, with the presets of its config class for absent keys.
//!
//! Unlike in a [document](crate::document), unknown keys are not errors: a config describes much more than caches. The
//! result lists those that [may be](super::unread) about caches. Only the first error found is reported.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use thiserror::Error;

use super::UnknownFamily;
use super::format::Packed;
use crate::bounds::{MAX_LAYERS, MAX_SIZE};
use crate::document::Value;
use crate::dtype::Dtype;

/// Describes why a config does not tell what the model caches.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is missing or has an invalid value.
    #[error("{path}: {problem}")]
    Key {
        /// The key, as a path: `text_config.head_dim`.
        path: String,
        /// The error, with what would be right.
        problem: String,
    },
    /// The value is no config at all.
    #[error("{0}")]
    NoConfig(String),
    /// The `model_type` is not in the catalog.
    #[error(transparent)]
    UnknownFamily(#[from] UnknownFamily),
    /// The model's cache cannot have the requested type.
    #[error("{0}")]
    Dtype(String),
}

/// The value that a config class gives to an absent key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Preset {
    Number(u64),
    Flag(bool),
    Text(&'static str),
    Texts(&'static [&'static str]),
}

/// The presets of a config class. A key without a preset is required or optional.
pub(super) type Presets = &'static [(&'static str, Preset)];

/// The element type of a cache of keys and values, or a packed format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDtype {
    /// Elements of this type, unpacked.
    Plain(Dtype),
    /// vLLM's `fp8_ds_mla`, for MLA only. It has the latent in fp8, a float32 scale for every 128 elements, and the
    /// rotary part in bf16: 656 bytes a token in DeepSeek V3.2.
    Fp8DsMla,
    /// vLLM's `nvfp4_ds_mla`, for latents of sparse attention only. It has two elements in a byte, an fp8 scale for
    /// every 16 of them, and the rotary part in fp8: 352 bytes a token in DeepSeek V3.2.
    Nvfp4DsMla,
    /// Rows of packed elements with their scales. Each token and head has a row for the key and one for the value.
    Packed(Packed),
}

impl CacheDtype {
    const PACKED: [(&'static str, CacheDtype); 12] = {
        use CacheDtype::{Fp8DsMla, Nvfp4DsMla};
        use Packed::{Fp8PerTokenHead, Int4PerTokenHead, Int8PerTokenHead, Nvfp4, UltraQuant};
        [
            ("fp8_ds_mla", Fp8DsMla),
            ("nvfp4_ds_mla", Nvfp4DsMla),
            ("nvfp4", CacheDtype::Packed(Nvfp4)),
            ("nvfp4_4over6", CacheDtype::Packed(Nvfp4)),
            ("int8_per_token_head", CacheDtype::Packed(Int8PerTokenHead)),
            ("fp8_per_token_head", CacheDtype::Packed(Fp8PerTokenHead)),
            ("int4_per_token_head", CacheDtype::Packed(Int4PerTokenHead)),
            ("turboquant_k8v4", turboquant(8, 4)),
            ("turboquant_4bit_nc", turboquant(4, 4)),
            ("turboquant_k3v4_nc", turboquant(3, 4)),
            ("turboquant_3bit_nc", turboquant(3, 3)),
            ("ultraquant_4bit", CacheDtype::Packed(UltraQuant)),
        ]
    };

    /// Returns the type of this name, as in a document (`bf16`), vLLM (`fp8_e4m3`) or torch (`bfloat16`).
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        let plain = Dtype::from_name(name).map(Self::Plain);
        let mut packed = Self::PACKED.iter();
        plain.or_else(|| packed.find(|(known, _)| *known == name).map(|(_, d)| *d))
    }

    /// Returns the engines' name for the type.
    pub fn name(self) -> &'static str {
        if let Self::Plain(dtype) = self {
            return dtype.name();
        }
        let mut packed = Self::PACKED.iter();
        packed.find(|(_, known)| *known == self).map_or("unknown", |(name, _)| name)
    }

    /// Returns every known name.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let packed = Self::PACKED.iter().map(|(name, _)| *name);
        Dtype::names().map(|(name, _)| name).chain(packed)
    }
}

const fn turboquant(key_bits: u64, value_bits: u64) -> CacheDtype {
    CacheDtype::Packed(Packed::TurboQuant { key_bits, value_bits })
}

pub(super) struct Config<'a> {
    /// The path of the table, empty for the whole config.
    pub(super) path: String,
    pub(super) table: &'a Value,
    /// The enclosing table, which may name the element type instead.
    pub(super) outer: Option<&'a Value>,
    pub(super) presets: Presets,
    pub(super) cache_dtype: Option<CacheDtype>,
    pub(super) assumed: Rc<RefCell<Vec<Assumption>>>,
    pub(super) read: Rc<RefCell<BTreeSet<String>>>,
    /// The key of `quantization_config` that names an unknown cache type.
    pub(super) unknown_cache: Rc<Cell<Option<&'static str>>>,
}

/// A value that was assumed because the config lacks the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assumption {
    /// The key, as a path: `text_config.head_dim`.
    pub key: String,
    /// The assumed value: the preset of the config class, or a value derived from other keys.
    pub value: String,
}

impl<'a> Config<'a> {
    pub(super) fn path_of(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    pub(super) fn fault(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Key { path: self.path_of(key), problem: problem.into() }
    }

    fn mistyped(&self, key: &str, wanted: &str, found: &Value) -> ConfigError {
        self.fault(key, format!("must be {wanted}, not {}", found.describe()))
    }

    fn missing(&self, key: &str, wanted: &str) -> ConfigError {
        self.fault(key, format!("is missing: it must be {wanted}"))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        let value = self.table.get(key)?;
        self.read.borrow_mut().insert(self.path_of(key));
        Some(value)
    }

    fn preset(&self, key: &str) -> Option<Preset> {
        let mut presets = self.presets.iter();
        presets.find(|(known, _)| *known == key).map(|(_, p)| *p)
    }

    /// Returns the preset of an absent key, and records it as an assumption.
    fn assumed_preset(&self, key: &str) -> Option<Preset> {
        let preset = self.preset(key)?;
        match preset {
            Preset::Number(number) => self.assume(key, number),
            Preset::Flag(flag) => self.assume(key, flag),
            Preset::Text(text) => self.assume(key, text),
            Preset::Texts(texts) => self.assume(key, texts.join(", ")),
        }
        Some(preset)
    }

    pub(super) fn assume(&self, key: &str, value: impl ToString) {
        let (key, value) = (self.path_of(key), value.to_string());
        let mut assumed = self.assumed.borrow_mut();
        if assumed.iter().all(|known| known.key != key) {
            assumed.push(Assumption { key, value });
        }
    }

    /// Reads a size or count. It may be null, or absent if the class has no preset.
    pub(super) fn optional(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        match self.get(key) {
            Some(Value::Null) => Ok(None),
            Some(value) => self.sized(key, value).map(Some),
            None => Ok(match self.assumed_preset(key) {
                Some(Preset::Number(number)) => Some(number),
                _ => None,
            }),
        }
    }

    /// Reads a size or count. Null counts as absent.
    pub(super) fn number(&self, key: &str) -> Result<u64, ConfigError> {
        if let Some(number) = self.optional(key)? {
            return Ok(number);
        }
        match self.assumed_preset(key) {
            Some(Preset::Number(number)) => Ok(number),
            _ => Err(self.missing(key, "a whole number")),
        }
    }

    /// Reads a size or count that must not be 0. Null counts as absent.
    pub(super) fn positive(&self, key: &str) -> Result<u64, ConfigError> {
        match self.number(key)? {
            0 => Err(self.fault(key, "cannot be 0")),
            number => Ok(number),
        }
    }

    /// Reads a size that must not be 0. `None` if it is absent, null or `"auto"`: then the family derives it.
    pub(super) fn unless_auto(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        match (self.get(key), self.preset(key)) {
            (Some(Value::Text(text)), _) if text == "auto" => Ok(None),
            (None | Some(Value::Null), Some(Preset::Text("auto")) | None) => Ok(None),
            _ => self.positive(key).map(Some),
        }
    }

    pub(super) fn layers(&self, key: &str) -> Result<u64, ConfigError> {
        let layers = self.positive(key)?;
        if layers > MAX_LAYERS {
            let problem = format!("cannot be more than {MAX_LAYERS}, not {layers}");
            return Err(self.fault(key, problem));
        }
        Ok(layers)
    }

    /// Returns a size divided by `parts`, which must divide it.
    pub(super) fn share(&self, whole: &str, parts: &str) -> Result<u64, ConfigError> {
        let (size, count) = (self.positive(whole)?, self.positive(parts)?);
        if !size.is_multiple_of(count) {
            let problem = format!("is {size}, which {parts} = {count} does not divide");
            return Err(self.fault(whole, problem));
        }
        Ok(size / count)
    }

    /// Returns the product of two sizes, neither of them 0.
    pub(super) fn product(&self, a: &str, b: &str) -> Result<u64, ConfigError> {
        let product = self.positive(a)?.checked_mul(self.positive(b)?);
        product
            .filter(|product| *product <= MAX_SIZE)
            .ok_or_else(|| self.fault(a, format!("times {b} cannot be more than {MAX_SIZE}")))
    }

    fn sized(&self, key: &str, value: &Value) -> Result<u64, ConfigError> {
        match value.whole_number() {
            Ok(number) if number <= MAX_SIZE => Ok(number),
            Ok(number) => {
                let problem = format!("cannot be more than {MAX_SIZE}, not {number}");
                Err(self.fault(key, problem))
            }
            Err(problem) => Err(self.fault(key, problem)),
        }
    }

    /// Reads a boolean. Null counts as absent, and absent without a preset as false.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        match self.get(key) {
            Some(Value::Bool(flag)) => Ok(*flag),
            None | Some(Value::Null) => Ok(matches!(self.assumed_preset(key), Some(Preset::Flag(true)))),
            Some(other) => Err(self.mistyped(key, "true or false", other)),
        }
    }

    /// Reads an optional text. Null counts as absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            Some(Value::Text(text)) => Ok(Some(text)),
            None | Some(Value::Null) => Ok(match self.assumed_preset(key) {
                Some(Preset::Text(text)) => Some(text),
                _ => None,
            }),
            Some(other) => Err(self.mistyped(key, "text", other)),
        }
    }

    /// Reads an optional list of texts. Null counts as absent.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let items = match self.get(key) {
            Some(Value::List(items)) => items,
            None | Some(Value::Null) => {
                return Ok(match self.assumed_preset(key) {
                    Some(Preset::Texts(texts)) => Some(texts.to_vec()),
                    _ => None,
                });
            }
            Some(other) => return Err(self.mistyped(key, "a list of texts", other)),
        };
        let texts = items.iter().enumerate().map(|(i, item)| match item {
            Value::Text(text) => Ok(text.as_str()),
            other => Err(self.mistyped(&format!("{key}[{i}]"), "text", other)),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// Reads an optional list of numbers. Null counts as absent.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<u64>>, ConfigError> {
        let items = match self.get(key) {
            Some(Value::List(items)) => items,
            None | Some(Value::Null) => return Ok(None),
            Some(other) => return Err(self.mistyped(key, "a list of numbers", other)),
        };
        let numbers = items.iter().enumerate();
        let numbers = numbers.map(|(i, item)| self.sized(&format!("{key}[{i}]"), item));
        numbers.collect::<Result<_, _>>().map(Some)
    }

    /// Reads an optional list with a known word for each layer. Null counts as absent.
    /// The list may continue with layers that predict further tokens (`num_nextn_predict_layers`). They are not part of
    /// the model and are left out.
    pub(super) fn words_by_layer<T: Copy>(
        &self,
        key: &str,
        layers: u64,
        known: &[(&str, T)],
    ) -> Result<Option<Vec<T>>, ConfigError> {
        let Some(words) = self.texts(key)? else {
            return Ok(None);
        };
        let words = self.by_layer(key, layers, words)?.into_iter().enumerate();
        let meant = words.map(|(layer, word)| {
            let meant = known.iter().find(|(name, _)| *name == word);
            meant.map(|(_, meant)| *meant).ok_or_else(|| {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                let word = Value::Text(word.to_owned());
                let wanted = names.join(" or ");
                self.mistyped(&format!("{key}[{layer}]"), &wanted, &word)
            })
        });
        meant.collect::<Result<_, _>>().map(Some)
    }

    /// Reads an optional list with a number for each layer, like [`words_by_layer`](Self::words_by_layer).
    pub(super) fn numbers_by_layer(&self, key: &str, layers: u64) -> Result<Option<Vec<u64>>, ConfigError> {
        let numbers = self.numbers(key)?;
        numbers.map(|numbers| self.by_layer(key, layers, numbers)).transpose()
    }

    /// Checks that a list has an entry for each layer, and drops entries of layers that predict further tokens.
    pub(super) fn by_layer<T>(&self, key: &str, layers: u64, mut items: Vec<T>) -> Result<Vec<T>, ConfigError> {
        let further = self.optional("num_nextn_predict_layers")?.unwrap_or(0);
        let found = items.len() as u64;
        if found < layers || found > layers + further {
            let problem = format!("has {found} entries, but there are {layers} layers");
            return Err(self.fault(key, problem));
        }
        items.truncate(layers as usize);
        Ok(items)
    }

    /// Returns an inner table, whose keys have no presets. Null counts as absent.
    pub(super) fn inside(&self, key: &str) -> Result<Option<Config<'a>>, ConfigError> {
        match self.get(key) {
            Some(value) => self.entered(key, value),
            None => Ok(None),
        }
    }

    /// Returns a value of this table as an inner table, like [`inside`](Self::inside).
    pub(super) fn entered(&self, key: &str, value: &'a Value) -> Result<Option<Config<'a>>, ConfigError> {
        let table = match value {
            Value::Null => return Ok(None),
            Value::Table(_) => value,
            other => return Err(self.mistyped(key, "a table", other)),
        };
        self.read.borrow_mut().insert(self.path_of(key));
        Ok(Some(Config {
            path: self.path_of(key),
            table,
            outer: Some(self.table),
            presets: &[],
            cache_dtype: self.cache_dtype,
            assumed: self.assumed.clone(),
            read: self.read.clone(),
            unknown_cache: self.unknown_cache.clone(),
        }))
    }

    /// Returns the model's own element type. States have this type, and so do keys and values unless the cache has
    /// another.
    pub(super) fn model_dtype(&self) -> Result<Dtype, ConfigError> {
        for (inside, value) in [(true, Some(self.table)), (false, self.outer)] {
            for key in ["dtype", "torch_dtype"] {
                let name = match value.and_then(|value| value.get(key)) {
                    None | Some(Value::Null) => continue,
                    Some(Value::Text(name)) => name,
                    Some(other) => return Err(self.mistyped(key, "the name of a type", other)),
                };
                // "auto" means the type of the checkpoint's tensors.
                if name == "auto" {
                    continue;
                }
                return dtype_named(name).map_err(|problem| match inside {
                    true => self.fault(key, problem),
                    false => ConfigError::Key { path: key.to_owned(), problem },
                });
            }
        }
        self.assume("dtype", Dtype::Bf16);
        Ok(Dtype::Bf16)
    }

    /// Returns the element type in a key such as `mamba_ssm_cache_dtype`. `None` if the key is absent, null or `auto`.
    pub(super) fn dtype_of(&self, key: &str) -> Result<Option<Dtype>, ConfigError> {
        match self.text(key)? {
            None | Some("auto") => Ok(None),
            Some(name) => {
                let dtype = dtype_named(name).map_err(|problem| self.fault(key, problem))?;
                Ok(Some(dtype))
            }
        }
    }

    /// Returns the type of cached keys, values and latents: the operator's, else that of the checkpoint's quantisation,
    /// else the model's. Packed rows start as elements of the model's type, and [are packed](super::packed) once it is
    /// known what each layer caches.
    pub(super) fn cache_dtype(&self) -> Result<CacheDtype, ConfigError> {
        match self.wanted_cache()? {
            None | Some(CacheDtype::Packed(_)) => Ok(CacheDtype::Plain(self.model_dtype()?)),
            Some(dtype) => Ok(dtype),
        }
    }

    /// Returns the type that the operator or the checkpoint chose instead of the model's.
    pub(super) fn wanted_cache(&self) -> Result<Option<CacheDtype>, ConfigError> {
        match self.cache_dtype {
            Some(dtype) => Ok(Some(dtype)),
            None => self.quantized_cache(),
        }
    }

    /// Returns the type of a cache that has no packed form. A packed one is an error.
    pub(super) fn plain_cache_dtype(&self) -> Result<Dtype, ConfigError> {
        match self.cache_dtype()? {
            CacheDtype::Plain(dtype) => Ok(dtype),
            other => Err(ConfigError::Dtype(format!(
                "{} is a format of latents; this model caches keys and values (fp8 is theirs)",
                other.name()
            ))),
        }
    }

    /// Returns the cache type for which a checkpoint has scales: from `quantization_config` of compressed-tensors
    /// (`kv_cache_scheme`) or of ModelOpt (`kv_cache_quant_algo`, which may be in a table `quantization`).
    ///
    /// If engines do not know the algorithm, they keep the model's type. So does this, and reports the key as not read.
    fn quantized_cache(&self) -> Result<Option<CacheDtype>, ConfigError> {
        // Configs of models with several parts may have the table at the top level.
        let places = [Some(self.table), self.outer].into_iter().flatten();
        let keys = ["quantization_config", "compression_config"];
        let mut found = places.flat_map(|place| keys.iter().filter_map(|key| place.get(key)));
        let Some(quantization) = found.find(|value| **value != Value::Null) else {
            return Ok(None);
        };
        let nested = quantization.get("quantization");
        for table in [nested, Some(quantization)].into_iter().flatten() {
            for key in ["kv_cache_scheme", "kv_cache_quant_algo"] {
                let dtype = match table.get(key) {
                    None | Some(Value::Null) => continue,
                    Some(Value::Text(algorithm)) => {
                        let algorithm = algorithm.to_ascii_lowercase();
                        match algorithm.as_str() {
                            "" | "none" | "auto" => continue,
                            name => CacheDtype::from_name(name),
                        }
                    }
                    Some(scheme) => {
                        let kind = match scheme.get("type") {
                            Some(Value::Text(kind)) => kind.as_str(),
                            _ => "",
                        };
                        match (scheme.get("num_bits"), kind) {
                            (Some(Value::Integer(8)), "float") => Some(CacheDtype::Plain(Dtype::F8E4M3)),
                            (Some(Value::Integer(8)), "int") => Some(CacheDtype::Plain(Dtype::I8)),
                            (Some(Value::Integer(4)), "float") => Some(CacheDtype::Packed(Packed::Nvfp4)),
                            _ => None,
                        }
                    }
                };
                if dtype.is_none() {
                    self.unknown_cache.set(Some(key));
                }
                return Ok(dtype);
            }
        }
        Ok(None)
    }
}

fn dtype_named(name: &str) -> Result<Dtype, String> {
    match CacheDtype::from_name(name) {
        Some(CacheDtype::Plain(dtype)) => Ok(dtype),
        _ => Err(format!("must be an element type as bfloat16, not {}", Value::Text(name.to_owned()).describe())),
    }
}
