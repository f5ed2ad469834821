//! The user's choices in `top`, and the keys that change them.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;
use std::time::Duration;

/// Number of lines that a page key moves.
const PAGE_LINES: u16 = 10;

/// The lists that can be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(super) enum List {
    /// A line for each process
    #[default]
    Processes,
    /// A line for each context
    Contexts,
    /// A line for each event
    Events,
    /// A line for each channel
    Channels,
}

impl List {
    pub(super) const ALL: [Self; 4] = [
        Self::Processes,
        Self::Contexts,
        Self::Events,
        Self::Channels,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Contexts => "contexts",
            Self::Events => "events",
            Self::Channels => "channels",
        }
    }

    /// Returns the names of the columns.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Processes => &[
                "PID",
                "PROGRAM",
                "CONTEXTS",
                "MEMORY",
                "OBJECTS",
                "IMPORTERS",
                "COPIED/S",
                "SIGNALS/S",
                "WAITS",
                "LONGEST",
            ],
            Self::Contexts => &[
                "PID",
                "PROGRAM",
                "CONTEXT",
                "DEVICE",
                "MEMORY",
                "OBJECTS",
                "IMPORTERS",
                "COPIED/S",
                "SIGNALS/S",
                "WAITS",
                "LONGEST",
            ],
            Self::Events => &[
                "PID",
                "PROGRAM",
                "EVENT",
                "SIGNALS",
                "UNFINISHED",
                "SIGNALS/S",
                "WAITS",
                "LONGEST",
                "CULPRIT",
            ],
            Self::Channels => &[
                "PID",
                "PROGRAM",
                "CHANNEL",
                "DEPTH",
                "ITEMS",
                "ITEMS/S",
                "PRODUCERS",
                "CONSUMERS",
            ],
        }
    }
}

/// The sort order of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    /// Index of the column.
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

/// The user's choices in `top`: the list, its order, and the filter.
#[derive(Debug)]
pub(super) struct State {
    list: List,
    /// The sort order of each list.
    orders: [Order; 4],
    filter: String,
    /// The filter before the user started to change it.
    filter_before: Option<String>,
    pub(super) table: TableState,
    pub(super) stuck_after: Duration,
    is_held: bool,
    is_over: bool,
}

impl State {
    pub(super) fn new(list: List, filter: &str, stuck_after: Duration) -> Self {
        // By default, sort rows by their longest wait, and channels by their rates.
        let orders = List::ALL.map(|list| Order {
            column: list
                .columns()
                .iter()
                .position(|name| matches!(*name, "LONGEST" | "ITEMS/S"))
                .unwrap_or_default(),
            is_descending: true,
        });
        Self {
            list,
            orders,
            filter: filter.to_owned(),
            filter_before: None,
            table: TableState::default(),
            stuck_after,
            is_held: false,
            is_over: false,
        }
    }

    pub(super) fn list(&self) -> List {
        self.list
    }

    pub(super) fn order(&self) -> Order {
        self.orders[self.list as usize]
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    /// Returns `true` if the user is typing a filter.
    pub(super) fn is_typing(&self) -> bool {
        self.filter_before.is_some()
    }

    /// Returns `true` if updates are paused.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns `true` if the user wants to quit.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Handles a key that the user has pressed.
    pub(super) fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            self.is_over = true;
        } else if self.is_typing() {
            self.type_key(key.code, is_control);
        } else {
            self.command_key(key.code);
        }
    }

    fn type_key(&mut self, key: KeyCode, is_control: bool) {
        match key {
            KeyCode::Enter => self.filter_before = None,
            KeyCode::Esc => self.filter = self.filter_before.take().unwrap_or_default(),
            KeyCode::Char('u') if is_control => self.filter.clear(),
            KeyCode::Char(c) if !is_control => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            _ => {}
        }
        self.table.select(None);
    }

    fn command_key(&mut self, key: KeyCode) {
        let columns = self.list.columns().len();
        let order = &mut self.orders[self.list as usize];
        match key {
            KeyCode::Char('q') => self.is_over = true,
            // Escape first resets the selection and the filter, and then quits.
            KeyCode::Esc if self.table.selected().is_some() => self.table.select(None),
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => self.is_over = true,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Char('/') => self.filter_before = Some(self.filter.clone()),
            KeyCode::Char('r') => order.is_descending = !order.is_descending,
            KeyCode::Right | KeyCode::Char('>') => order.column = (order.column + 1) % columns,
            KeyCode::Left | KeyCode::Char('<') => {
                order.column = (order.column + columns - 1) % columns;
            }
            KeyCode::Tab => self.show(List::ALL[(self.list as usize + 1) % List::ALL.len()]),
            KeyCode::BackTab => {
                self.show(List::ALL[(self.list as usize + List::ALL.len() - 1) % List::ALL.len()]);
            }
            KeyCode::Char(digit @ '1'..='4') => self.show(List::ALL[digit as usize - '1' as usize]),
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(PAGE_LINES),
            KeyCode::PageUp => self.table.scroll_up_by(PAGE_LINES),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
    }

    fn show(&mut self, list: List) {
        self.list = list;
        self.table.select(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State::new(List::default(), "", Duration::from_secs(5))
    }

    fn press(state: &mut State, keys: &[KeyCode]) {
        for key in keys {
            state.press(KeyEvent::from(*key));
        }
    }

    fn type_text(state: &mut State, text: &str) {
        text.chars().for_each(|c| press(state, &[KeyCode::Char(c)]));
    }

    #[test]
    fn lists_keep_their_own_order() {
        let mut state = state();
        let at_first = state.order();
        assert_eq!(List::Processes.columns()[at_first.column], "LONGEST");
        press(&mut state, &[KeyCode::Right, KeyCode::Char('r')]);
        let changed = state.order();
        assert_eq!((changed.column, changed.is_descending), (0, false));
        press(&mut state, &[KeyCode::Tab]);
        assert_eq!(state.list(), List::Contexts);
        assert!(state.order().is_descending);
        press(&mut state, &[KeyCode::BackTab]);
        assert_eq!(state.order(), changed);
        press(&mut state, &[KeyCode::Left]);
        assert_eq!(state.order().column, at_first.column);
        press(&mut state, &[KeyCode::Char('3')]);
        assert_eq!(state.list(), List::Events);
    }

    #[test]
    fn a_filter_is_typed_kept_and_dropped() {
        let mut state = state();
        type_text(&mut state, "/qtrx");
        press(&mut state, &[KeyCode::Backspace]);
        assert!(state.is_typing() && !state.is_over());
        press(&mut state, &[KeyCode::Enter]);
        assert_eq!((state.filter(), state.is_typing()), ("qtr", false));
        type_text(&mut state, "/more");
        press(&mut state, &[KeyCode::Esc]);
        assert_eq!(state.filter(), "qtr");
        press(&mut state, &[KeyCode::Esc]);
        assert_eq!((state.filter(), state.is_over()), ("", false));
        press(&mut state, &[KeyCode::Esc]);
        assert!(state.is_over());
    }

    #[test]
    fn control_c_ends_also_while_typing() {
        let mut state = state();
        type_text(&mut state, "/c");
        state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(state.is_over());
    }

    #[test]
    fn a_space_holds_the_picture() {
        let mut state = state();
        type_text(&mut state, " ");
        assert!(state.is_held());
        type_text(&mut state, " ");
        assert!(!state.is_held());
    }
}
