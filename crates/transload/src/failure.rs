//! The failures of commands, with their messages and exit codes.

use std::io::{self, ErrorKind, Write};
use std::ops::Range;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Report};
use thiserror::Error;
use transload::config::ModelError;
use transload::document::{DocumentError, Located, ParseError};
use transload::layout::catalog::{ConfigError, Model, UnknownFamily};
use transload::layout::document::{Fault, Faults};

use crate::show::terminal;

const WIDTH: usize = 100;

/// The longest line of a document that is shown, in bytes; a one-line document would otherwise be printed whole.
const LONGEST_LINE: usize = 200;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The usage is wrong, or an input cannot be used: exit code 2.
    Input(Report),
    /// The command ran, and the answer is no: exit code 1.
    No(Report),
    Output(io::Error),
}

impl Failure {
    /// Creates a failure of usage or input. `wrong` says what is wrong and where, `right` what would be right.
    pub(crate) fn input(wrong: impl Into<String>, right: impl Into<String>) -> Self {
        Self::Input(message(wrong.into(), right.into()))
    }

    /// Creates the failure of a command that ran and has a negative result. `wrong` says what is wrong, `right` what
    /// the user can do about it.
    pub(crate) fn no(wrong: impl Into<String>, right: impl Into<String>) -> Self {
        Self::No(message(wrong.into(), right.into()))
    }

    /// Returns the message without the advice.
    #[cfg(feature = "cuda")]
    pub(crate) fn wrong(&self) -> String {
        match self {
            Self::Input(report) | Self::No(report) => report.to_string(),
            Self::Output(error) => error.to_string(),
        }
    }

    /// Reports the failure on stderr and returns the exit code.
    pub(crate) fn report(self) -> u8 {
        match self {
            Self::Input(report) => {
                print(&report);
                2
            }
            Self::No(report) => {
                print(&report);
                1
            }
            // The reader of the results has stopped reading (`transload plan ... | head`).
            Self::Output(error) if error.kind() == ErrorKind::BrokenPipe => 0,
            Self::Output(error) => {
                let wrong = format!("the results could not be written to stdout: {error}");
                print(&message(wrong, "check whether the disk is full".into()));
                2
            }
        }
    }
}

impl From<io::Error> for Failure {
    /// Converts errors of writing results only; an input that cannot be read is [`Failure::Input`].
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    pub(crate) fn unservable(called: &str, model: &Model, faults: Faults) -> Self {
        let name = |path: &str| {
            let index = path.strip_prefix("group[")?;
            let (index, rest) = index.split_once(']')?;
            let group = model.groups.get(index.parse::<usize>().ok()?)?;
            let field = rest.rsplit('.').next().filter(|field| !field.is_empty());
            Some(format!("group {}: {}", group.name, field.unwrap_or("it")))
        };
        let faults = faults
            .0
            .into_iter()
            .map(|fault| Fault { path: name(&fault.path).unwrap_or(fault.path), problem: fault.problem });
        let faults = Faults(faults.collect());
        Self::input(
            format!("{called} cannot be served like this:\n{faults}"),
            "change TP, PP, block size, order or tokens, or correct the config",
        )
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        // A model's name on the Hub looks like a path.
        if let ModelError::Read { name, source } = &error
            && source.kind() == ErrorKind::NotFound
            && let Some((owner, model)) = name.split_once('/')
            && !owner.is_empty()
            && !owner.starts_with(['.', '~'])
            && !model.contains('/')
            && !model.ends_with(".json")
        {
            return Self::input(
                chain(&error),
                format!(
                    "name a file or a folder; if {name} is a model of the Hub, fetch its config first: \
                     hf download {name} config.json --local-dir {model}"
                ),
            );
        }
        let right = match &error {
            ModelError::Read { .. } | ModelError::Empty { .. } => {
                "name a model's config.json, or the folder that contains it"
            }
            ModelError::Deployment { .. } => {
                "to see what it caches, pass it as --spec FILE; to plan with it, use --from or --to of `transload plan`"
            }
            ModelError::Config { source: ConfigError::UnknownFamily(UnknownFamily { why: Some(_), .. }), .. } => {
                "describe its caches in a document of your own and pass it as --spec FILE; see \
                 docs/src/reference/models.md"
            }
            ModelError::Config { source: ConfigError::UnknownFamily(_), .. } => {
                "describe its caches in a document of your own and pass it as --spec FILE; see \
                 docs/src/reference/deployment.md"
            }
            ModelError::Config { source: ConfigError::Dtype(_), .. } => {
                "use another --dtype, or leave it out for the model's own type"
            }
            ModelError::Config { .. } => "write the key as the model's config class defines it",
            _ => "name a model's config.json in the format of Hugging Face",
        };
        Self::input(
            match error {
                ModelError::Syntax { name, text, problem, span }
                    if span.as_ref().is_none_or(|span| fits(&text, span)) =>
                {
                    return Self::Input(Report::new(Marked {
                        wrong: format!("{name} is not valid JSON"),
                        right: right.to_owned(),
                        labels: vec![mark(&text, span, problem)],
                        text: NamedSource::new(name, text),
                    }));
                }
                other => chain(&other),
            },
            right,
        )
    }
}

