//! The text output of `ps`: a tree of processes, their contexts, and the objects in them.

use super::silent::SilentExporter;
use super::text::{clean, context_name, count, object, process};
use super::waits::{Wait, waits};
use crate::failure::Result;
use crate::output;
use crate::units::{age, bytes};
use crosshandle::report::{
    ContextReport, EventReport, MemoryReport, ObjectAccess, ObjectKind, OpenedBy, ProcessReport,
};
use std::time::{Duration, SystemTime};

/// Maximum number of objects of each kind that are listed for a context, unless the user asks for
/// all.
const MAX_LISTED: usize = 20;

/// Prints the tree. `all` contains the reports in which the causes of waits are searched.
pub(super) fn print(
    shown: &[ProcessReport],
    all: &[ProcessReport],
    silent: &[&SilentExporter],
    is_long: bool,
) -> Result<()> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    for line in lines(shown, all, is_long, now) {
        output::line(line)?;
    }
    for silent in silent.iter().filter(|silent| !silent.is_dead()) {
        output::line(silent)?;
    }
    let dead = silent.iter().filter(|silent| silent.is_dead()).count() as u64;
    if dead > 0 {
        let sockets = count(dead, "socket");
        output::line(format_args!(
            "{sockets} of processes that have ended; `crosshandle gc` removes them"
        ))?;
    }
    Ok(())
}

fn lines(
    shown: &[ProcessReport],
    all: &[ProcessReport],
    is_long: bool,
    now: Duration,
) -> Vec<String> {
    let limit = if is_long { usize::MAX } else { MAX_LISTED };
    let tree = Tree {
        waits: waits(all),
        limit,
        now,
    };
    let mut lines = Vec::new();
    for report in shown {
        tree.add_process(report, &mut lines);
    }
    lines
}

struct Tree<'a> {
    waits: Vec<Wait<'a>>,
    limit: usize,
    /// The current time since 1970.
    now: Duration,
}

impl Tree<'_> {
    fn add_process(&self, report: &ProcessReport, lines: &mut Vec<String>) {
        let mut head = process(report.pid, &report.program);
        if report.started_unix_s > 0 {
            head += &format!(", exports since {}", self.since(report.started_unix_s));
        }
        if report.contexts.is_empty() {
            head += ": shares nothing";
        }
        if report.refusals > 0 {
            head += &format!(", {} refused", count(report.refusals, "connection"));
        }
        lines.push(head);
        for context in &report.contexts {
            self.add_context(report, context, lines);
        }
    }

    fn add_context(
        &self,
        report: &ProcessReport,
        context: &ContextReport,
        lines: &mut Vec<String>,
    ) {
        let totals = context.totals;
        let mut parts = vec![
            format!(
                "{} ({})",
                count(totals.memory, "allocation"),
                bytes(totals.memory_bytes)
            ),
            count(totals.events, "event"),
            count(context.importers.len() as u64, "importer"),
        ];
        for (number, noun) in [
            (context.counters.refusals, "refusal"),
            (context.counters.deaths, "death"),
        ] {
            if number > 0 {
                parts.push(count(number, noun));
            }
        }
        lines.push(format!(
            "  {} on {}: {}",
            object("context", context.number, context_name(context).as_deref()),
            clean(&context.device),
            parts.join(", ")
        ));
        let memory: Vec<_> = context
            .memory
            .iter()
            .take(self.limit)
            .map(|memory| memory_cells(memory, context))
            .collect();
        add_columns(memory, lines);
        add_rest(
            totals.memory,
            context.memory.len().min(self.limit),
            "allocation",
            lines,
        );
        let listed = context.events.len().min(self.limit);
        for event in &context.events[..listed] {
            self.add_event(report, context, event, lines);
        }
        add_rest(totals.events, listed, "event", lines);
        let importers: Vec<_> = context
            .importers
            .iter()
            .take(self.limit)
            .map(|importer| {
                vec![
                    "importer".to_owned(),
                    process(importer.pid, &importer.program),
                    format!("user {}", importer.user),
                    format!("{} open", count(importer.objects, "object")),
                    bytes(importer.bytes),
                    format!("since {}", self.since(importer.attached_unix_s)),
                ]
            })
            .collect();
        add_columns(importers, lines);
        let listed = context.importers.len().min(self.limit);
        add_rest(context.importers.len() as u64, listed, "importer", lines);
    }

    fn add_event(
        &self,
        report: &ProcessReport,
        context: &ContextReport,
        event: &EventReport,
        lines: &mut Vec<String>,
    ) {
        let state = match event.submitted {
            0 => "no signal yet".to_owned(),
            submitted if submitted == event.completed => {
                format!("{}, all complete", count(submitted, "signal"))
            }
            submitted => format!(
                "{}, complete up to {}",
                count(submitted, "signal"),
                event.completed
            ),
        };
        lines.push(format!(
            "    {}  {state}{}",
            object("event", event.record, event.name.as_deref()),
            opened_by(&event.opened_by, context)
        ));
        for signal in event.unfinished.iter().take(self.limit) {
            lines.push(format!(
                "      signal {} not finished by {}",
                signal.number,
                process(signal.pid, &signal.program)
            ));
        }
        let listed = event.unfinished.len().min(self.limit);
        add_rest(
            event.unfinished.len() as u64,
            listed,
            "unfinished signal",
            lines,
        );
        // A record number identifies an event only together with its exporter and its context.
        let waits = self.waits.iter().filter(|wait| {
            wait.process.exporter == report.exporter
                && wait.context.number == context.number
                && wait.event.record == event.record
        });
        let mut listed = 0;
        for wait in waits.take(self.limit) {
            lines.push(format!(
                "      {} for signal {}: {}",
                wait.who(),
                wait.waiter.number,
                wait.why(&self.waits)
            ));
            listed += 1;
        }
        add_rest(event.waiters.len() as u64, listed, "wait", lines);
    }

    fn since(&self, unix_s: u64) -> String {
        let began = Duration::from_secs(unix_s);
        // The subtraction saturates, because the clock may have been set back.
        let time = self.now.saturating_sub(began).as_secs();
        age(Duration::from_secs(time.max(1)))
    }
}

