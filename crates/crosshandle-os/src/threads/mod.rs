//! The threads that this library starts. [`ThreadKind::start`] and [`ThreadKind::run_beside`] start
//! all of them, and name each after its kind. For each kind, `docs/threads.md` describes which code
//! starts it, what it runs, when it ends and what it may block on.

pub mod background;
pub mod backoff;
pub mod disposer;
pub mod driver_jobs;
pub mod exchange;
pub mod round_robin;
mod tuning;

use crate::process;
use crosshandle_types::error::{Error, Result};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

/// Time after which another thread retries to start a background thread that the system refused to
/// start.
pub const START_RETRY: Duration = Duration::from_millis(10);

/// The kinds of threads. Linux shows only the first 15 bytes of a thread's name, so no name is
/// longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadKind {
    /// Answers importers and notices hang-ups. Never blocks and never calls a driver.
    Exchange,
    /// Holds the record locks that show other processes that this process is alive. Has its own
    /// descriptor table.
    Liveness,
    /// Runs jobs that may block or must be retried: drops, late completions, callbacks.
    Background,
    /// Sleeps on all awaited signals, and notifies their waiters.
    Await,
    /// Closes descriptors that peers sent, if closing may block.
    Disposer,
    /// Runs the scheduler of one CUDA context's streams.
    CudaScheduler,
    /// Submits commands to one Level Zero command list.
    LevelZeroList,
    /// Runs the commands of one host queue.
    HostQueue,
    /// Copies between a file and memory, in parallel with the calling thread.
    FileCopy,
    /// Populates memory, in parallel with the calling thread.
    Populate,
}

impl ThreadKind {
    /// Returns the name that the system shows, of at most 15 bytes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exchange => "xh-exchange",
            Self::Liveness => "xh-liveness",
            Self::Await => "xh-await",
            Self::Disposer => "xh-disposer",
            Self::Background => "xh-background",
            Self::CudaScheduler => "xh-cuda-sched",
            Self::LevelZeroList => "xh-ze-list",
            Self::HostQueue => "xh-host-queue",
            Self::FileCopy => "xh-file-copy",
            Self::Populate => "xh-populate",
        }
    }

    /// Starts a thread of this kind. [`Liveness`](Self::Liveness) starts with all signals blocked.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if the system starts no more threads.
    #[expect(
        clippy::disallowed_methods,
        reason = "all threads of the library start here"
    )]
    pub fn start(self, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        let thread = Builder::new().name(self.name().into());
        let spawned = match self {
            // The program's signal handlers must not run on this thread, because it has its own
            // descriptor table.
            Self::Liveness => process::without_signals(|| thread.spawn(body)),
            _ => thread.spawn(body),
        };
        spawned.map_err(|error| Error::LimitReached {
            what: format!("the thread {} cannot be started: {error}", self.name()),
            remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
        })
    }

    /// Runs `body` on this thread and on `others` more threads. If the system refuses to start some
    /// of them, fewer threads run it. Returns when all of them are done.
    #[expect(
        clippy::disallowed_methods,
        reason = "all threads of the library start here"
    )]
    pub fn run_beside(self, others: usize, body: impl Fn() + Sync) {
        thread::scope(|scope| {
            for _ in 0..others {
                let thread = Builder::new().name(self.name().into());
                if thread.spawn_scoped(scope, &body).is_err() {
                    break;
                }
            }
            body();
        });
    }
}
