//! Jobs in the background, so many at a time for each process and each user: a maker that never answers
//! costs those that ask for it, and not the others.

use super::super::message::refused;
use super::super::tuning::{MAX_JOBS, MAX_JOBS_OF_PROCESS, MAX_JOBS_OF_USER};
use super::Server;
use super::programs::Asker;
use crate::error::{Error, HolderFault, Result};
use crate::threads::background;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What is done on the holder's own thread when a job is over.
pub(super) type Then = Box<dyn FnOnce(&mut Server) + Send>;
type Job = Box<dyn FnOnce() -> Then + Send>;

/// A job that waits for its turn.
struct Queued {
    program: u64,
    asker: Asker,
    job: Job,
}

/// A job that is over.
struct Finished {
    program: u64,
    asker: Asker,
    /// `None` if it panicked.
    then: Option<Then>,
}

pub(super) struct Jobs {
    /// Whom the running ones are for, also those whose program has hung up since.
    running: Vec<Asker>,
    queue: VecDeque<Queued>,
    finished: (Sender<Finished>, Receiver<Finished>),
    wake: Arc<OwnedFd>,
}

impl Jobs {
    pub(super) fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            running: Vec::new(),
            queue: VecDeque::new(),
            finished: channel(),
            wake: Arc::new(wake.map_err(Error::os("making an eventfd"))?),
        })
    }

    /// Returns what can be read from when a job is over.
    pub(super) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Does a job for a program when it is its turn.
    pub(super) fn submit(
        &mut self,
        program: u64,
        asker: Asker,
        job: impl FnOnce() -> Then + Send + 'static,
    ) {
        self.queue.push_back(Queued {
            program,
            asker,
            job: Box::new(job),
        });
    }

    fn may_start(&self, asker: Asker) -> bool {
        let count = |is_it: &dyn Fn(&Asker) -> bool| {
            self.running.iter().filter(|running| is_it(running)).count()
        };
        self.running.len() < MAX_JOBS
            && count(&|running| running.uid == asker.uid) < MAX_JOBS_OF_USER
            && count(&|running| running.is_same_process(&asker)) < MAX_JOBS_OF_PROCESS
    }

    fn start(
        &mut self,
        Queued {
            program,
            asker,
            job,
        }: Queued,
    ) {
        self.running.push(asker);
        let mut report = Report {
            finished: Some(Finished {
                program,
                asker,
                then: None,
            }),
            sender: self.finished.0.clone(),
            wake: Arc::clone(&self.wake),
        };
        background::run_blocking(move || {
            let then = job();
            if let Some(finished) = &mut report.finished {
                finished.then = Some(then);
            }
        });
    }
}

/// Tells the holder that a job is over, also of one that panics.
struct Report {
    finished: Option<Finished>,
    sender: Sender<Finished>,
    wake: Arc<OwnedFd>,
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(finished) = self.finished.take() {
            // It fails only if the holder has ended.
            let _ = self.sender.send(finished);
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
    }
}

impl Server {
    /// Starts the jobs whose turn it is, and forgets those whose program has hung up.
    pub(super) fn start_jobs(&mut self) {
        let mut index = 0;
        while let Some(queued) = self.jobs.queue.get(index) {
            if self.position(queued.program).is_none() {
                self.jobs.queue.remove(index);
            } else if self.jobs.may_start(queued.asker) {
                let queued = self.jobs.queue.remove(index).expect("it is there");
                self.jobs.start(queued);
            } else {
                index += 1;
            }
        }
    }

    pub(super) fn take_finished_jobs(&mut self) {
        let _ = rustix::io::read(self.jobs.wake(), &mut [0; 8]);
        while let Ok(finished) = self.jobs.finished.1.try_recv() {
            let Finished {
                program,
                asker,
                then,
            } = finished;
            if let Some(index) = self.jobs.running.iter().position(|of| *of == asker) {
                self.jobs.running.swap_remove(index);
            }
            match then {
                Some(then) => then(self),
                None => {
                    let why = "the holder has failed at this; its standard error says how";
                    self.reply(program, &refused(HolderFault::Refused, why));
                }
            }
        }
    }
}
