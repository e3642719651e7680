//! Reads keys of a `config.json`, with the values that its config class has where a key is absent.
//!
//! Other than in a [document](crate::document), keys that nobody asks for are no faults: a config is
//! about much more than caches. Which of them [may be](super::unread) about caches is told with the answer. The
//! first fault found is the one that is told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use thiserror::Error;

use super::UnknownFamily;
use super::packed::Packed;
use crate::deployment::{MAX_LAYERS, MAX_SIZE};
use crate::document::Value;
use crate::dtype::Dtype;

/// Why a config does not say what the model caches.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is missing, or has a value that it cannot have.
    #[error("{path}: {problem}")]
    Key {
        /// The key, as a path: `text_config.head_dim`.
        path: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The whole is no config.
    #[error("{0}")]
    NoConfig(String),
    /// A `model_type` that is not in the catalog.
    #[error(transparent)]
    UnknownFamily(#[from] UnknownFamily),
    /// A type that this model's cache cannot have.
    #[error("{0}")]
    Dtype(String),
}

/// What a config class puts where a key is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Preset {
    Number(u64),
    Flag(bool),
    Text(&'static str),
    Texts(&'static [&'static str]),
}

/// The presets of a config class. A key without one has to be there, or is optional.
pub(super) type Presets = &'static [(&'static str, Preset)];

/// The element type of a cache of keys and values, or the packed format that stands in for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDtype {
    /// One element after the other, all of this type.
    Plain(Dtype),
    /// vLLM's `fp8_ds_mla`, for MLA only: the latent in fp8, a float32 scale for every 128 elements, and the
    /// rotary part in bf16: 656 bytes a token in DeepSeek V3.2.
    Fp8DsMla,
    /// vLLM's `nvfp4_ds_mla`, for latents of sparse attention only: two elements in a byte, an fp8 scale for
    /// every 16 of them, and the rotary part in fp8: 352 bytes a token in DeepSeek V3.2.
    Nvfp4DsMla,
    /// Rows of elements with their scales, one for the key and one for the value of a token and head.
    Packed(Packed),
}

impl CacheDtype {
    /// Names of what is no plain type, as engines and configs write them.
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

    /// The type of this name: a document's (`bf16`), vLLM's (`fp8_e4m3`) or torch's (`bfloat16`).
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        let plain = Dtype::from_name(name).map(Self::Plain);
        let mut packed = Self::PACKED.iter();
        plain.or_else(|| packed.find(|(known, _)| *known == name).map(|(_, d)| *d))
    }

    /// The name that engines have for it.
    pub fn name(self) -> &'static str {
        if let Self::Plain(dtype) = self {
            return dtype.name();
        }
        let mut packed = Self::PACKED.iter();
        packed.find(|(_, known)| *known == self).map_or("unknown", |(name, _)| name)
    }

    /// Every name that is understood.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let packed = Self::PACKED.iter().map(|(name, _)| *name);
        Dtype::names().map(|(name, _)| name).chain(packed)
    }
}

const fn turboquant(key_bits: u64, value_bits: u64) -> CacheDtype {
    CacheDtype::Packed(Packed::TurboQuant { key_bits, value_bits })
}

/// One table of a config.
pub(super) struct Config<'a> {
    /// Where it is: empty for the whole.
    pub(super) path: String,
    pub(super) table: &'a Value,
    /// The table around it, which may say the type of elements in its place.
    pub(super) outer: Option<&'a Value>,
    /// What its class puts where a key is absent.
    pub(super) presets: Presets,
    /// The cache's type, where the operator chose it.
    pub(super) cache_dtype: Option<CacheDtype>,
    /// What was taken for granted so far, for all tables of the config.
    pub(super) assumed: Rc<RefCell<Vec<Assumption>>>,
    /// Paths of the keys that were asked for so far, in all tables of the config.
    pub(super) read: Rc<RefCell<BTreeSet<String>>>,
    /// The key of `quantization_config` that names a cache's type which nobody knows.
    pub(super) unknown_cache: Rc<Cell<Option<&'static str>>>,
}

/// A value that was taken for granted, since a config does not have its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The key, as a path: `text_config.head_dim`.
    pub key: String,
    /// What was taken: the preset of the config class, or what other keys make of it.
    pub value: String,
}

