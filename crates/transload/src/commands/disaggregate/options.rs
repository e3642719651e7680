//! Options from three sources: flags take precedence over a configuration, and that over the environment.
//!
//! A configuration's keys are the names of flags, so one parser reads all three: options from other sources become
//! additional arguments.

use std::collections::BTreeMap;
use std::fs;
use std::marker::PhantomData;
use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::configuration::Document;
use crate::failure::{Failure, chain};

const INLINE: &str = "configuration";
const FILE: &str = "configuration-file";

/// The values of options by name; several values stand for repeated flags.
type Options = BTreeMap<String, Vec<String>>;

/// The options of a command as given on the command line, before the configuration and the environment are read.
#[derive(Debug, Clone)]
pub(crate) struct CommandLine<F> {
    flags: Options,
    options: PhantomData<fn() -> F>,
}

/// The sources of options besides flags, and their rules.
pub(super) struct OtherSources<'a> {
    pub(super) variables: &'a [(&'a str, &'a str)],
    /// Pairs of an old and a new option: the old one is ignored if a source of higher precedence sets the new one.
    pub(super) superseded: &'a [(&'a str, &'a str)],
    /// Options that must not be empty: treating an empty value as absent would allow more than was meant.
    pub(super) never_empty: &'a [&'a str],
}

pub(super) struct Resolved<F> {
    pub(super) options: F,
    pub(super) names: Vec<String>,
}

impl<F: clap::Args> CommandLine<F> {
    /// Completes the flags with the configuration that they name and with the environment.
    pub(super) fn resolve(
        &self,
        other_sources: &OtherSources<'_>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Resolved<F>, Failure> {
        let mut values = other_sources.without_empty(self.flags.clone())?;
        if let Some((name, text)) = configuration(&values)? {
            let extra = options::<F>(Document::read(&name, &text)?, &name)?;
            other_sources.add(&mut values, other_sources.without_empty(extra)?);
        }
        let mut extra = BTreeMap::new();
        for (variable, option) in other_sources.variables {
            if let Some(value) = environment(variable) {
                check::<F>(option, &value).map_err(|wrong| {
                    Failure::input(
                        format!("environment variable {variable}={value:?}: {wrong}"),
                        format!("correct or unset it; the flag --{option} takes precedence over it"),
                    )
                })?;
                extra.insert((*option).to_owned(), vec![value]);
            }
        }
        other_sources.add(&mut values, extra);

        let arguments =
            values.iter().flat_map(|(name, values)| values.iter().map(move |value| format!("--{name}={value}")));
        let options = parse::<F>(arguments).and_then(|matches| F::from_arg_matches(&matches));
        Ok(Resolved {
            // Each value was already checked at its source, so this error is unlikely.
            options: options.map_err(|error| Failure::input(chain(&error), "see --help"))?,
            names: values.into_keys().collect(),
        })
    }
}

fn configuration(flags: &Options) -> Result<Option<(String, String)>, Failure> {
    let last = |name| flags.get(name).and_then(|values| values.last());
    match (last(INLINE), last(FILE)) {
        (Some(_), Some(_)) => {
            Err(Failure::input("both --configuration and --configuration-file are given", "give only one of the two"))
        }
        (Some(text), None) => Ok(Some((format!("--{INLINE}"), text.clone()))),
        (None, Some(path)) => match fs::read_to_string(Path::new(path)) {
            Ok(text) => Ok(Some((path.clone(), text))),
            Err(error) => Err(Failure::input(
                format!("cannot read the configuration {path}: {error}"),
                "name an existing, readable file of YAML or JSON",
            )),
        },
        (None, None) => Ok(None),
    }
}

