//! Short descriptions of processes and objects, safe for a terminal.

use crate::output::clean;
use crosshandle::report::ContextReport;
use std::collections::BTreeSet;

/// Maximum number of characters that are shown of a name.
const MAX_NAME_CHARS: usize = 48;

/// Returns a name that is safe for a terminal and truncated to the maximum length.
pub(crate) fn clean(name: &str) -> String {
    let shown: String = name.chars().take(MAX_NAME_CHARS).collect();
    let mut clean = clean::line(&shown).into_owned();
    if name.chars().nth(MAX_NAME_CHARS).is_some() {
        clean.push('…');
    }
    clean
}

/// Describes a process, such as `4711 trainer`.
pub(crate) fn process(pid: u32, program: &str) -> String {
    match clean(program) {
        program if program.is_empty() => pid.to_string(),
        program => format!("{pid} {program}"),
    }
}

/// Describes an object, such as `event 3 "step"`.
pub(crate) fn object(kind: &str, number: u32, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{kind} {number} \"{}\"", clean(name)),
        None => format!("{kind} {number}"),
    }
}

/// Prefix of the names of a holder's contexts. An exporter's number follows it.
const HELD: &str = "held for ";

/// Maximum number of names that are shown for a context that holds several.
const SHOWN_NAMES: usize = 3;

/// Returns a context's name for users. For a holder's context, returns the held names instead of a
/// number.
pub(crate) fn context_name(context: &ContextReport) -> Option<String> {
    let name = context.name.as_deref()?;
    let memory = context.memory.iter();
    let held = memory.filter_map(|memory| Some(memory.name.as_deref()?.rsplit_once('/')?.0));
    let held: BTreeSet<_> = held.collect();
    if !name.starts_with(HELD) || held.is_empty() {
        return Some(name.to_owned());
    }
    let shown: Vec<_> = held.iter().take(SHOWN_NAMES).copied().collect();
    let rest = match held.len() - shown.len() {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    Some(format!("held: {}{rest}", shown.join(", ")))
}

/// Returns a number with its noun, such as `1 event` or `2 events`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holders_context_has_the_names_of_what_it_holds() {
        assert_eq!(context_name(&ContextReport::default()), None);
        let mut context = ContextReport {
            name: Some("held for ffc5f4dcd63a9a13".into()),
            ..Default::default()
        };
        assert_eq!(context_name(&context), context.name);
        for name in ["org/a/data", "org/a/state", "b/data", "c/data", "d/data"] {
            context.memory.push(crosshandle::report::MemoryReport {
                name: Some(name.into()),
                ..Default::default()
            });
        }
        let shown = context_name(&context);
        assert_eq!(shown.as_deref(), Some("held: b, c, d and 1 more"));
        context.name = Some("own".into());
        assert_eq!(context_name(&context), context.name);
    }

    #[test]
    fn terminals_obey_no_name() {
        assert_eq!(
            clean("a\x1b[2Jb\u{9b}c\n"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}"
        );
        assert_eq!(clean("trainer ü"), "trainer ü");
        assert_eq!(clean(&"x".repeat(1000)).chars().count(), MAX_NAME_CHARS + 1);
        assert_eq!(
            object("event", 3, Some("\u{202e}s")),
            "event 3 \"\u{fffd}s\""
        );
    }
}