impl<'a> Config<'a> {
    /// The path of one key.
    pub(super) fn path_of(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// A fault of one key.
    pub(super) fn fault(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Key { path: self.path_of(key), problem: problem.into() }
    }

    fn mistyped(&self, key: &str, wanted: &str, found: &Value) -> ConfigError {
        self.fault(key, format!("has to be {wanted}, not {}", found.describe()))
    }

    fn missing(&self, key: &str, wanted: &str) -> ConfigError {
        self.fault(key, format!("is missing: it has to be {wanted}"))
    }

    /// What the config says; `None` where it says nothing. Null is a value.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        let value = self.table.get(key)?;
        self.read.borrow_mut().insert(self.path_of(key));
        Some(value)
    }

    fn preset(&self, key: &str) -> Option<Preset> {
        let mut presets = self.presets.iter();
        presets.find(|(known, _)| *known == key).map(|(_, p)| *p)
    }

    /// The same, where it is taken since the key is not there.
    fn taken(&self, key: &str) -> Option<Preset> {
        let preset = self.preset(key)?;
        match preset {
            Preset::Number(number) => self.assume(key, number),
            Preset::Flag(flag) => self.assume(key, flag),
            Preset::Text(text) => self.assume(key, text),
            Preset::Texts(texts) => self.assume(key, texts.join(", ")),
        }
        Some(preset)
    }

    /// Notes what is taken where a key is not there.
    pub(super) fn assume(&self, key: &str, value: impl ToString) {
        let (key, value) = (self.path_of(key), value.to_string());
        let mut assumed = self.assumed.borrow_mut();
        if assumed.iter().all(|known| known.key != key) {
            assumed.push(Assumption { key, value });
        }
    }

    /// A size or a count that may be null, or absent where the class has none either.
    pub(super) fn optional(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        match self.get(key) {
            Some(Value::Null) => Ok(None),
            Some(value) => self.sized(key, value).map(Some),
            None => Ok(match self.taken(key) {
                Some(Preset::Number(number)) => Some(number),
                _ => None,
            }),
        }
    }

    /// A size or a count; null is as good as absent.
    pub(super) fn number(&self, key: &str) -> Result<u64, ConfigError> {
        if let Some(number) = self.optional(key)? {
            return Ok(number);
        }
        match self.taken(key) {
            Some(Preset::Number(number)) => Ok(number),
            _ => Err(self.missing(key, "a whole number")),
        }
    }

    /// A size or a count that cannot be 0; null is as good as absent.
    pub(super) fn positive(&self, key: &str) -> Result<u64, ConfigError> {
        match self.number(key)? {
            0 => Err(self.fault(key, "cannot be 0")),
            number => Ok(number),
        }
    }

    /// A size that cannot be 0, or `None` where it is absent, null or `"auto"`: for the family to derive.
    pub(super) fn unless_auto(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        match (self.get(key), self.preset(key)) {
            (Some(Value::Text(text)), _) if text == "auto" => Ok(None),
            (None | Some(Value::Null), Some(Preset::Text("auto")) | None) => Ok(None),
            _ => self.positive(key).map(Some),
        }
    }

    /// How many layers the model has.
    pub(super) fn layers(&self, key: &str) -> Result<u64, ConfigError> {
        let layers = self.positive(key)?;
        if layers > MAX_LAYERS {
            let problem = format!("cannot be more than {MAX_LAYERS}, not {layers}");
            return Err(self.fault(key, problem));
        }
        Ok(layers)
    }

    /// One of `parts` equal parts of a size.
    pub(super) fn share(&self, whole: &str, parts: &str) -> Result<u64, ConfigError> {
        let (size, count) = (self.positive(whole)?, self.positive(parts)?);
        if !size.is_multiple_of(count) {
            let problem = format!("is {size}, which {parts} = {count} does not divide");
            return Err(self.fault(whole, problem));
        }
        Ok(size / count)
    }

    /// The product of two sizes, neither of them 0.
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

