//! A progress bar on a terminal's standard error, for long actions.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time before the bar appears: quicker actions show none.
const SHOW_DELAY: Duration = Duration::from_millis(400);

/// Interval of the bar's movement, which shows during a long step that the program is alive.
const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// A progress bar: hidden at first, and always where standard error is no terminal. Removed when
/// dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The thread that shows the bar after a moment, even during a long step.
    show_thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Returns a bar for a known number of bytes.
    pub(crate) fn bytes(total: u64, doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        Self::new(bar, template, doing)
    }

    /// Returns a bar for steps of unknown length.
    pub(crate) fn steps(doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self::new(bar, "{spinner} {msg}", doing)
    }

    fn new(bar: ProgressBar, template: &str, doing: &'static str) -> Self {
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(doing);
        let show_thread = stderr().is_terminal().then(|| show_later(bar.clone()));
        Self { bar, show_thread }
    }

    /// Advances the bar.
    pub(crate) fn advance(&self, by: u64) {
        self.bar.inc(by);
    }

    /// Sets the name of the current step.
    pub(crate) fn step(&self, doing: &'static str) {
        self.bar.set_message(doing);
    }
}

fn show_later(bar: ProgressBar) -> (Sender<()>, JoinHandle<()>) {
    let (done, wait) = channel();
    let thread = thread::spawn(move || {
        if wait.recv_timeout(SHOW_DELAY) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK_INTERVAL);
        }
    });
    (done, thread)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.show_thread.take() {
            // Makes sure that the bar is not and will not be shown, before it is cleared.
            drop(done);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
