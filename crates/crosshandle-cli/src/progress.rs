//! Shows the progress of long operations on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time during which progress stays hidden, so that quick commands show none.
const PROGRESS_DELAY: Duration = Duration::from_millis(400);

/// Interval at which progress is redrawn, so that it moves during a long step.
const PROGRESS_REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// A progress bar, which is cleared when dropped.
///
/// The bar is hidden during the first `PROGRESS_DELAY`, and always if standard error is not a
/// terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The thread that shows the bar after `PROGRESS_DELAY`, and the sender that stops the thread.
    delayed_show: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts the progress of an operation on `total` bytes.
    pub(crate) fn bytes(total: u64, doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        Self::new(bar, template, doing)
    }

    /// Starts the progress of steps whose duration is unknown.
    pub(crate) fn steps(doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self::new(bar, "{spinner} {msg}", doing)
    }

    fn new(bar: ProgressBar, template: &str, doing: &'static str) -> Self {
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(doing);
        let delayed_show = stderr().is_terminal().then(|| show_later(bar.clone()));
        Self { bar, delayed_show }
    }

    /// Counts `bytes` more as done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Shows the name of the step that starts now.
    pub(crate) fn step(&self, doing: &'static str) {
        self.bar.set_message(doing);
    }
}

/// Starts a thread that shows the bar after `PROGRESS_DELAY` unless the sender is dropped first.
fn show_later(bar: ProgressBar) -> (Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = channel();
    let thread = thread::spawn(move || {
        if stopped.recv_timeout(PROGRESS_DELAY) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(PROGRESS_REDRAW_INTERVAL);
        }
    });
    (stop, thread)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.delayed_show.take() {
            // The thread must end before the bar is cleared, because it could show the bar again.
            drop(stop);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
