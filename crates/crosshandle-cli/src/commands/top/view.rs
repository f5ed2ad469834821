//! Draws the screen of `top`.

use super::keys::{List, State};
use super::rows::{Row, rows, stuck_waits};
use super::sample::Samples;
use crate::commands::ps::text::count;
use crate::units::{age, bytes};
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as TableRow, StatefulWidget, Table, Widget};

/// Maximum number of stuck waits that are shown below the list.
const MAX_STUCK_LINES: usize = 6;

/// Width, in columns, of a snapshot that is printed as text.
const TEXT_COLUMNS: u16 = 200;

/// Minimum width, in columns, of the last column of a list if it contains text.
const LAST_COLUMN: u16 = 24;

/// Draws the whole screen.
pub(super) fn draw(state: &mut State, samples: &Samples, area: Rect, buffer: &mut Buffer) {
    let mut rows = rows(state, samples);
    let stuck = stuck_lines(state, samples);
    let [top, list, bottom, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(stuck.len() as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    Text::from(vec![summary(samples), choice(state)]).render(top, buffer);
    // Build only the visible rows.
    let last = state
        .table
        .offset()
        .max(state.table.selected().unwrap_or(0));
    let total = rows.len();
    rows.truncate(last + 2 * usize::from(area.height));
    StatefulWidget::render(
        table(state.list(), state, &rows),
        list,
        buffer,
        &mut state.table,
    );
    Text::from(stuck).render(bottom, buffer);
    keys(state, total).render(foot, buffer);
}

/// Returns the snapshot as lines of text, high enough for all rows.
pub(super) fn text(state: &mut State, samples: &Samples) -> Vec<String> {
    let height = rows(state, samples).len() + stuck_lines(state, samples).len() + 4;
    let area = Rect::new(
        0,
        0,
        TEXT_COLUMNS,
        height.min(usize::from(u16::MAX) / 2) as u16,
    );
    let mut buffer = Buffer::empty(area);
    draw(state, samples, area, &mut buffer);
    let line = |y| {
        let cells = (0..area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    // Omit the last line, which explains keys.
    (0..area.height - 1).map(line).collect()
}

/// Returns the line that summarises all processes.
fn summary(samples: &Samples) -> Line<'static> {
    let reports = samples.reports();
    let contexts = reports.iter().flat_map(|report| &report.contexts);
    let memory = contexts.clone().map(|context| context.totals.memory_bytes);
    let events = contexts.clone().map(|context| context.totals.events);
    let mut line = format!(
        "{} sharing {} and {}",
        match reports.len() {
            1 => "1 process".to_owned(),
            number => format!("{number} processes"),
        },
        bytes(memory.sum()),
        count(events.sum(), "event")
    );
    let rates = reports
        .iter()
        .filter_map(|report| samples.of_process(report));
    let (copied, signals) = rates.fold((0.0, 0.0), |(copied, signals), rates| {
        (copied + rates.copied_bytes, signals + rates.signals)
    });
    line += &format!(
        "; copied {}/s, {signals:.0} signals/s",
        bytes(copied as u64)
    );
    for silent in samples.silent().iter().filter(|silent| silent.is_late()) {
        line += &format!("; {silent}");
    }
    Line::from(line).bold()
}

/// Returns the line with the lists, the sort order and the filter.
fn choice(state: &State) -> Line<'static> {
    let mut parts = Vec::new();
    for list in List::ALL {
        let name = format!(" {} ", list.name());
        parts.push(if list == state.list() {
            name.reversed()
        } else {
            name.into()
        });
    }
    if state.is_typing() {
        parts.push(format!("  /{}▏", state.filter()).yellow());
    } else if !state.filter().is_empty() {
        parts.push(format!("  only '{}'", state.filter()).yellow());
    }
    if state.is_held() {
        parts.push("  held".yellow());
    }
    Line::from(parts)
}

fn table<'a>(list: List, state: &State, rows: &'a [Row]) -> Table<'a> {
    let columns = list.columns();
    let order = state.order();
    let arrow = if order.is_descending { "▼" } else { "▲" };
    let names: Vec<_> = (0..columns.len())
        .map(|column| match column == order.column {
            true => format!("{}{arrow}", columns[column]),
            false => columns[column].to_owned(),
        })
        .collect();
    let is_number = |column: usize| {
        let first = rows.first().map(|row| &row.cells[column]);
        first.is_some_and(super::rows::Cell::is_number)
    };
    let aligned = |column: usize, text: String| {
        let alignment = if is_number(column) {
            Alignment::Right
        } else {
            Alignment::Left
        };
        Cell::from(Text::from(text).alignment(alignment))
    };
    let widths = (0..columns.len()).map(|column| {
        let cells = rows
            .iter()
            .map(|row| Line::from(row.cells[column].text.as_str()).width());
        let name = Line::from(names[column].as_str()).width();
        let width = cells.chain([name]).max().unwrap_or_default() as u16;
        // The last column may be truncated, because its text can be long.
        match column + 1 == columns.len() && !is_number(column) {
            true => Constraint::Min(width.min(LAST_COLUMN)),
            false => Constraint::Length(width),
        }
    });
    let widths: Vec<_> = widths.collect();
    let header = names
        .into_iter()
        .enumerate()
        .map(|(column, name)| aligned(column, name));
    let header = TableRow::new(header).style(Style::new().add_modifier(Modifier::REVERSED));
    let lines = rows.iter().map(|row| {
        let cells = row.cells.iter().enumerate();
        let line = TableRow::new(cells.map(|(column, cell)| aligned(column, cell.text.clone())));
        match row.is_stuck {
            true => line.style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)),
            false => line,
        }
    });
    Table::new(lines, widths)
        .header(header)
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Returns the lines about stuck waits, with a heading if there are any.
fn stuck_lines(state: &State, samples: &Samples) -> Vec<Line<'static>> {
    let stuck = stuck_waits(state, samples);
    if stuck.is_empty() {
        return Vec::new();
    }
    let rest = stuck.len().saturating_sub(MAX_STUCK_LINES);
    let heading = format!(
        "{} longer than {}:",
        count(stuck.len() as u64, "wait"),
        age(state.stuck_after)
    );
    let mut lines = vec![Line::from(heading).bold()];
    let told = stuck.into_iter().take(MAX_STUCK_LINES);
    lines.extend(told.map(|wait| Line::from(wait).red()));
    if rest > 0 {
        lines.push(Line::from(format!("… and {rest} more")));
    }
    lines
}

