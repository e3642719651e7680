//! A progress bar on stderr, for work that takes longer than a second.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time after which a bar appears.
const PATIENCE: Duration = Duration::from_secs(1);

/// The interval at which the bar's clock advances without other progress.
const TICK: Duration = Duration::from_millis(500);

/// The progress of one operation; the bar disappears when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a progress of `total` steps with a name for the user.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} {bar:40} {percent:>3} % {elapsed:>4}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        let waiting = bar.downgrade();
        std::thread::spawn(move || {
            std::thread::sleep(PATIENCE);
            if let Some(bar) = waiting.upgrade().filter(|bar| !bar.is_finished()) {
                // indicatif draws nothing if stderr is not a terminal.
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(TICK);
            }
        });
        Self { bar }
    }

    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    pub(crate) fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Sets the number of completed steps and the total, which may have grown.
    pub(crate) fn reach_of(&self, steps: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(steps);
    }

    pub(crate) fn reach(&self, steps: u64) {
        self.bar.set_position(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
