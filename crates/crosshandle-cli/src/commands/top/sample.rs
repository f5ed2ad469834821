//! Successive samples of all processes, and the rates between them.

use crate::commands::ps::Answers;
use crate::commands::ps::silent::SilentExporter;
use crosshandle::report::{ChannelReport, ContextReport, EventReport, ProcessReport};

/// The last two samples of all processes.
#[derive(Default)]
pub(super) struct Samples {
    earlier: Vec<ProcessReport>,
    now: Vec<ProcessReport>,
    silent: Vec<SilentExporter>,
}

/// Rates per second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rates {
    pub(super) copied_bytes: f64,
    pub(super) signals: f64,
}

impl Samples {
    pub(super) fn add(&mut self, answers: Answers) {
        self.earlier = std::mem::replace(&mut self.now, answers.reports);
        self.silent = answers.silent;
    }

    pub(super) fn reports(&self) -> &[ProcessReport] {
        &self.now
    }

    /// Returns the exporters that did not reply to the last query.
    pub(super) fn silent(&self) -> &[SilentExporter] {
        &self.silent
    }

    /// Returns the rates of a context, or `None` without an earlier sample of it.
    pub(super) fn of_context(
        &self,
        process: &ProcessReport,
        context: &ContextReport,
    ) -> Option<Rates> {
        let (earlier, seconds) = self.earlier(process)?;
        let before = context_of(earlier, context.number)?.counters;
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Some(Rates {
            copied_bytes: per_second(context.counters.copied_bytes, before.copied_bytes),
            signals: per_second(context.counters.signals, before.signals),
        })
    }

    /// Returns the summed rates of all contexts of a process.
    pub(super) fn of_process(&self, process: &ProcessReport) -> Option<Rates> {
        self.earlier(process)?;
        let contexts = process.contexts.iter();
        let mut sum = Rates::default();
        for rates in contexts.filter_map(|context| self.of_context(process, context)) {
            sum.copied_bytes += rates.copied_bytes;
            sum.signals += rates.signals;
        }
        Some(sum)
    }

    /// Returns an event's signals per second.
    pub(super) fn of_event(
        &self,
        process: &ProcessReport,
        context: &ContextReport,
        event: &EventReport,
    ) -> Option<f64> {
        let (earlier, seconds) = self.earlier(process)?;
        let events = &context_of(earlier, context.number)?.events;
        let before = events.iter().find(|before| before.record == event.record)?;
        // If the number of signals has decreased, the record now belongs to another event.
        let signals = event.submitted.checked_sub(before.submitted)?;
        Some(signals as f64 / seconds)
    }

    /// Returns a channel's items per second.
    pub(super) fn of_channel(
        &self,
        process: &ProcessReport,
        channel: &ChannelReport,
    ) -> Option<f64> {
        let (earlier, seconds) = self.earlier(process)?;
        let mut channels = earlier.channels.iter();
        let before = channels.find(|before| before.channel == channel.channel)?;
        let items = channel.published.checked_sub(before.published)?;
        Some(items as f64 / seconds)
    }

    /// Returns the earlier report of the same process, and the time between the two reports in
    /// seconds.
    fn earlier(&self, process: &ProcessReport) -> Option<(&ProcessReport, f64)> {
        let same = |earlier: &&ProcessReport| earlier.exporter == process.exporter;
        let earlier = self.earlier.iter().find(same)?;
        let time = process.taken_ns.checked_sub(earlier.taken_ns)?;
        (time > 0).then_some((earlier, time as f64 / 1e9))
    }
}

fn context_of(process: &ProcessReport, number: u32) -> Option<&ContextReport> {
    process
        .contexts
        .iter()
        .find(|context| context.number == number)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::ps::waits::tests::fixture;

    /// Returns two samples that were taken two seconds apart. Between them, the trainer copied 1
    /// GiB and signalled 100 times.
    pub(in super::super) fn samples() -> Samples {
        let mut samples = Samples::default();
        samples.add(Answers {
            reports: fixture(),
            silent: Vec::new(),
        });
        let mut reports = fixture();
        for report in &mut reports {
            report.taken_ns += 2_000_000_000;
        }
        let context = &mut reports[0].contexts[0];
        context.counters.copied_bytes += 1 << 30;
        context.counters.signals += 100;
        context.events[0].submitted += 100;
        context.events[0].completed += 100;
        for report in &mut reports {
            for channel in &mut report.channels {
                channel.published += 100;
            }
        }
        samples.add(Answers {
            reports,
            silent: Vec::new(),
        });
        samples
    }

    #[test]
    fn rates_are_differences_in_time() {
        let samples = samples();
        let process = &samples.reports()[0];
        let context = &process.contexts[0];
        let expected = Rates {
            copied_bytes: f64::from(1 << 29),
            signals: 50.0,
        };
        assert_eq!(samples.of_context(process, context), Some(expected));
        assert_eq!(samples.of_process(process), Some(expected));
        let event = &context.events[0];
        assert_eq!(samples.of_event(process, context, event), Some(50.0));
    }

    #[test]
    fn there_is_no_rate_without_a_time() {
        let mut samples = Samples::default();
        for _ in 0..2 {
            samples.add(Answers {
                reports: fixture(),
                silent: Vec::new(),
            });
            assert_eq!(samples.of_process(&samples.reports()[0]), None);
        }
        // If another process has the same ID, there is no rate.
        let mut samples = self::samples();
        samples.earlier[0].exporter = "f".into();
        assert_eq!(samples.of_process(&samples.reports()[0]), None);
        // If a new event uses the record, there is no rate.
        samples.earlier[0].exporter = samples.now[0].exporter.clone();
        samples.earlier[0].contexts[0].events[0].submitted = 1000;
        let process = &samples.reports()[0];
        let context = &process.contexts[0];
        assert_eq!(samples.of_event(process, context, &context.events[0]), None);
    }
}
