//! Tests that a document names as evidence: every one of them exists.

use std::collections::BTreeSet;

/// Every rule of a topic.
const ALL: &str = "…";

/// The names of tests: functions, and the suite's cases as `topic::rule` too.
#[derive(Default)]
pub(crate) struct Tests(BTreeSet<String>);

impl Tests {
    /// Adds the functions of a source.
    pub(crate) fn add_functions(&mut self, source: &str) {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for line in source.lines() {
            let Some((_, rest)) = line.split_once("fn ") else {
                continue;
            };
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            self.0.insert(rest[..end].to_owned());
        }
    }

    /// Adds the cases of the suite's list, which has a topic with a brace, a rule on each line, and
    /// a brace.
    pub(crate) fn add_cases(&mut self, list: &str) {
        let mut topic = None;
        for line in list.lines().map(str::trim) {
            if let Some(name) = line.strip_suffix(" {").filter(|name| is_snake(name)) {
                topic = Some(name);
            } else if line == "}" {
                topic = None;
            } else if let Some(topic) = topic.filter(|_| is_snake(line)) {
                self.0.insert(line.to_owned());
                self.0.insert(format!("{topic}::{line}"));
            }
        }
    }

    fn has_topic(&self, topic: &str) -> bool {
        let prefix = format!("{topic}::");
        self.0.iter().any(|name| name.starts_with(&prefix))
    }
}

fn is_snake(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !name.is_empty() && name.chars().all(is_part)
}

/// Returns names in a document that no test has: the line and the name. A name is a piece of code
/// in lower case: of three words at least, or of a topic and a rule; `topic::…` stands for all of a
/// topic.
pub(crate) fn missing(document: &str, tests: &Tests) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in document.lines().enumerate() {
        for code in line.split('`').skip(1).step_by(2) {
            let is_missing = match code.split_once("::") {
                Some((topic, ALL)) => is_snake(topic) && !tests.has_topic(topic),
                Some((topic, rule)) => is_snake(topic) && is_snake(rule) && !tests.0.contains(code),
                None => {
                    let is_name = is_snake(code) && code.matches('_').count() >= 2;
                    is_name && !tests.0.contains(code)
                }
            };
            if is_missing {
                found.push((index + 1, code.to_owned()));
            }
        }
    }
    found
}
