//! Passes the logs of the Rust crates to Python's `logging`.
//!
//! Agents log on threads that must not wait for the interpreter. So records go into a bounded queue, from which one
//! thread passes them to `logging`. If the queue is full, records are dropped and counted.

use std::fmt::{Debug, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Once, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// The most records in the queue, of some 100 bytes each. A burst of them means that a whole fleet fails at once.
const WAITING: usize = 1024;

/// The records that are passed on before other threads get the interpreter.
const AT_A_TIME: usize = 64;

/// The longest time that the end of the process waits for the last records.
const FAREWELL: Duration = Duration::from_secs(1);

/// The queue of this process. Its lock is never waited for, since a fork may have left it locked forever.
static QUEUE: RwLock<Option<Queue>> = RwLock::new(None);

struct Queue {
    /// The process that started the queue. Threads do not survive a fork, so a child needs its own queue.
    process: u32,
    records: SyncSender<Record>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// The records in the queue or just taken from it.
    waiting: AtomicU64,
    /// The records dropped since the last report about that.
    lost: AtomicU64,
}

struct Record {
    logger: String,
    level: u8,
    file: &'static str,
    line: u32,
    message: String,
}

/// Starts passing logs to Python. Called by everything that may log.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    static INSTALLED: Once = Once::new();
    let here = process::id();
    if QUEUE.try_read().is_ok_and(|queue| queue.as_ref().is_some_and(|queue| queue.process == here)) {
        return Ok(());
    }
    // Another thread is doing the same, or a fork has left the lock locked; either way there is nothing to do.
    let Ok(mut queue) = QUEUE.try_write() else {
        return Ok(());
    };
    let (records, taken) = sync_channel(WAITING);
    let counts = Arc::new(Counts::default());
    let counted = counts.clone();
    // Imported first: exit handlers run in reverse order, so `logging` still works when ours runs.
    py.import("logging")?;
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(flush, py)?,))?;
    thread::Builder::new().name("transload-log".to_owned()).spawn(move || drain(&taken, &counted))?;
    *queue = Some(Queue { process: here, records, counts });
    drop(queue);
    INSTALLED.call_once(|| {
        let ours = Targets::new().with_target("transload", LevelFilter::DEBUG);
        let subscriber = tracing_subscriber::registry().with(ToPython.with_filter(ours));
        // The command has already installed its own.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
    Ok(())
}

/// Waits briefly until the queue is empty.
#[pyfunction]
fn flush(py: Python<'_>) {
    let counts = match QUEUE.try_read() {
        Ok(queue) => queue.as_ref().filter(|queue| queue.process == process::id()).map(|queue| queue.counts.clone()),
        Err(_) => None,
    };
    let Some(counts) = counts else {
        return;
    };
    py.detach(|| {
        let until = Instant::now() + FAREWELL;
        while counts.waiting.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Ok(queue) = QUEUE.try_read() else {
            return;
        };
        let Some(queue) = queue.as_ref() else {
            return;
        };
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let krate = metadata.target().split("::").next().unwrap_or_default();
        let record = Record {
            // `transload_transfer::agent::driver` logs as `transload.transfer`.
            logger: krate.replace('_', "."),
            level: match *metadata.level() {
                Level::ERROR => 40,
                Level::WARN => 30,
                Level::INFO => 20,
                _ => 10,
            },
            file: metadata.file().unwrap_or_default(),
            line: metadata.line().unwrap_or_default(),
            message: text.message + &text.fields,
        };
        let counts = &queue.counts;
        counts.waiting.fetch_add(1, Ordering::AcqRel);
        if queue.records.try_send(record).is_err() {
            counts.waiting.fetch_sub(1, Ordering::AcqRel);
            counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An event as one line: its message followed by its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Passes records on until the interpreter ends.
fn drain(records: &Receiver<Record>, counts: &Counts) {
    while let Ok(first) = records.recv() {
        let logged = Python::try_attach(|py| {
            let more = records.try_iter().take(AT_A_TIME - 1);
            for record in [first].into_iter().chain(more) {
                // No caller could handle this error.
                if let Err(error) = log(py, &record) {
                    error.write_unraisable(py, None);
                }
                counts.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            let lost = counts.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let record = Record {
                    logger: "transload".to_owned(),
                    level: 30,
                    file: file!(),
                    line: line!(),
                    message: format!("{lost} records were lost: more was logged than could be handled"),
                };
                if let Err(error) = log(py, &record) {
                    error.write_unraisable(py, None);
                }
            }
        });
        if logged.is_none() {
            return;
        }
    }
}

fn log(py: Python<'_>, record: &Record) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (&record.logger,))?;
    if !logger.call_method1("isEnabledFor", (record.level,))?.is_truthy()? {
        return Ok(());
    }
    let made = logger.call_method1(
        "makeRecord",
        (&record.logger, record.level, record.file, record.line, &record.message, PyTuple::empty(py), py.None()),
    )?;
    logger.call_method1("handle", (made,))?;
    Ok(())
}
