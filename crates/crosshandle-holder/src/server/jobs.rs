//! Background jobs. An exporter that never replies delays only the programs that wait for it. Users
//! take turns, and so do the processes of a user. Each user and each process leaves some places
//! free for others.

use super::super::identity::Asker;
use super::super::message::refused;
use super::Server;
use super::programs::Stage;
use super::quota::{Limit, Resource, Tally};
use crosshandle_os::threads::background;
use crosshandle_types::error::{Error, HolderFault, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::retry_on_intr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The work that follows a job, on the holder's own thread.
pub(super) type Then = Box<dyn FnOnce(&mut Server) + Send>;
type Job = Box<dyn FnOnce() -> Then + Send>;

/// A queued job.
struct Queued {
    program: u64,
    asker: Asker,
    job: Job,
}

/// A job that has ended.
struct Finished {
    program: u64,
    asker: Asker,
    /// `None` if the job panicked.
    then: Option<Then>,
}

pub(super) struct Jobs {
    /// The processes for which jobs run, including those whose program has disconnected since.
    running: Vec<Asker>,
    queue: VecDeque<Queued>,
    /// The last turn of each process with queued jobs, counted in started jobs.
    turns: BTreeMap<Asker, u64>,
    starts: u64,
    finished: (Sender<Finished>, Receiver<Finished>),
    wake: Arc<OwnedFd>,
}

impl Jobs {
    pub(super) fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            running: Vec::new(),
            queue: VecDeque::new(),
            turns: BTreeMap::new(),
            starts: 0,
            finished: channel(),
            wake: Arc::new(wake.map_err(Error::os("making an eventfd"))?),
        })
    }

    /// Returns the descriptor that becomes readable when a job has ended.
    pub(super) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Queues a job for a program.
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

    /// Returns whether a program's job is queued.
    pub(super) fn is_queued(&self, program: u64) -> bool {
        self.queue.iter().any(|queued| queued.program == program)
    }

    /// Removes the job whose turn is next from the queue, if a job may start.
    fn take_next(&mut self, limit: Limit, has_users: bool) -> Option<Queued> {
        let running = Tally::from_iter(self.running.iter().copied());
        let turn = |asker: Asker| {
            // The last turn of a user is the latest turn of its processes.
            let of_user = self.turns.range(Asker { pid: 0, ..asker }..);
            let of_user = of_user.take_while(|(of, _)| of.uid == asker.uid);
            let last_of_user = of_user.map(|(_, turn)| *turn).max();
            let last = self.turns.get(&asker).copied();
            (last_of_user.unwrap_or(0), last.unwrap_or(0))
        };
        let may_start = |asker: Asker| {
            // A process may also only have as many running jobs as remain free for others.
            let left = limit.all.saturating_sub(running.all());
            let has = running.of_process(asker);
            has < left && running.admits(limit, asker, 1, has_users).is_ok()
        };
        let queue = self.queue.iter().enumerate();
        let startable = queue.filter(|(_, queued)| may_start(queued.asker));
        let (index, _) = startable.min_by_key(|(index, queued)| (turn(queued.asker), *index))?;
        let next = self.queue.remove(index)?;
        self.starts += 1;
        self.turns.insert(next.asker, self.starts);
        Some(next)
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

/// Reports to the holder that a job has ended, even if it panics.
struct Report {
    finished: Option<Finished>,
    sender: Sender<Finished>,
    wake: Arc<OwnedFd>,
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(finished) = self.finished.take() {
            // Sending fails only if the holder has ended.
            let _ = self.sender.send(finished);
            let _ = retry_on_intr(|| rustix::io::write(&*self.wake, &1_u64.to_ne_bytes()));
        }
    }
}

impl Server {
    /// Notes that a job runs for a program.
    pub(super) fn begin_work(&mut self, program: u64) {
        if let Some(index) = self.position(program) {
            self.connected[index].stage = Stage::Working;
        }
    }

    /// Starts the jobs that may run. Drops those whose program has disconnected or was put off.
    pub(super) fn start_jobs(&mut self) {
        if self.jobs.queue.is_empty() {
            self.jobs.turns.clear();
            return;
        }
        let working: BTreeSet<u64> = (self.connected.iter())
            .filter(|program| program.takes(Resource::QueuedJobs))
            .map(|program| program.number)
            .collect();
        (self.jobs.queue).retain(|queued| working.contains(&queued.program));
        let limit = self.quota.limit(Resource::Jobs);
        while let Some(queued) = self.jobs.take_next(limit, self.quota.has_users) {
            self.jobs.start(queued);
        }
    }

    pub(super) fn take_finished_jobs(&mut self) {
        let _ = retry_on_intr(|| rustix::io::read(self.jobs.wake(), &mut [0; 8]));
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
