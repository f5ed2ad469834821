//! The names in the C headers.

use std::collections::BTreeSet;

use crate::Interface;

/// Returns every name of a type or constant in the headers, without the functions.
pub(crate) fn names(interface: &Interface<'_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let ours = |word: &&str| {
        let begins = |prefix: &&str| word.starts_with(prefix);
        interface.prefixes.iter().any(begins) && !(interface.not_abi)(word)
    };
    for header in interface.headers {
        let path = interface.include.join(header);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let code = without_comments(&text);
        let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        names.extend(words.filter(ours).map(str::to_owned));
    }
    names
}

/// Returns `text` without line comments and block comments. No literal in the headers contains the
/// start of a comment.
fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(slash) = rest.find('/') {
        code += &rest[..slash];
        code.push(' ');
        let after = &rest[slash + 1..];
        let end = match after.chars().next() {
            Some('/') => "\n",
            Some('*') => "*/",
            _ => "",
        };
        rest = after.split_once(end).map_or("", |(_, code)| code);
    }
    code + rest
}
