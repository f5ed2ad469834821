//! Waits for signals, and their causes.

use super::text;
use crate::units::age;
use crosshandle::report::{ContextReport, EventReport, ProcessReport, Waiter};
use std::time::Duration;

/// A thread that waits for a signal, and the reason why the signal is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    /// The process that shares the event.
    pub(crate) process: &'a ProcessReport,
    pub(crate) context: &'a ContextReport,
    pub(crate) event: &'a EventReport,
    pub(crate) waiter: &'a Waiter,
    pub(crate) culprit: Culprit<'a>,
}

/// The reason why a signal is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Culprit<'a> {
    /// This process has submitted the signal, but the signal is not complete. If `earlier` is set,
    /// this process has submitted that earlier signal, which must complete first.
    Unfinished {
        pid: u32,
        program: &'a str,
        earlier: Option<u64>,
    },
    /// No process has submitted the signal yet.
    NotSubmitted,
    /// The signal is complete, and the thread is about to wake.
    Complete,
}

/// Returns all waits in some reports, the longest wait first.
pub(crate) fn waits(reports: &[ProcessReport]) -> Vec<Wait<'_>> {
    let mut waits = Vec::new();
    for process in reports {
        for context in &process.contexts {
            for event in &context.events {
                waits.extend(event.waiters.iter().map(|waiter| Wait {
                    process,
                    context,
                    event,
                    waiter,
                    culprit: culprit(event, waiter),
                }));
            }
        }
    }
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.waiter.waiting_ns));
    waits
}

fn culprit<'a>(event: &EventReport, waiter: &'a Waiter) -> Culprit<'a> {
    match &waiter.culprit {
        Some(signal) => Culprit::Unfinished {
            pid: signal.pid,
            program: &signal.program,
            earlier: Some(signal.number).filter(|number| *number != waiter.number),
        },
        None if waiter.number > event.submitted => Culprit::NotSubmitted,
        None => Culprit::Complete,
    }
}

impl<'a> Wait<'a> {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.waiter.waiting_ns)
    }

    /// Returns the chain of waits that block this wait. The first is the longest wait of the
    /// culprit process, the second is the longest wait of that wait's culprit, and so on. The chain
    /// ends when a process repeats.
    pub(crate) fn behind(&self, all: &[Wait<'a>]) -> Vec<Wait<'a>> {
        let mut chain: Vec<Wait<'a>> = Vec::new();
        let mut last = *self;
        while let Culprit::Unfinished { pid, .. } = last.culprit {
            let is_known =
                pid == self.waiter.pid || chain.iter().any(|earlier| earlier.waiter.pid == pid);
            // The waits are sorted, so the first match is the longest. The ID 0 stands for a
            // process that is not visible in this PID namespace.
            let next = all.iter().find(|wait| pid != 0 && wait.waiter.pid == pid);
            match next {
                Some(next) if !is_known => chain.push(*next),
                _ => break,
            }
            last = *next.expect("just found");
        }
        chain
    }

    /// Describes the waiting thread and the duration, such as
    /// `300 viewer (thread 301) has waited 35s`.
    pub(crate) fn who(&self) -> String {
        let Waiter { pid, thread, .. } = *self.waiter;
        let process = text::process(pid, &self.waiter.program);
        let thread = match thread {
            0 => String::new(),
            thread if thread == pid => String::new(),
            thread => format!(" (thread {thread})"),
        };
        format!("{process}{thread} has waited {}", age(self.time()))
    }

    /// Describes the awaited event, such as `event 2 "step" of 100 trainer`.
    pub(crate) fn of_what(&self) -> String {
        format!(
            "{} of {}",
            text::object("event", self.event.record, self.event.name.as_deref()),
            text::process(self.process.pid, &self.process.program)
        )
    }

    /// Returns the reason why the wait has not ended, followed by the reasons of all waits that
    /// [block it](Self::behind).
    pub(crate) fn why(&self, all: &[Wait<'a>]) -> String {
        let mut why = self.culprit.to_string();
        let chain = self.behind(all);
        for wait in &chain {
            why += &format!(
                "; {} waits for signal {} of {}: {}",
                text::process(wait.waiter.pid, &wait.waiter.program),
                wait.waiter.number,
                wait.of_what(),
                wait.culprit
            );
        }
        let last = chain.last().unwrap_or(self);
        if let Culprit::Unfinished { pid, .. } = last.culprit {
            let is_circle =
                pid == self.waiter.pid || chain.iter().any(|wait| wait.waiter.pid == pid);
            if is_circle {
                why += " (they wait for each other)";
            }
        }
        why
    }
}

impl std::fmt::Display for Culprit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unfinished {
                pid,
                program,
                earlier,
            } => {
                let process = text::process(*pid, program);
                match earlier {
                    None => write!(f, "{process} has not finished it"),
                    Some(number) => {
                        write!(
                            f,
                            "{process} has not finished signal {number}, which comes first"
                        )
                    }
                }
            }
            Self::NotSubmitted => f.write_str("no process has submitted it yet"),
            Self::Complete => f.write_str("it is complete"),
        }
    }
}

#[cfg(test)]
pub(in crate::commands) mod tests {
    use super::*;

    /// Returns reports of four processes. Three of them are involved in a stuck wait.
    pub(in crate::commands) fn fixture() -> Vec<ProcessReport> {
        serde_json::from_str(include_str!("fixture.json")).expect("reports")
    }

    #[test]
    fn a_wait_names_its_culprit_and_what_that_one_waits_for() {
        let reports = fixture();
        let all = waits(&reports);
        let [first, second] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(first.who(), "200 train-worker has waited 40s");
        assert_eq!(first.of_what(), "event 7 \"ready\" of 300 viewer");
        assert_eq!(first.why(&all), "no process has submitted it yet");
        assert_eq!(second.who(), "300 viewer (thread 301) has waited 35s");
        assert_eq!(
            second.why(&all),
            "200 train-worker has not finished it; 200 train-worker waits for signal 1 of event 7 \
             \"ready\" of 300 viewer: no process has submitted it yet"
        );
    }

    #[test]
    fn a_circle_ends() {
        let mut reports = fixture();
        let mut signal = reports[0].contexts[0].events[0].unfinished[0].clone();
        signal.number = 1;
        signal.pid = 300;
        signal.program = "viewer".into();
        let event = &mut reports[2].contexts[0].events[0];
        event.submitted = 1;
        event.waiters[0].culprit = Some(signal);
        let all = waits(&reports);
        for wait in &all {
            assert_eq!(wait.behind(&all).len(), 1);
            assert!(wait.why(&all).ends_with("(they wait for each other)"));
        }
    }

    #[test]
    fn a_signal_that_comes_first_is_named() {
        let mut reports = fixture();
        let waiter = &mut reports[0].contexts[0].events[0].waiters[0];
        waiter.culprit.as_mut().expect("there is one").number = 5;
        let all = waits(&reports);
        let why = all[1].why(&all);
        let expected = "200 train-worker has not finished signal 5, which comes first; 200 ";
        assert!(why.starts_with(expected), "{why}");
    }

    #[test]
    fn a_completed_signal_has_no_culprit() {
        let mut reports = fixture();
        reports[0].contexts[0].events[0].waiters[0].culprit = None;
        let all = waits(&reports);
        assert_eq!(all[1].culprit, Culprit::Complete);
    }
}
