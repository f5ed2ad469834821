//! The signals that workers were told to make, and the waits that need more of them.

use crate::faults::workload::{Origin, Workload};

/// Signals of one command.
struct Made {
    event: Origin,
    count: u64,
    /// The event and the value that the command waits for.
    after: Option<(Origin, u64)>,
}

/// All signals that workers were told to make, including signals that failed.
#[derive(Default)]
pub(super) struct Signals(Vec<Made>);

impl Signals {
    /// Adds the signals of a command of the worker `name`.
    pub(super) fn note(&mut self, script: &Workload, name: char, command: &str) {
        let words: Vec<_> = command.split(' ').collect();
        let option = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
        let (event, count, after) = match words[..] {
            ["signal", event] => (Some(event), 1, None),
            ["signal", event, count] => (Some(event), count.parse().unwrap_or(u64::MAX), None),
            ["submit", ..] => (option("signal="), 1, option("after-value=")),
            _ => return,
        };
        let Some(event) = event else {
            return;
        };
        let after = after.and_then(|after| after.split_once(':'));
        let after = after.and_then(|(event, value)| Some((event, value.parse().ok()?)));
        self.0.push(Made {
            event: script.origin(name, event),
            count,
            after: after.map(|(event, value)| (script.origin(name, event), value)),
        });
    }

    /// Returns the highest value that an event may have reached.
    fn highest(&self, event: &Origin) -> u64 {
        let made = self.0.iter().filter(|made| made.event == *event);
        let made = made.filter(|made| {
            let after = made.after.as_ref();
            after.is_none_or(|(event, value)| self.highest(event) >= *value)
        });
        made.fold(0, |sum, made| sum.saturating_add(made.count))
    }

    /// Returns whether a command of the worker `name` waits for a signal that no process can have
    /// completed.
    pub(super) fn is_missing(&self, script: &Workload, name: char, command: &str) -> bool {
        let words: Vec<_> = command.split(' ').collect();
        let events: Vec<(&str, &str)> = match words[..] {
            ["wait-value" | "await" | "await-callback", event, value, ..] => vec![(event, value)],
            ["await-notified", _, ..] => {
                let pairs = words[2..].iter();
                pairs.filter_map(|pair| pair.split_once(':')).collect()
            }
            ["wait-any" | "wait-all", _, ..] => {
                words[2..].iter().map(|event| (*event, "1")).collect()
            }
            _ => return false,
        };
        let mut missing = events.iter().map(|(event, value)| {
            let event = script.origin(name, event);
            // Checks after the workload use other events.
            script.made_by(event.0, &event.1)
                && value
                    .parse()
                    .is_ok_and(|value| self.highest(&event) < value)
        });
        match words[0] {
            "wait-any" => missing.all(|is_missing| is_missing),
            _ => missing.any(|is_missing| is_missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::workload;

    fn script(name: &str) -> Workload {
        let mut all = workload::all().into_iter();
        all.find(|script| script.name == name).expect("it exists")
    }

    #[test]
    fn a_wait_needs_the_signals_of_all_commands_before_it() {
        let script = script("orphan");
        let mut signals = Signals::default();
        let is_missing = |signals: &Signals, value: u64| {
            signals.is_missing(&script, 'A', &format!("wait-value e {value} 30000"))
        };
        assert!(is_missing(&signals, 1));
        // The command waits for the gate.
        signals.note(&script, 'B', "submit q barrier after-value=gate:1 signal=e");
        assert!(is_missing(&signals, 1));
        signals.note(&script, 'B', "signal gate");
        assert!(!is_missing(&signals, 1));
        assert!(is_missing(&signals, 9));
        signals.note(&script, 'A', "signal e 8");
        assert!(!is_missing(&signals, 9));
        assert!(!signals.is_missing(&script, 'A', "wait-value fresh-event 1 30000"));
    }

    #[test]
    fn a_wait_for_any_event_needs_one_and_a_wait_for_all_needs_each() {
        let script = script("many");
        let mut signals = Signals::default();
        let is_missing = |signals: &Signals, wait: &str| signals.is_missing(&script, 'A', wait);
        assert!(is_missing(&signals, "wait-any 30000 e f"));
        signals.note(&script, 'X', "signal e");
        assert!(!is_missing(&signals, "wait-any 30000 e f"));
        assert!(is_missing(&signals, "wait-all 30000 e f"));
        assert!(is_missing(&signals, "await-notified 30000 e:1 f:1"));
        signals.note(&script, 'Y', "signal f");
        assert!(!is_missing(&signals, "wait-all 30000 e f"));
        assert!(!is_missing(&signals, "await-notified 30000 e:1 f:1"));
    }
}
