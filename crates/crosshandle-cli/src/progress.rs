//! Progress on a terminal's standard error, of what takes longer than a moment.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What is quicker than this shows nothing.
const MOMENT: Duration = Duration::from_millis(400);

/// How often it moves, so that one sees it alive during a long step.
const TICK: Duration = Duration::from_millis(100);

/// Hidden at first, and altogether where standard error is no terminal. Gone when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Shows the bar after a moment, even if a single step takes long.
    shower: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Of so many bytes.
    pub(crate) fn bytes(total: u64, doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        Self::new(bar, template, doing)
    }

    /// Of steps that take what they take.
    pub(crate) fn steps(doing: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self::new(bar, "{spinner} {msg}", doing)
    }

    fn new(bar: ProgressBar, template: &str, doing: &'static str) -> Self {
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(doing);
        let shower = stderr().is_terminal().then(|| show_later(bar.clone()));
        Self { bar, shower }
    }

    /// So many more are done.
    pub(crate) fn advance(&self, by: u64) {
        self.bar.inc(by);
    }

    /// Something else is being done now.
    pub(crate) fn step(&self, doing: &'static str) {
        self.bar.set_message(doing);
    }
}

fn show_later(bar: ProgressBar) -> (Sender<()>, JoinHandle<()>) {
    let (done, wait) = channel();
    let thread = thread::spawn(move || {
        if wait.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    });
    (done, thread)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.shower.take() {
            // Not to be shown any more, and no longer being shown, before it is cleared.
            drop(done);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