fn memory_cells(memory: &MemoryReport, context: &ContextReport) -> Vec<String> {
    let kind = match memory.kind {
        ObjectKind::Device => "device",
        ObjectKind::Host => "host",
        ObjectKind::Shared => "shared",
        ObjectKind::Physical => "physical",
    };
    let access = match memory.access {
        ObjectAccess::ReadOnly => "read-only",
        ObjectAccess::ReadWrite => "read-write",
    };
    let freed = if memory.freed { ", freed" } else { "" };
    vec![
        object("memory", memory.record, memory.name.as_deref()),
        bytes(memory.bytes),
        kind.to_owned(),
        format!("{access}{freed}"),
        opened_by(&memory.opened_by, context)
            .trim_start()
            .to_owned(),
    ]
}

/// Returns two blanks and the processes that have an object open, such as ` open in 200 worker, 300
/// viewer (twice)`.
fn opened_by(openers: &[OpenedBy], context: &ContextReport) -> String {
    if openers.is_empty() {
        return String::new();
    }
    let name = |opener: &OpenedBy| {
        let importer = context
            .importers
            .iter()
            .find(|importer| importer.owner == opener.owner);
        let name = match importer {
            Some(importer) => process(importer.pid, &importer.program),
            None => format!("importer {}", opener.owner),
        };
        match opener.times {
            0 | 1 => name,
            times => format!("{name} ({times} times)"),
        }
    };
    let names: Vec<_> = openers.iter().map(name).collect();
    format!("  open in {}", names.join(", "))
}

/// Adds rows of cells below a context, aligned in columns.
fn add_columns(rows: Vec<Vec<String>>, lines: &mut Vec<String>) {
    let mut table = output::table();
    for row in rows {
        output::add_row(&mut table, row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let rows = table.lines().map(|row| format!("    {}", row.trim_end()));
    lines.extend(rows.filter(|row| !row.trim().is_empty()));
}

/// Adds the number of objects that are not listed, if any.
fn add_rest(total: u64, listed: usize, noun: &str, lines: &mut Vec<String>) {
    let rest = total.saturating_sub(listed as u64);
    if rest > 0 {
        let plural = if rest == 1 { "" } else { "s" };
        lines.push(format!("    … and {rest} more {noun}{plural}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::waits::tests::fixture;
    use super::*;

    #[test]
    fn the_tree_shows_who_holds_what_and_who_waits_for_whom() {
        let reports = fixture();
        let now = Duration::from_secs(1_700_000_080);
        let lines = lines(&reports, &reports, false, now);
        let expected = "\
100 trainer, exports since 1m 20s, 2 connections refused
  context 1 \"model\" on host:0: 2 allocations (4.0 GiB), 1 event, 2 importers
    memory 1 \"weights\"  4 GiB   device  read-only   open in 200 train-worker, 300 viewer (2 times)
    memory 4            64 KiB  host    read-write
    event 2 \"step\"  12 signals, complete up to 11  open in 200 train-worker, 300 viewer
      signal 12 not finished by 200 train-worker
      300 viewer (thread 301) has waited 35s for signal 12: 200 train-worker has not finished it; \
200 train-worker waits for signal 1 of event 7 \"ready\" of 300 viewer: no process has submitted it yet
    importer  200 train-worker  user 1000  2 objects open  4 GiB  since 1m 10s
    importer  300 viewer        user 1000  2 objects open  4 GiB  since 1m
200 train-worker, exports since 1m 15s
  context 1 on host:0: 1 allocation (1 MiB), 0 events, 1 importer, 3 refusals, 1 death
    memory 1 \"gradients\"  1 MiB  shared  read-write
    importer  300 viewer  user 1000  0 objects open  0 B  since 1m
300 viewer, exports since 1m 5s
  context 1 \"frames\" on host:0: 0 allocations (0 B), 9 events, 1 importer
    event 7 \"ready\"  no signal yet  open in 200 train-worker
      200 train-worker has waited 40s for signal 1: no process has submitted it yet
    … and 8 more events
    importer  200 train-worker  user 1000  1 object open  0 B  since 50s
400 lonely, exports since 1m 20s: shares nothing";
        assert_eq!(lines.join("\n"), expected);
    }
}
