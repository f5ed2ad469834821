//! Checks the English of comments, docstrings and pages: lines, sentences and phrases that are hard
//! to read.

use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::Result;
use crate::step::{say, seconds};
use crate::workspace::Workspace;

/// Maximum number of columns of a line of prose.
const COLUMNS: usize = 100;
/// Maximum number of words of a sentence.
const WORDS: usize = 40;
/// Phrases that have a plainer form, in lower case, and what to write instead.
const PHRASES: [(&str, &str); 20] = [
    ("whoever", "the actor's name"),
    ("somebody", "the actor's name"),
    ("nobody", "\"no process\", \"no thread\""),
    ("everybody", "\"all processes\", \"all readers\""),
    ("those who", "the actors' name"),
    ("all else", "\"everything else\", or what it is"),
    ("the other one", "what it is"),
    ("is told of", "\"is notified\", \"learns\""),
    ("are told of", "\"are notified\", \"learn\""),
    ("lets go of", "releases"),
    ("let go of", "released"),
    ("has a look", "checks"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("counts as", "is treated as"),
    ("beside", "\"next to\", \"compared with\""),
    ("mended", "fixed"),
    ("serves for", "is used for"),
    ("for good", "permanently"),
    ("likewise", "a verb"),
];
/// Parts of paths whose text is generated, is data, or is by others.
const SKIPPED: [&str; 5] = [
    "-sys/src/",
    "/corpus/",
    "LICENSE",
    "CHANGELOG.md",
    "xtask/src/prose.rs",
];

/// Checks every tracked file, as a step of the test command.
pub(crate) fn step(workspace: &Workspace) -> Result<()> {
    say("start  prose");
    let started = Instant::now();
    check(workspace)
        .map_err(|error| format!("prose: {error}\n  repeat it with: cargo xtask prose"))?;
    say(&format!("ok     prose ({})", seconds(started.elapsed())));
    Ok(())
}

/// Checks every tracked file.
///
/// # Errors
/// Some text breaks a rule; the error lists each place.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let listed = Command::new("git")
        .arg("ls-files")
        .current_dir(&workspace.root)
        .output();
    let listed = listed.map_err(|error| format!("cannot run git: {error}"))?;
    let mut found = Vec::new();
    for path in String::from_utf8_lossy(&listed.stdout).lines() {
        let is_prose = [".rs", ".py", ".pyi", ".md"]
            .iter()
            .any(|end| path.ends_with(end));
        if !is_prose || SKIPPED.iter().any(|part| path.contains(part)) {
            continue;
        }
        // A file that was deleted but not committed.
        let Ok(text) = fs::read_to_string(workspace.root.join(path)) else {
            continue;
        };
        found.extend(
            faults(path, &text)
                .into_iter()
                .map(|(line, fault)| format!("{path}:{line}: {fault}")),
        );
    }
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{}\n{} places are hard to read",
            found.join("\n"),
            found.len()
        ))
    }
}

/// Returns the number of each line that breaks a rule, and how.
fn faults(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for paragraph in paragraphs(path, text) {
        let (mut words, mut recent) = (0, String::new());
        for (line, text) in paragraph {
            let columns = text.chars().count();
            // Rows of tables, and comments of HTML, are one line each.
            let start = text.trim_start_matches(['/', '!', '#', ' ']);
            let is_fixed = start.starts_with('|') || start.starts_with("<!--");
            if columns > COLUMNS && !is_fixed && !text.contains("](http") {
                found.push((line, format!("{columns} columns; at most {COLUMNS}")));
            }
            for word in without_code(text).split_whitespace() {
                let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
                if plain.is_empty() {
                    continue;
                }
                words += 1;
                recent = format!("{recent} {}", plain.to_lowercase());
                for (phrase, instead) in PHRASES {
                    if recent.ends_with(&format!(" {phrase}")) {
                        found.push((line, format!("\"{phrase}\": write {instead}")));
                    }
                }
                if word.ends_with(['.', '?', '!', ':', '|']) || word.ends_with(".)") {
                    words = 0;
                    recent.clear();
                } else if words == WORDS + 1 {
                    found.push((line, format!("a sentence of more than {WORDS} words")));
                }
            }
        }
    }
    found
}

/// Returns the paragraphs of a page, or of the comments and docstrings of a source.
fn paragraphs<'a>(path: &str, text: &'a str) -> Vec<Vec<(usize, &'a str)>> {
    let (is_page, is_rust) = (path.ends_with(".md"), path.ends_with(".rs"));
    let mut paragraphs = vec![Vec::new()];
    let (mut is_listing, mut is_docstring, mut is_text) = (false, false, false);
    for (line, text) in text.lines().enumerate() {
        let start = text.trim_start();
        let comment = if is_rust {
            start.strip_prefix("//")
        } else {
            start.strip_prefix('#')
        };
        let quotes = text.matches("\"\"\"").count();
        let is_prose = if is_page {
            true
        } else if is_rust {
            comment.is_some()
        } else {
            comment.is_some() || is_docstring || quotes > 0 && start.starts_with("\"\"\"")
        };
        if !is_page && !is_rust && quotes == 1 {
            // Other texts of several lines may be programs.
            let begins = !is_docstring && !is_text;
            is_text = begins && !is_prose;
            is_docstring = begins && is_prose;
        }
        let body = comment
            .unwrap_or(start)
            .trim_start_matches(['/', '!'])
            .trim_start();
        is_listing ^= is_prose && body.starts_with("```");
        let begins = ["- ", "* ", "|", ">>>", "```", "#"]
            .iter()
            .any(|mark| body.starts_with(mark));
        if !is_prose || is_listing || body.is_empty() || begins {
            paragraphs.push(Vec::new());
        }
        if let (true, Some(last)) = (
            is_prose && !is_listing && !body.is_empty(),
            paragraphs.last_mut(),
        ) {
            last.push((line + 1, text));
        }
    }
    paragraphs
}

/// Returns a line without the code in it.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("code")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        faults(path, text)
            .into_iter()
            .map(|(line, _)| line)
            .collect()
    }

    #[test]
    fn phrases_are_found_across_lines_and_not_in_code() {
        let source =
            "/// It is told\n/// of a change.\nlet nobody = 1; // nobody\n/// `nobody` reads it.\n";
        assert_eq!(lines("a.rs", source), [2]);
        let source =
            "def f():\n    \"\"\"Whoever\n    reads.\"\"\"\n    # It goes on.\n    goes = on\n";
        assert_eq!(lines("a.py", source), [2, 4]);
    }

    #[test]
    fn long_sentences_and_lines_are_found() {
        let long = "word ".repeat(WORDS + 1);
        let wrapped = long
            .split_inclusive("word word word word ")
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(lines("a.md", &wrapped), [11]);
        assert_eq!(lines("a.md", &format!("```\n{wrapped}\n```\n")), []);
        assert_eq!(lines("a.md", &format!("| {long}. |\n")), [1]);
        assert_eq!(lines("a.rs", &format!("// {}\n", "a".repeat(COLUMNS))), [1]);
    }
}