fn keys(state: &State, total: usize) -> Line<'static> {
    let keys = if state.is_typing() {
        "Enter keep  Esc drop".to_owned()
    } else {
        format!(
            "{}  Tab list  ←→ sort  r reverse  / filter  Space pause  q quit",
            count(total as u64, "line")
        )
    };
    Line::from(keys).dim()
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::samples;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use std::time::Duration;

    fn state(list: List) -> State {
        State::new(list, "", Duration::from_secs(38))
    }

    fn terminal(width: u16, height: u16) -> Terminal<TestBackend> {
        Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory")
    }

    fn render(
        terminal: &mut Terminal<TestBackend>,
        state: &mut State,
        samples: &Samples,
    ) -> String {
        terminal
            .draw(|frame| draw(state, samples, frame.area(), frame.buffer_mut()))
            .expect("drawn");
        let lines = terminal.backend().to_string();
        let lines = lines.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn processes_are_drawn_with_their_rates() {
        let picture = render(
            &mut terminal(110, 12),
            &mut state(List::Processes),
            &samples(),
        );
        let expected = "\
4 processes sharing 4.0 GiB and 10 events; copied 512 MiB/s, 50 signals/s
 processes  contexts  events  channels
PID  PROGRAM       CONTEXTS   MEMORY  OBJECTS  IMPORTERS  COPIED/S  SIGNALS/S  WAITS  LONGEST▼
300  viewer               1      0 B        9          1       0 B          0      1       40s
100  trainer              1  4.0 GiB        3          2   512 MiB         50      1       35s
200  train-worker         1    1 MiB        1          1       0 B          0      0
400  lonely               0      0 B        0          0       0 B          0      0


1 wait longer than 38s:
200 train-worker has waited 40s for signal 1 of event 7 \"ready\" of 300 viewer: no process has submitted it yet
4 lines  Tab list  ←→ sort  r reverse  / filter  Space pause  q quit";
        assert_eq!(picture, expected);
    }

    #[test]
    fn a_stuck_wait_is_red_and_the_others_are_not() {
        let mut terminal = terminal(110, 12);
        render(&mut terminal, &mut state(List::Processes), &samples());
        let buffer = terminal.backend().buffer();
        let color = |y| buffer[(0, y)].fg;
        assert_eq!((color(3), color(4)), (Color::Red, Color::Reset));
        assert_eq!((color(9), color(10)), (Color::Reset, Color::Red));
    }

    #[test]
    fn events_are_drawn_with_culprits() {
        let picture = render(&mut terminal(160, 10), &mut state(List::Events), &samples());
        let line = picture.lines().nth(4).expect("a second event");
        assert!(line.contains("2 \"step\""), "{picture}");
        assert!(
            line.contains("200 train-worker has not finished it"),
            "{picture}"
        );
    }

    #[test]
    fn keys_show_in_the_picture() {
        let mut terminal = terminal(110, 12);
        let mut state = state(List::Processes);
        for key in ['/', 'v', 'i'] {
            state.press(KeyEvent::from(KeyCode::Char(key)));
        }
        let picture = render(&mut terminal, &mut state, &samples());
        assert!(
            picture.contains("  /vi▏") && picture.contains("Esc drop"),
            "{picture}"
        );
        assert!(!picture.contains("trainer"), "{picture}");
        state.press(KeyEvent::from(KeyCode::Enter));
        state.press(KeyEvent::from(KeyCode::Char(' ')));
        let picture = render(&mut terminal, &mut state, &samples());
        assert!(
            picture.contains("only 'vi'") && picture.contains("held"),
            "{picture}"
        );
    }

    #[test]
    fn any_terminal_is_large_enough() {
        for (width, height) in [(0, 0), (1, 1), (20, 3), (500, 2)] {
            for list in List::ALL {
                let area = Rect::new(0, 0, width, height);
                let mut buffer = Buffer::empty(area);
                draw(&mut state(list), &samples(), area, &mut buffer);
                let is_drawn = buffer.content.iter().any(|cell| cell.symbol() != " ");
                // One cell may show the blank at the edge of the picture.
                assert!(is_drawn || width < 20, "{width} × {height}");
            }
        }
    }

    #[test]
    fn the_printed_picture_has_every_line() {
        let lines = text(&mut state(List::Processes), &samples());
        let pids: Vec<_> = lines[3..7].iter().map(|line| &line[..3]).collect();
        assert_eq!(pids, ["300", "100", "200", "400"]);
        assert!(
            lines
                .last()
                .expect("lines")
                .contains("no process has submitted")
        );
    }
}
