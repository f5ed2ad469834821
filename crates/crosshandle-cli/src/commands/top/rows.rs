//! The rows of the lists, before they are drawn.

use super::keys::{List, State};
use super::sample::Samples;
use crate::commands::ps::text::{clean, context_name, object, process};
use crate::commands::ps::waits::{Wait, waits};
use crate::output::clean;
use crate::units::{age, bytes};
use crosshandle::report::{ChannelReport, ContextReport, EventReport, ProcessReport};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::Duration;

/// A cell with its text and its sort key.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    key: Key,
}

#[derive(Clone, Debug)]
enum Key {
    Number(f64),
    Text(String),
}

/// A row of a list.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    /// Whether a wait in the row is stuck.
    pub(super) is_stuck: bool,
}

impl Cell {
    fn text(text: String) -> Self {
        Self {
            key: Key::Text(text.to_lowercase()),
            text: clean::line(&text).into_owned(),
        }
    }

    fn number(number: f64, text: String) -> Self {
        let key = Key::Number(number);
        Self { text, key }
    }

    fn count(number: usize) -> Self {
        Self::number(number as f64, number.to_string())
    }

    fn bytes(number: u64) -> Self {
        Self::number(number as f64, bytes(number))
    }

    /// Creates a cell for a rate. An unknown rate is sorted below zero.
    fn rate(rate: Option<f64>, format: impl FnOnce(f64) -> String) -> Self {
        match rate {
            Some(rate) => Self::number(rate, format(rate)),
            None => Self::number(-1.0, "–".to_owned()),
        }
    }

    fn longest(longest: Option<Duration>) -> Self {
        match longest {
            Some(time) => Self::number(time.as_secs_f64(), age(time)),
            None => Self::number(-1.0, String::new()),
        }
    }

    /// Returns `true` if the cell is a number, which is aligned to the right.
    pub(super) fn is_number(&self) -> bool {
        matches!(self.key, Key::Number(_))
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (&self.key, &other.key) {
            (Key::Number(one), Key::Number(other)) => one.total_cmp(other),
            (Key::Text(one), Key::Text(other)) => one.cmp(other),
            (Key::Number(_), Key::Text(_)) => Ordering::Less,
            (Key::Text(_), Key::Number(_)) => Ordering::Greater,
        }
    }
}

/// Returns the rows that match the user's filter, in the user's order.
pub(super) fn rows(state: &State, samples: &Samples) -> Vec<Row> {
    let waits = waits(samples.reports());
    let table = Table {
        samples,
        waits: &waits,
        stuck_after: state.stuck_after,
    };
    let mut rows = Vec::new();
    for process in samples.reports() {
        match state.list() {
            List::Processes => rows.push(table.process(process)),
            List::Contexts => {
                rows.extend(
                    process
                        .contexts
                        .iter()
                        .map(|context| table.context(process, context)),
                );
            }
            List::Events => {
                for context in &process.contexts {
                    let events = context.events.iter();
                    rows.extend(events.map(|event| table.event(process, context, event)));
                }
            }
            List::Channels => {}
        }
    }
    if state.list() == List::Channels {
        rows.extend(table.channels());
    }
    let wanted = state.filter().to_lowercase();
    rows.retain(|row| {
        let has = |cell: &Cell| cell.text.to_lowercase().contains(&wanted);
        wanted.is_empty() || row.cells.iter().any(has)
    });
    let order = state.order();
    // The sort is stable, so that equal rows keep their order.
    rows.sort_by(|one, other| {
        let by_column = one.cells[order.column].compare(&other.cells[order.column]);
        if order.is_descending {
            by_column.reverse()
        } else {
            by_column
        }
    });
    rows
}

/// Returns a sentence for each stuck wait, the longest first.
pub(super) fn stuck_waits(state: &State, samples: &Samples) -> Vec<String> {
    let all = waits(samples.reports());
    all.iter()
        .take_while(|wait| wait.time() >= state.stuck_after)
        .map(|wait| {
            let text = format!(
                "{} for signal {} of {}: {}",
                wait.who(),
                wait.waiter.number,
                wait.of_what(),
                wait.why(&all)
            );
            clean::line(&text).into_owned()
        })
        .collect()
}

struct Table<'a> {
    samples: &'a Samples,
    waits: &'a [Wait<'a>],
    stuck_after: Duration,
}

