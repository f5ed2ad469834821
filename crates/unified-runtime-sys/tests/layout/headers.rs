//! What the C headers name.

use std::collections::BTreeSet;
use std::path::Path;

/// Decorations and macros with arguments: nothing of the binary interface.
const NOT_ABI: [&str; 11] = [
    "UR_API_H_INCLUDED",
    "UR_DDI_H_INCLUDED",
    "UR_APICALL",
    "UR_APIEXPORT",
    "UR_DLLEXPORT",
    "UR_BIT",
    "UR_MAKE_VERSION",
    "UR_MAJOR_VERSION",
    "UR_MINOR_VERSION",
    "ur_api",
    "ur_ddi",
];

/// Every type and constant that the headers name. Functions are not among them.
pub(crate) fn names(include: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in ["ur_api.h", "ur_ddi.h"] {
        let path = include.join("unified-runtime").join(header);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let code = without_comments(&text);
        let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("ur_") || word.starts_with("UR_"));
        names.extend(
            ours.filter(|word| !NOT_ABI.contains(word))
                .map(str::to_owned),
        );
    }
    names
}

/// `text` without comments of either kind. No literal of the headers holds the start of one.
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
