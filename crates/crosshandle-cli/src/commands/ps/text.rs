//! Text of other processes, made fit for a terminal.

use crate::output::clean;

/// Most characters of a name that are shown. Longer ones would break the lines; half would cut real
/// names.
const MAX_NAME_CHARS: usize = 48;

/// Returns a name as it can be shown: without control characters, which a terminal would obey, and
/// not too long.
pub(crate) fn clean(name: &str) -> String {
    let shown: String = name.chars().take(MAX_NAME_CHARS).collect();
    let mut clean = clean::line(&shown).into_owned();
    if name.chars().nth(MAX_NAME_CHARS).is_some() {
        clean.push('…');
    }
    clean
}

/// Returns a process in words: `4711 trainer`.
pub(crate) fn process(pid: u32, program: &str) -> String {
    match clean(program) {
        program if program.is_empty() => pid.to_string(),
        program => format!("{pid} {program}"),
    }
}

/// Returns an object in words: `event 3 "step"`.
pub(crate) fn object(kind: &str, number: u32, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{kind} {number} \"{}\"", clean(name)),
        None => format!("{kind} {number}"),
    }
}

/// Returns a number and its noun: `1 event`, `2 events`.
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