impl Table<'_> {
    fn process(&self, report: &ProcessReport) -> Row {
        let contexts = &report.contexts;
        let rates = self.samples.of_process(report);
        let sum = |of: fn(&ContextReport) -> u64| contexts.iter().map(of).sum::<u64>();
        let objects = sum(|context| context.totals.memory + context.totals.events);
        let importers = sum(|context| context.importers.len() as u64);
        let cells = vec![
            Cell::count(report.pid as usize),
            Cell::text(clean(&report.program)),
            Cell::count(contexts.len()),
            Cell::bytes(sum(|context| context.totals.memory_bytes)),
            Cell::count(objects as usize),
            Cell::count(importers as usize),
            Cell::rate(rates.map(|rates| rates.copied_bytes), byte_rate),
            Cell::rate(rates.map(|rates| rates.signals), number_rate),
        ];
        self.with_waits(cells, |wait| wait.process.exporter == report.exporter)
    }

    fn context(&self, report: &ProcessReport, context: &ContextReport) -> Row {
        let rates = self.samples.of_context(report, context);
        let totals = context.totals;
        let cells = vec![
            Cell::count(report.pid as usize),
            Cell::text(clean(&report.program)),
            Cell::text(name_or_number(
                context.number,
                context_name(context).as_deref(),
            )),
            Cell::text(clean(&context.device)),
            Cell::bytes(totals.memory_bytes),
            Cell::count((totals.memory + totals.events) as usize),
            Cell::count(context.importers.len()),
            Cell::rate(rates.map(|rates| rates.copied_bytes), byte_rate),
            Cell::rate(rates.map(|rates| rates.signals), number_rate),
        ];
        self.with_waits(cells, |wait| {
            wait.process.exporter == report.exporter && wait.context.number == context.number
        })
    }

    fn event(&self, report: &ProcessReport, context: &ContextReport, event: &EventReport) -> Row {
        let rate = self.samples.of_event(report, context, event);
        let cells = vec![
            Cell::count(report.pid as usize),
            Cell::text(clean(&report.program)),
            Cell::text(name_or_number(event.record, event.name.as_deref())),
            Cell::number(event.submitted as f64, event.submitted.to_string()),
            Cell::count(event.unfinished.len()),
            Cell::rate(rate, number_rate),
        ];
        let is_of = |wait: &Wait<'_>| {
            wait.process.exporter == report.exporter
                && wait.context.number == context.number
                && wait.event.record == event.record
        };
        let mut row = self.with_waits(cells, is_of);
        let longest = self.waits.iter().find(|wait| is_of(wait));
        let why = longest.map_or(String::new(), |wait| wait.why(self.waits));
        // Without a wait, show which process is working on the event.
        let working = event.unfinished.first();
        row.cells.push(Cell::text(match working {
            Some(signal) if why.is_empty() => process(signal.pid, &signal.program),
            _ => why,
        }));
        row
    }

    /// Returns a row for each channel. Several processes may report a channel. The row is that of
    /// the process that created it, which knows the name, or of the first one.
    fn channels(&self) -> Vec<Row> {
        let mut all: Vec<_> = (self.samples.reports().iter())
            .flat_map(|process| {
                process
                    .channels
                    .iter()
                    .map(move |channel| (process, channel))
            })
            .collect();
        all.sort_by_key(|(_, channel)| channel.name.is_none());
        let mut seen = HashSet::new();
        all.retain(|(_, channel)| seen.insert(&channel.channel));
        all.sort_by_key(|(process, _)| process.pid);
        let rows = all.into_iter();
        rows.map(|(process, channel)| self.channel(process, channel))
            .collect()
    }

    fn channel(&self, report: &ProcessReport, channel: &ChannelReport) -> Row {
        let rate = self.samples.of_channel(report, channel);
        let name = channel.name.as_deref().unwrap_or(&channel.channel);
        let cells = vec![
            Cell::count(report.pid as usize),
            Cell::text(clean(&report.program)),
            Cell::text(clean(name)),
            Cell::count(channel.depth as usize),
            Cell::number(channel.published as f64, channel.published.to_string()),
            Cell::rate(rate, number_rate),
            Cell::count(channel.producers as usize),
            Cell::count(channel.consumers as usize),
        ];
        Row {
            cells,
            is_stuck: false,
        }
    }

    /// Creates a row from `cells`, and adds the number of waits and the longest wait.
    fn with_waits(&self, mut cells: Vec<Cell>, is_of: impl Fn(&Wait<'_>) -> bool) -> Row {
        let waits = self.waits.iter().filter(|wait| is_of(wait));
        let count = waits.clone().count();
        let longest = waits.map(Wait::time).max();
        cells.push(Cell::count(count));
        cells.push(Cell::longest(longest));
        Row {
            cells,
            is_stuck: longest.is_some_and(|time| time >= self.stuck_after),
        }
    }
}

