//! The tests that `docs/security.md` names as evidence exist.

use std::collections::BTreeSet;

use super::{Fault, Files, SECURITY, codes, text};

const SUITE: &str = "crates/conformance/src/suite.rs";

/// Returns the tests that the page names and that do not exist. The name of a test is code with
/// two underscores or more. The name of a case is `topic::rule`, and `topic::…` is a whole topic.
pub(super) fn check(files: &Files) -> Vec<Fault> {
    let sources = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let marked = sources.flat_map(|(_, text)| text.split("#[test]\n").skip(1));
    let functions = marked.filter_map(|rest| rest.split_once("fn ")?.1.split('(').next());
    let mut tests: BTreeSet<_> = functions.map(str::to_owned).collect();
    tests.extend(cases(text(files, SUITE)));
    let is_missing = |code: &str| match code.split_once("::") {
        Some((topic, "…")) => !tests
            .iter()
            .any(|name| name.starts_with(&format!("{topic}::"))),
        Some((topic, rule)) => is_snake(topic) && is_snake(rule) && !tests.contains(code),
        None => is_snake(code) && code.matches('_').count() >= 2 && !tests.contains(code),
    };
    let lines = text(files, SECURITY).lines().zip(1..);
    let named = lines.flat_map(|(text, line)| codes(text).map(move |code| (line, code)));
    let missing = named.filter(|(_, code)| is_missing(code));
    let missing = missing.map(|(line, code)| (line, format!("there is no test {code}")));
    missing.collect()
}

/// Returns the cases of the suite: a topic with a brace, a rule on each line, and a brace.
fn cases(list: &str) -> Vec<String> {
    let (mut topic, mut cases) = ("", Vec::new());
    for line in list.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            topic = name;
        } else if line == "}" {
            topic = "";
        } else if is_snake(topic) && is_snake(line) {
            cases.extend([line.to_owned(), format!("{topic}::{line}")]);
        }
    }
    cases
}

fn is_snake(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !name.is_empty() && name.chars().all(is_part)
}

#[test]
fn only_tests_and_cases_are_evidence() {
    let source = "#[test]\n#[ignore]\nfn no_user_gets_in() {}\nfn is_no_test_() {}\n";
    let list = "$callback! {\n hostile {\n  floods\n  by_many_words\n }\n}";
    let page = "`hostile::floods`, `by_many_words`, `no_user_gets_in`, `hostile::…`, `open_count`\n\
                `hostile::gone`, `is_no_test_`, `gone::…`, `Guard::Look`\n";
    let files = [("a.rs", source), (SUITE, list), (SECURITY, page)];
    let found = check(&files.map(|(path, text)| (path.into(), text.into())).into());
    let expected = ["hostile::gone", "is_no_test_", "gone::…"];
    let expected = expected.map(|name| (2, format!("there is no test {name}")));
    assert_eq!(found, expected);
}