impl OtherSources<'_> {
    /// Drops empty values, which templates of manifests produce for unset variables.
    fn without_empty(&self, mut given: Options) -> Result<Options, Failure> {
        for (name, values) in &mut given {
            values.retain(|value| !value.is_empty());
            if values.is_empty() && self.never_empty.contains(&name.as_str()) {
                return Err(Failure::input(format!("{name} is empty"), "give it a value, or leave it out"));
            }
        }
        given.retain(|_, values| !values.is_empty());
        Ok(given)
    }

    /// Adds options of a source with lower precedence.
    fn add(&self, values: &mut Options, extra: Options) {
        let before: Vec<String> = values.keys().cloned().collect();
        for (name, value) in extra {
            let replacement = self.superseded.iter().find(|(old, _)| *old == name);
            if replacement.is_none_or(|(_, new)| !before.iter().any(|name| name == new)) {
                values.entry(name).or_insert(value);
            }
        }
    }
}

/// Parses one option. The error says what is wrong with its value.
fn check<F: clap::Args>(name: &str, value: &str) -> Result<(), String> {
    parse::<F>([format!("--{name}={value}")].into_iter())
        .and_then(|matches| F::from_arg_matches(&matches).map(drop))
        .map_err(|error| match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => "not a valid value of this option; see --help".to_owned(),
        })
}

fn parse<F: clap::Args>(arguments: impl Iterator<Item = String>) -> Result<ArgMatches, clap::Error> {
    command::<F>().try_get_matches_from(arguments)
}

fn command<F: clap::Args>() -> Command {
    F::augment_args(Command::new("")).args_override_self(true).no_binary_name(true).disable_help_flag(true)
}

fn names(option: &Arg) -> impl Iterator<Item = &str> {
    let aliases = option.get_all_aliases().unwrap_or_default();
    option.get_long().into_iter().chain(aliases)
}

// On the command line, clap parses the options as if they were the command's own.
impl<F: clap::Args> clap::Args for CommandLine<F> {
    fn augment_args(command: Command) -> Command {
        F::augment_args(command).args_override_self(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        F::augment_args_for_update(command)
    }
}

impl<F: clap::Args> FromArgMatches for CommandLine<F> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = BTreeMap::new();
        for option in command::<F>().get_arguments() {
            let id = option.get_id().as_str();
            let (Some(name), Some(ValueSource::CommandLine)) = (option.get_long(), matches.value_source(id)) else {
                continue;
            };
            let values = matches.get_raw(id).into_iter().flatten();
            let values = values.map(|value| value.to_string_lossy().into_owned());
            flags.insert(name.to_owned(), values.collect());
        }
        Ok(Self { flags, options: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Checks the options of a configuration and returns them by name.
fn options<F: clap::Args>(document: Document, file: &str) -> Result<Options, Failure> {
    let command = command::<F>();
    let mut options = BTreeMap::new();
    for (key, values) in document.0 {
        let option = command.get_arguments().find(|option| names(option).any(|name| name == key));
        let Some((option, name)) = option.and_then(|option| Some((option, option.get_long()?))) else {
            return Err(unknown::<F>(file, &key));
        };
        if values.len() > 1 && !matches!(option.get_action(), ArgAction::Append) {
            return Err(Failure::input(format!("{file}: {key} takes one value, not a list"), "give it one value"));
        }
        if [INLINE, FILE].contains(&name) {
            return Err(Failure::input(
                format!("{file}: {key} is not allowed in a configuration"),
                "give it as a flag, or leave it out",
            ));
        }
        for value in values.iter().filter(|value| !value.is_empty()) {
            check::<F>(name, value).map_err(|wrong| {
                Failure::input(
                    format!("{file}: {key} is {value:?}: {wrong}"),
                    format!("correct it; the flag --{name} takes precedence over it"),
                )
            })?;
        }
        if options.insert(name.to_owned(), values).is_some() {
            return Err(Failure::input(
                format!("{file}: {key} is given twice, under two names"),
                format!("keep only {name}"),
            ));
        }
    }
    Ok(options)
}
fn unknown<F: clap::Args>(file: &str, key: &str) -> Failure {
    // The parser suggests the most similar flag.
    let close = parse::<F>([format!("--{key}")].into_iter()).err();
    let close = close.and_then(|error| match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
        _ => None,
    });
    Failure::input(
        format!("{file}: {key:?} is not a configuration key"),
        match close {
            Some(close) => format!("did you mean {close}?"),
            None => "keys are the names of flags, as --help lists them".to_owned(),
        },
    )
}
