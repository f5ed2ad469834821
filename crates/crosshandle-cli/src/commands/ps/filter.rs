//! Selection of the processes and objects that `ps` lists.

use super::silent::SilentExporter;
use crosshandle::report::{ContextReport, EventReport, ProcessReport};

/// The user's criteria. Without any criterion, `ps` lists everything.
pub(super) struct Filter<'a> {
    pids: &'a [u32],
    /// Text that a name must contain, in lower case.
    name: Option<String>,
}

impl<'a> Filter<'a> {
    pub(super) fn new(pids: &'a [u32], name: Option<&str>) -> Self {
        Self {
            pids,
            name: name.map(str::to_lowercase),
        }
    }

    pub(super) fn is_any(&self) -> bool {
        !self.pids.is_empty() || self.name.is_some()
    }

    /// Returns the part of a report that matches the criteria, or `None` if nothing matches.
    pub(super) fn apply(&self, report: &ProcessReport) -> Option<ProcessReport> {
        let mut report = report.clone();
        if !self.pids.is_empty() && !self.pids.contains(&report.pid) {
            report.contexts.retain(|context| self.has_pid(context));
            if report.contexts.is_empty() {
                return None;
            }
        }
        if !self.has_name(&report.program) && self.name.is_some() {
            report
                .contexts
                .retain_mut(|context| self.keep_named(context));
            if report.contexts.is_empty() {
                return None;
            }
        }
        Some(report)
    }

    /// Returns `true` if a process that did not reply matches the criteria.
    pub(super) fn admits_silent(&self, silent: &SilentExporter) -> bool {
        let by_pid = self.pids.is_empty() || silent.pid.is_some_and(|pid| self.pids.contains(&pid));
        by_pid && (self.name.is_none() || self.has_name(&silent.program))
    }

    fn has_pid(&self, context: &ContextReport) -> bool {
        let has = |pid: &u32| self.pids.contains(pid);
        let in_event = |event: &EventReport| {
            let mut culprits = event
                .waiters
                .iter()
                .filter_map(|waiter| waiter.culprit.as_ref());
            event.waiters.iter().any(|waiter| has(&waiter.pid))
                || culprits.any(|signal| has(&signal.pid))
                || event.unfinished.iter().any(|signal| has(&signal.pid))
        };
        context.importers.iter().any(|importer| has(&importer.pid))
            || context.events.iter().any(in_event)
    }

    fn has_name(&self, name: &str) -> bool {
        self.name
            .as_ref()
            .is_some_and(|wanted| name.to_lowercase().contains(wanted))
    }

    /// Removes from a context the objects that do not match the name. Returns `true` if the context
    /// must still be listed.
    fn keep_named(&self, context: &mut ContextReport) -> bool {
        let has = |name: &Option<String>| name.as_ref().is_some_and(|name| self.has_name(name));
        if has(&context.name) {
            return true;
        }
        let by_importer = context
            .importers
            .iter()
            .any(|importer| self.has_name(&importer.program));
        if by_importer {
            return true;
        }
        context.memory.retain(|memory| has(&memory.name));
        context.events.retain(|event| has(&event.name));
        !context.memory.is_empty() || !context.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::waits::tests::fixture;
    use super::*;

    fn pids(filter: &Filter<'_>) -> Vec<u32> {
        let reports = fixture();
        let shown = reports.iter().filter_map(|report| filter.apply(report));
        shown.map(|report| report.pid).collect()
    }

    #[test]
    fn processes_are_chosen_by_pid() {
        assert_eq!(pids(&Filter::new(&[], None)), [100, 200, 300, 400]);
        assert_eq!(pids(&Filter::new(&[300], None)), [100, 200, 300]);
        assert_eq!(pids(&Filter::new(&[400, 100], None)), [100, 400]);
        assert_eq!(pids(&Filter::new(&[1], None)), [] as [u32; 0]);
    }

    #[test]
    fn objects_are_chosen_by_name() {
        assert_eq!(pids(&Filter::new(&[], Some("TRAIN"))), [100, 200, 300]);
        assert_eq!(pids(&Filter::new(&[], Some("nobody's"))), [] as [u32; 0]);
        let filter = Filter::new(&[], Some("step"));
        let reports = fixture();
        let shown = filter.apply(&reports[0]).expect("an event of that name");
        assert_eq!(shown.contexts[0].events.len(), 1);
        assert!(shown.contexts[0].memory.is_empty());
        assert_eq!(pids(&Filter::new(&[200], Some("step"))), [100]);
    }
}