impl From<ParseError> for Failure {
    fn from(error: ParseError) -> Self {
        DocumentError::from(error).into()
    }
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Self {
        let of_config;
        let right = match &error {
            DocumentError::Read { .. } => "name an existing, readable file",
            DocumentError::Parse(ParseError::Empty { .. }) => {
                "write a deployment document into it; `transload inspect config.json --deployment` prints one"
            }
            DocumentError::Parse(ParseError::ModelConfig { name }) => {
                of_config = format!(
                    "say how the model is served: transload plan {name} --from-side tp=4,block=16 --to-side \
                     tp=8,block=64 --tokens 2000; or make a document of it: transload inspect {name} --tp 4 \
                     --deployment > side.toml"
                );
                &of_config
            }
            DocumentError::Parse(ParseError::Syntax { name, .. })
                if name.ends_with(".yaml") || name.ends_with(".yml") =>
            {
                "name a .toml or .json file; this one was read as TOML"
            }
            DocumentError::Parse(ParseError::Syntax { .. }) => {
                "write TOML in a .toml file or JSON in a .json file; other files are JSON if they begin with a \
                 brace, else TOML"
            }
            DocumentError::TooLarge { .. } | DocumentError::NotText { .. } => {
                "name a deployment document: a few KB of TOML or JSON"
            }
            _ => "docs/src/reference/deployment.md lists every field; `transload plan --help` has an example",
        };
        Self::Input(match error {
            DocumentError::Parse(ParseError::Syntax { name, text, syntax, problem, span })
                if span.as_ref().is_none_or(|span| fits(&text, span)) =>
            {
                Report::new(Marked {
                    wrong: format!("{name} is not valid {syntax}"),
                    right: right.to_owned(),
                    labels: vec![mark(&text, span, problem)],
                    text: NamedSource::new(name, text),
                })
            }
            DocumentError::Parse(ParseError::Faults { name, text, faults }) => {
                let mut wrong = match faults.len() {
                    1 => format!("{name} has 1 fault"),
                    n => format!("{name} has {n} faults"),
                };
                let mut labels = Vec::new();
                for Located { fault, span } in faults {
                    // The fault's own format includes its key path.
                    let fault = Faults(vec![fault]).to_string();
                    match span {
                        Some(span) if fits(&text, &span) => {
                            labels.push(LabeledSpan::new_with_span(Some(fault), span));
                        }
                        _ => wrong.push_str(&format!("\n- {fault}")),
                    }
                }
                Report::new(Marked { wrong, right: right.to_owned(), labels, text: NamedSource::new(name, text) })
            }
            other => message(chain(&other), right.to_owned()),
        })
    }
}

#[derive(Debug, Error, Diagnostic)]
#[error("{wrong}")]
struct Marked {
    wrong: String,
    #[help]
    right: String,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
    #[source_code]
    text: NamedSource<String>,
}

/// Creates a mark in a text. A fault at the end of the text is marked after the last word, since the empty line that
/// usually follows would not be shown.
fn mark(text: &str, span: Option<Range<usize>>, problem: String) -> LabeledSpan {
    let (span, end) = (span.unwrap_or(0..0), text.trim_end().len());
    let span = span.start.min(end)..span.end.min(end);
    LabeledSpan::new_with_span(Some(problem), span)
}

/// Returns whether the lines shown for a span, with one line around it, are short enough to read.
fn fits(text: &str, span: &Range<usize>) -> bool {
    let bytes = text.as_bytes();
    let start_of_line = |at: usize| {
        let before = bytes[..at].iter().rposition(|byte| *byte == b'\n');
        before.map_or(0, |newline| newline + 1)
    };
    let end_of_line = |at: usize| {
        let rest = bytes[at..].iter().position(|byte| *byte == b'\n');
        rest.map_or(bytes.len(), |length| at + length)
    };
    let (start, end) = (span.start.min(bytes.len()), span.end.min(bytes.len()));
    let first = start_of_line(start_of_line(start).saturating_sub(1));
    let last = end_of_line((end_of_line(end.max(start)) + 1).min(bytes.len()));
    let mut lines = bytes[first..last].split(|byte| *byte == b'\n');
    lines.all(|line| line.len() <= LONGEST_LINE)
}

/// Formats an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        // Some errors already contain their cause.
        if !text.ends_with(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}

fn message(wrong: String, right: String) -> Report {
    miette::miette!(help = right, "{wrong}")
}

fn print(report: &Report) {
    let mut theme = match terminal::colours_on_stderr() {
        true => GraphicalTheme::unicode(),
        false => GraphicalTheme::unicode_nocolor(),
    };
    // The same beginning as clap's usage errors.
    theme.characters.error = "error:".to_owned();
    let stderr = io::stderr();
    let width = terminal::width(&stderr).map_or(WIDTH, |width| WIDTH.min(width.into()));
    let mut text = String::new();
    let handler = GraphicalReportHandler::new_themed(theme).with_width(width).with_links(false);
    if handler.render_report(&mut text, report.as_ref()).is_err() {
        text = format!("error: {report}\n");
    }
    // If stderr is closed the error cannot be reported.
    let _ = write!(stderr.lock(), "{}", text.trim_start());
}
