//! One word, one meaning: the glossary's terms are in the code, and retired words are not.

use std::collections::BTreeMap;

use super::table::{Place, RETIRED};

/// A word of a source, in the order of its text.
struct Word<'a> {
    line: usize,
    text: &'a str,
    is_comment: bool,
}

/// Returns uses of retired words in a source: the line and what to use instead. One for each word
/// and line. Without `identifiers`, only words that are retired everywhere count.
pub(crate) fn retired(source: &str, identifiers: bool) -> Vec<(usize, String)> {
    let mut found = BTreeMap::new();
    for word in words(source) {
        let parts = split(word.text);
        // Constants of C headers are named by others.
        let is_of_headers = ["UR_", "ZE_", "CU_"]
            .iter()
            .any(|of| word.text.starts_with(of));
        if is_of_headers {
            continue;
        }
        for entry in RETIRED {
            let has_part = || {
                parts
                    .iter()
                    .any(|part| part == entry.word || part.strip_suffix('s') == Some(entry.word))
            };
            let is_identifier = identifiers && !word.is_comment;
            let is_found = match entry.place {
                Place::WholeIdentifier => is_identifier && word.text == entry.word,
                // Names of tests are sentences.
                Place::Identifiers => is_identifier && parts.len() <= 3 && has_part(),
                Place::Anywhere => has_part(),
            };
            if is_found {
                let (text, instead) = (word.text, entry.instead);
                found.entry((word.line, entry.word)).or_insert_with(|| {
                    format!("{text}: the word {} is retired; use {instead}", entry.word)
                });
            }
        }
    }
    let found = found.into_iter();
    found.map(|((line, _), message)| (line, message)).collect()
}

/// Returns the terms of a glossary: what its lines and tables have in bold at their start.
pub(crate) fn terms(glossary: &str) -> Vec<String> {
    let lines = glossary
        .lines()
        .map(|line| line.trim_start_matches(['|', '-', '*', ' ']));
    let bold = glossary
        .lines()
        .zip(lines)
        .filter(|(whole, _)| whole.trim_start_matches(['|', '-', ' ']).starts_with("**"))
        .filter_map(|(_, rest)| Some(rest.split_once("**")?.0));
    bold.flat_map(|terms| terms.split(", "))
        .map(str::to_owned)
        .collect()
}

/// Returns the terms that none of the sources has, as an identifier or in a comment.
pub(crate) fn missing<'a>(terms: &'a [String], sources: &[&str]) -> Vec<&'a str> {
    let mut text = String::from(" ");
    for source in sources {
        for word in words(source) {
            for part in split(word.text) {
                text.push_str(&part);
                text.push(' ');
            }
        }
    }
    let is_missing = |term: &&String| {
        let parts = term.split([' ', '-']).flat_map(split);
        let wanted = parts.collect::<Vec<_>>().join(" ");
        !text.contains(&format!(" {wanted} ")) && !text.contains(&format!(" {wanted}s "))
    };
    terms
        .iter()
        .filter(is_missing)
        .map(String::as_str)
        .collect()
}

/// Returns identifiers, and words of comments. Texts in quotes are left out: users see those.
fn words(source: &str) -> Vec<Word<'_>> {
    let bytes = source.as_bytes();
    let mut words = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source[at..];
        let end = if rest.starts_with("//") {
            let end = at + rest.find('\n').unwrap_or(rest.len());
            add(&mut words, &source[at..end], line, true);
            end
        } else if rest.starts_with("/*") {
            let end = at + rest.find("*/").map_or(rest.len(), |end| end + 2);
            add(&mut words, &source[at..end], line, true);
            end
        } else if let Some(length) = raw_text(rest) {
            at + length
        } else if rest.starts_with('"') {
            at + text(rest, b'"')
        } else if rest.starts_with("'\\") || (rest.starts_with('\'') && is_character(rest)) {
            at + text(rest, b'\'')
        } else if is_of_name(bytes[at]) {
            let end = at + rest.bytes().take_while(|byte| is_of_name(*byte)).count();
            add(&mut words, &source[at..end], line, false);
            end
        } else {
            at + 1
        };
        line += bytes[at..end].iter().filter(|byte| **byte == b'\n').count();
        at = end;
        while !source.is_char_boundary(at) {
            at += 1;
        }
    }
    words
}

fn add<'a>(words: &mut Vec<Word<'a>>, text: &'a str, first_line: usize, is_comment: bool) {
    for (below, text) in text.lines().enumerate() {
        let parts = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '\''));
        for text in parts.filter(|part| !part.is_empty()) {
            words.push(Word {
                line: first_line + below,
                text,
                is_comment,
            });
        }
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns whether a quote begins a character, and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut characters = rest.chars().skip(1);
    characters.next().is_some() && characters.next() == Some('\'')
}

/// Returns the length of a text in quotes.
fn text(rest: &str, quote: u8) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the length of a raw text, if `rest` begins with one.
fn raw_text(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    let opened = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let length = opened
        .find(&close)
        .map_or(opened.len(), |end| end + close.len());
    Some(rest.len() - opened.len() + length)
}

/// The words of an identifier, in lower case: of `HostFence`, `host_fence` and `HOST_FENCE` alike.
fn split(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for character in identifier.chars() {
        let begins = character.is_uppercase() && before.is_lowercase();
        if begins || character == '_' {
            parts.push(String::new());
        }
        if character != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(character.to_lowercase());
        }
        before = character;
    }
    parts.retain(|part| !part.is_empty());
    parts
}