    /// Yes or no; null is as good as absent, and absent without a preset is no.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        match self.get(key) {
            Some(Value::Bool(flag)) => Ok(*flag),
            None | Some(Value::Null) => Ok(matches!(self.taken(key), Some(Preset::Flag(true)))),
            Some(other) => Err(self.mistyped(key, "true or false", other)),
        }
    }

    /// A text that may be absent; null is as good as absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            Some(Value::Text(text)) => Ok(Some(text)),
            None | Some(Value::Null) => Ok(match self.taken(key) {
                Some(Preset::Text(text)) => Some(text),
                _ => None,
            }),
            Some(other) => Err(self.mistyped(key, "text", other)),
        }
    }

    /// A list of texts that may be absent; null is as good as absent.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let items = match self.get(key) {
            Some(Value::List(items)) => items,
            None | Some(Value::Null) => {
                return Ok(match self.taken(key) {
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

    /// A list of numbers that may be absent; null is as good as absent.
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

    /// What a list says of each layer, in words that are known; null is as good as absent.
    ///
    /// It may go on with the layers that predict further tokens (`num_nextn_predict_layers`), which are not
    /// among the model's: what it says of them is left out.
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

    /// The same in numbers.
    pub(super) fn numbers_by_layer(&self, key: &str, layers: u64) -> Result<Option<Vec<u64>>, ConfigError> {
        let numbers = self.numbers(key)?;
        numbers.map(|numbers| self.by_layer(key, layers, numbers)).transpose()
    }

    /// A list with an entry for each layer, without those of layers that predict further tokens.
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

    /// A table inside of this one, whose keys have no presets; null is as good as absent.
    pub(super) fn inside(&self, key: &str) -> Result<Option<Config<'a>>, ConfigError> {
        match self.get(key) {
            Some(value) => self.entered(key, value),
            None => Ok(None),
        }
    }

    /// The same of an entry that is at hand.
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

    /// The model's own element type: what states are kept in, and keys and values unless the cache's type
    /// is another.
    pub(super) fn model_dtype(&self) -> Result<Dtype, ConfigError> {
        for (inside, value) in [(true, Some(self.table)), (false, self.outer)] {
            for key in ["dtype", "torch_dtype"] {
                let name = match value.and_then(|value| value.get(key)) {
                    None | Some(Value::Null) => continue,
                    Some(Value::Text(name)) => name,
                    Some(other) => return Err(self.mistyped(key, "the name of a type", other)),
                };
                // "auto" leaves it to the checkpoint's tensors.
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

    /// An element type that a key of its own names, as `mamba_ssm_cache_dtype` does; `None` where the key
    /// is absent, null or `auto`.
    pub(super) fn dtype_of(&self, key: &str) -> Result<Option<Dtype>, ConfigError> {
        match self.text(key)? {
            None | Some("auto") => Ok(None),
            Some(name) => {
                let dtype = dtype_named(name).map_err(|problem| self.fault(key, problem))?;
                Ok(Some(dtype))
            }
        }
    }

    /// The type that keys, values and latents are cached in: the one asked for, else the one that the
    /// checkpoint's quantisation names, else the model's. Rows that are packed come from elements of the
    /// model's own type, and [are packed](super::packed) once it is known what each layer caches.
    pub(super) fn cache_dtype(&self) -> Result<CacheDtype, ConfigError> {
        match self.wanted_cache()? {
            None | Some(CacheDtype::Packed(_)) => Ok(CacheDtype::Plain(self.model_dtype()?)),
            Some(dtype) => Ok(dtype),
        }
    }

    /// The type that an operator or the checkpoint wants in place of the model's.
    pub(super) fn wanted_cache(&self) -> Result<Option<CacheDtype>, ConfigError> {
        match self.cache_dtype {
            Some(dtype) => Ok(Some(dtype)),
            None => self.quantized_cache(),
        }
    }

    /// Reads the type of a cache that has no packed form; a packed one is an error.
    pub(super) fn plain_cache_dtype(&self) -> Result<Dtype, ConfigError> {
        match self.cache_dtype()? {
            CacheDtype::Plain(dtype) => Ok(dtype),
            other => Err(ConfigError::Dtype(format!(
                "{} is a format of latents; this model caches keys and values (fp8 is theirs)",
                other.name()
            ))),
        }
    }

    /// The type that a checkpoint brings the scales for: `quantization_config` of compressed-tensors
    /// (`kv_cache_scheme`) or of ModelOpt (`kv_cache_quant_algo`, which may be in a table `quantization`).
    ///
    /// Engines keep to the model's type where they do not know the algorithm. So does this, and the key counts
    /// as not read.
    fn quantized_cache(&self) -> Result<Option<CacheDtype>, ConfigError> {
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

/// A plain element type by any of its names.
fn dtype_named(name: &str) -> Result<Dtype, String> {
    match CacheDtype::from_name(name) {
        Some(CacheDtype::Plain(dtype)) => Ok(dtype),
        _ => Err(format!("has to be an element type as bfloat16, not {}", Value::Text(name.to_owned()).describe())),
    }
}
