//! The English of comments, docstrings and pages: lines, sentences and phrases that are hard to
//! read.

use super::Fault;

/// Maximum number of columns of a line of prose.
const COLUMNS: usize = 100;
/// Maximum number of words of a sentence.
const WORDS: usize = 40;
/// Phrases that have a plainer form, in lower case, and what to write instead.
const PHRASES: [(&str, &str); 16] = [
    ("whoever|those who|somebody|everybody", "the actor's name"),
    ("nobody", "\"no process\", \"no thread\""),
    ("all else", "\"everything else\", or what it is"),
    ("the other one", "what it is"),
    ("is told of|are told of", "\"is notified\", \"learns\""),
    ("lets go of|let go of", "releases, released"),
    ("has a look", "checks"),
    ("goes on|go on", "continues"),
    ("counts as", "is treated as"),
    ("beside", "\"next to\", \"compared with\""),
    ("mended", "fixed"),
    ("serves for", "is used for"),
    ("for good", "permanently"),
    ("likewise", "a verb"),
    (
        "lane|caretaker|leftover|companion|bury",
        "the glossary's term",
    ),
    (
        "lingering|nudge|nap|keeper|chore|visitor",
        "the glossary's term",
    ),
];
/// Parts of paths whose text is generated, is data, or is by others.
const SKIPPED: [&str; 4] = ["-sys/src/", "/corpus/", "CHANGELOG.md", "style/prose.rs"];

/// Returns the lines of prose that are hard to read.
pub(super) fn check(path: &str, text: &str) -> Vec<Fault> {
    let mut found = Vec::new();
    let start = match path.rsplit_once('.') {
        _ if SKIPPED.iter().any(|part| path.contains(part)) => return found,
        Some((_, "md")) => "",
        Some((_, "rs")) => "//",
        Some((_, "py" | "pyi")) => "#",
        _ => return found,
    };
    for paragraph in paragraphs(start, text) {
        let (mut words, mut recent) = (0, String::new());
        for (line, text) in paragraph {
            let columns = text.chars().count();
            // Rows of tables, and comments of HTML, are one line each.
            let body = text.trim_start_matches(['/', '!', '#', ' ']);
            let is_fixed = body.starts_with('|') || body.starts_with("<!--");
            if columns > COLUMNS && !is_fixed && !text.contains("](http") {
                found.push((line, format!("{columns} columns; at most {COLUMNS}")));
            }
            let prose = text.split('`').step_by(2).collect::<Vec<_>>().join("code");
            let is_word = |word: &&str| word.contains(char::is_alphanumeric);
            for word in prose.split_whitespace().filter(is_word) {
                let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
                words += 1;
                recent = format!("{recent} {}", plain.to_lowercase());
                for (phrases, instead) in PHRASES {
                    let is_last = |phrase: &&str| recent.ends_with(&format!(" {phrase}"));
                    let last = phrases.split('|').find(is_last);
                    found.extend(last.map(|last| (line, format!("\"{last}\": write {instead}"))));
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

/// Returns the paragraphs of the comments and docstrings of a source, or of a page if comments
/// start with nothing.
fn paragraphs<'a>(start: &str, text: &'a str) -> Vec<Vec<(usize, &'a str)>> {
    let mut paragraphs = vec![Vec::new()];
    let (mut is_listing, mut is_docstring, mut is_text) = (false, false, false);
    for (text, line) in text.lines().zip(1..) {
        let whole = text.trim_start();
        let comment = whole.strip_prefix(start);
        let quotes = text.matches("\"\"\"").filter(|_| start == "#").count();
        let opens = quotes > 0 && whole.starts_with("\"\"\"");
        let is_prose = comment.is_some() || is_docstring || opens;
        if quotes == 1 {
            // Other texts of several lines may be programs.
            let begins = !is_docstring && !is_text;
            is_text = begins && !is_prose;
            is_docstring = begins && is_prose;
        }
        let body = comment.unwrap_or(whole).trim_start_matches(['/', '!', ' ']);
        is_listing ^= is_prose && body.starts_with("```");
        let marks = ["- ", "* ", "|", ">>>", "```", "#"];
        let is_read = is_prose && !is_listing && !body.is_empty();
        if !is_read || marks.iter().any(|mark| body.starts_with(mark)) {
            paragraphs.push(Vec::new());
        }
        if is_read && let Some(last) = paragraphs.last_mut() {
            last.push((line, text));
        }
    }
    paragraphs
}

#[test]
fn hard_lines_are_found() {
    let lines = |path: &str, text: &str| check(path, text).into_iter().map(|fault| fault.0);
    let lines = |path: &str, text: &str| lines(path, text).collect::<Vec<_>>();
    let source = "/// It is told\n/// of a change.\nlet nap = 1; // nap\n/// `nap` reads it.\n";
    assert_eq!(lines("a.rs", source), [2]);
    let source = "def f():\n  \"\"\"Whoever\n  reads.\"\"\"\n  # It goes on.\n  goes = on\n";
    assert_eq!(lines("a.py", source), [2, 4]);
    let long = "word word word\n".repeat(WORDS / 3 + 1);
    assert_eq!(lines("a.md", &long), [WORDS / 3 + 1]);
    assert_eq!(
        lines("a.md", &format!("```\n{long}```\n")),
        Vec::<usize>::new()
    );
    assert_eq!(lines("a.rs", &format!("// {}\n", "a".repeat(COLUMNS))), [1]);
}