fn name_or_number(number: u32, name: Option<&str>) -> String {
    object("", number, name).trim_start().to_owned()
}

fn byte_rate(rate: f64) -> String {
    bytes(rate as u64)
}

fn number_rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.1} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::samples;
    use super::*;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    fn state(list: List, filter: &str) -> State {
        State::new(list, filter, Duration::from_secs(38))
    }

    fn column(rows: &[Row], column: usize) -> Vec<&str> {
        let cells = rows.iter().map(|row| &row.cells[column]);
        cells.map(|cell| cell.text.as_str()).collect()
    }

    #[test]
    fn all_lists_have_their_columns() {
        let samples = samples();
        for list in List::ALL {
            let rows = rows(&state(list, ""), &samples);
            assert!(!rows.is_empty());
            for row in rows {
                assert_eq!(row.cells.len(), list.columns().len(), "{list:?}");
            }
        }
    }

    #[test]
    fn the_longest_wait_comes_first() {
        let samples = samples();
        let rows = rows(&state(List::Processes, ""), &samples);
        assert_eq!(column(&rows, 0), ["300", "100", "200", "400"]);
        let stuck: Vec<_> = rows.iter().map(|row| row.is_stuck).collect();
        assert_eq!(stuck, [true, false, false, false]);
    }

    #[test]
    fn lines_are_sorted_by_value_and_not_by_text() {
        let samples = samples();
        let mut state = state(List::Processes, "");
        let memory = List::Processes
            .columns()
            .iter()
            .position(|name| *name == "MEMORY");
        while Some(state.order().column) != memory {
            state.press(KeyEvent::from(KeyCode::Right));
        }
        // Sizes are sorted as numbers: 4 GiB are more than 1 MiB.
        assert_eq!(
            column(&rows(&state, &samples), 0),
            ["100", "200", "300", "400"]
        );
        state.press(KeyEvent::from(KeyCode::Char('r')));
        assert_eq!(
            column(&rows(&state, &samples), 0),
            ["300", "400", "200", "100"]
        );
    }

    #[test]
    fn lines_are_filtered_by_any_cell() {
        let samples = samples();
        let pids = |list, filter| {
            let rows = rows(&state(list, filter), &samples);
            column(&rows, 0).join(" ")
        };
        assert_eq!(pids(List::Processes, "TRAIN"), "100 200");
        assert_eq!(pids(List::Contexts, "model"), "100");
        assert_eq!(pids(List::Events, "ready"), "300 100");
        assert_eq!(pids(List::Events, "nothing"), "");
        assert_eq!(pids(List::Channels, "camera"), "300");
    }

    /// Processes 200 and 300 report the same channel, and 300 has created it.
    #[test]
    fn a_channel_has_one_line_with_its_rate() {
        let samples = samples();
        let rows = rows(&state(List::Channels, ""), &samples);
        let cells: Vec<_> = rows[0].cells.iter().map(|cell| &cell.text).collect();
        let expected = ["300", "viewer", "camera", "8", "1100", "50", "1", "2"];
        assert_eq!(cells, expected);
        assert_eq!(rows.len(), 1);
    }

    #[test]
    fn a_stuck_wait_names_its_culprit() {
        let samples = samples();
        let state = state(List::Events, "");
        assert_eq!(
            stuck_waits(&state, &samples),
            [
                "200 train-worker has waited 40s for signal 1 of event 7 \"ready\" of 300 viewer: \
                 no process has submitted it yet"
            ]
        );
        let rows = rows(&state, &samples);
        assert!(column(&rows, 8)[1].starts_with("200 train-worker has not finished it"));
    }
}
