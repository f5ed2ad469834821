//! Samples of a holder's state.

use crate::commands::ps::text::process;
use crate::commands::ps::waits::waits;
use crate::settings::Settings;
use crosshandle::holder::{HeldName, Holder, Status};
use crosshandle::report::{self, ContextReport, ProcessReport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Maximum time for the holder and other processes to report their state. With less, a busy
/// machine looks unhealthy. With more, a stopped holder is reported later.
const METRICS_RESPONSE_TIME: Duration = Duration::from_secs(1);

/// Maximum age of a sample that is reused for another request. It limits the load that many
/// scrapers cause.
const METRICS_SAMPLE_AGE: Duration = Duration::from_millis(500);

/// Maximum number of deaths that the page lists.
const METRICS_DEATHS: usize = 20;

/// A name that the holder keeps.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) held: HeldName,
    /// Number of processes that have memory of this name open.
    pub(super) readers: usize,
}

/// A process that ended without closing its open objects.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) when: SystemTime,
    pub(super) who: String,
    /// The names that the process had open.
    pub(super) names: String,
}

#[derive(Debug)]
pub(super) struct Sample {
    pub(super) status: Status,
    pub(super) names: Vec<Name>,
    pub(super) refusals: u64,
    pub(super) deaths: u64,
    pub(super) importers: usize,
    /// A line for each wait on this machine, the longest wait first.
    pub(super) waits: Vec<String>,
    pub(super) longest_wait: Duration,
    pub(super) recent_deaths: Vec<Death>,
    pub(super) open_files: usize,
    pub(super) started_unix_s: u64,
}

/// Queries the holder of this process, and remembers which processes had which names open.
pub(super) struct Sampler {
    holder: Holder,
    directories: Vec<PathBuf>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    sample: Option<(Instant, Arc<Sample>)>,
    /// The processes that had names open at the last sample, each with its description and its
    /// names.
    importers: BTreeMap<(String, u32, u16), (String, BTreeSet<String>)>,
    deaths: u64,
    recent: VecDeque<Death>,
}

impl Sampler {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            holder: settings.holder(None).timeout(METRICS_RESPONSE_TIME),
            directories: settings.socket_directories(),
            last: Mutex::default(),
        }
    }

    /// Returns a sample that is at most `METRICS_SAMPLE_AGE` old.
    pub(super) fn sample(&self) -> crosshandle::Result<Arc<Sample>> {
        // Only one thread at a time queries the holder. Other threads wait for its result, for at
        // most twice the time limit of a query.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((taken, sample)) = &last.sample
            && taken.elapsed() < METRICS_SAMPLE_AGE
        {
            return Ok(Arc::clone(sample));
        }
        let sample = Arc::new(self.take(&mut last)?);
        last.sample = Some((Instant::now(), Arc::clone(&sample)));
        Ok(sample)
    }

    fn take(&self, last: &mut Last) -> crosshandle::Result<Sample> {
        let status = self.holder.status()?;
        let names = self.holder.list()?;
        let reports = report::exporters(&self.directories, METRICS_RESPONSE_TIME);
        let reports: Vec<ProcessReport> = reports.into_iter().filter_map(Result::ok).collect();
        let nothing = ProcessReport::default();
        let own = reports.iter().find(|report| report.pid == status.pid);
        let own = own.unwrap_or(&nothing);
        let contexts = &own.contexts;
        let sum =
            |of: fn(&ContextReport) -> u64| contexts.iter().map(of).fold(0, u64::saturating_add);
        let deaths = sum(|context| context.counters.deaths);
        last.compare(own, deaths);
        let all = waits(&reports);
        let name = |held: HeldName| {
            let readers = readers(own, &held.name);
            Name { held, readers }
        };
        Ok(Sample {
            names: names.into_iter().map(name).collect(),
            refusals: sum(|context| context.counters.refusals).saturating_add(own.refusals),
            deaths,
            importers: contexts.iter().map(|context| context.importers.len()).sum(),
            longest_wait: all.first().map_or(Duration::ZERO, |wait| wait.time()),
            waits: all
                .iter()
                .map(|wait| format!("{} for {}: {}", wait.who(), wait.of_what(), wait.why(&all)))
                .collect(),
            recent_deaths: last.recent.iter().cloned().collect(),
            open_files: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            started_unix_s: own.started_unix_s,
            status,
        })
    }
}

/// Returns the number of processes that have some of a name's memory open.
fn readers(own: &ProcessReport, name: &str) -> usize {
    let mut readers = BTreeSet::new();
    for context in &own.contexts {
        for memory in &context.memory {
            let held = memory.name.as_deref().and_then(|own| own.rsplit_once('/'));
            if held.is_some_and(|(held, _)| held == name) {
                let owners = memory.opened_by.iter().map(|opener| opener.owner);
                let pid = |owner| {
                    let mut importers = context.importers.iter();
                    let importer = importers.find(|importer| importer.owner == owner);
                    importer.map_or(0, |importer| importer.pid)
                };
                readers.extend(
                    owners.map(|owner| (pid(owner), if pid(owner) == 0 { owner } else { 0 })),
                );
            }
        }
    }
    readers.len()
}

impl Last {
    /// Finds the processes that have died since the last sample. If the holder counts more deaths
    /// than before, these are the processes that no longer exist.
    fn compare(&mut self, own: &ProcessReport, deaths: u64) {
        let mut now = BTreeMap::new();
        for context in &own.contexts {
            for importer in &context.importers {
                let memory = context.memory.iter().filter(|memory| {
                    let mut openers = memory.opened_by.iter();
                    openers.any(|opener| opener.owner == importer.owner)
                });
                let names = memory.filter_map(|memory| {
                    let name = memory.name.as_deref()?;
                    Some(
                        name.rsplit_once('/')
                            .map_or(name, |(held, _)| held)
                            .to_owned(),
                    )
                });
                let who = process(importer.pid, &importer.program);
                let key = (own.exporter.clone(), context.number, importer.owner);
                now.insert(key, (who, names.collect::<BTreeSet<_>>()));
            }
        }
        if deaths > self.deaths {
            for (key, (who, names)) in &self.importers {
                if !now.contains_key(key) {
                    let names: Vec<_> = names.iter().map(String::as_str).collect();
                    self.recent.push_front(Death {
                        when: SystemTime::now(),
                        who: who.clone(),
                        names: names.join(", "),
                    });
                }
            }
            self.recent.truncate(METRICS_DEATHS);
        }
        (self.importers, self.deaths) = (now, deaths);
    }
}
