//! Allocations in code that parses data of others: their sizes are constants, or a `Bounded`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{Fault, Files};

/// Files and directories whose input comes from peers, linked hosts, files or other users.
const PARSERS: [&str; 13] = [
    "crates/crosshandle-handle/src/",
    "crates/crosshandle-ipc/src/broker/",
    "crates/crosshandle-ipc/src/chunks/",
    "crates/crosshandle/src/api/holder/",
    "crates/crosshandle/src/api/report/",
    "crates/crosshandle-store/src/manifest.rs",
    "crates/crosshandle-store/src/source.rs",
    "crates/crosshandle-store/src/state.rs",
    "crates/crosshandle-link/src/control/",
    "crates/crosshandle-link/src/link/",
    "crates/crosshandle-link/src/memory/",
    "crates/crosshandle-link/src/neighbour/",
    "crates/crosshandle-cli/src/commands/link/",
];
/// The file that may allocate by a length which it has checked.
const BOUNDED: &str = "crates/crosshandle-handle/src/bounded.rs";
/// Functions that allocate as many elements as their first argument says.
const FUNCTIONS: &str =
    "with_capacity reserve reserve_exact try_reserve try_reserve_exact resize set_len";
/// Words in lower case that a constant size may contain.
const CONSTANT: &str = "size_of as usize u8 u16 u32 u64";

/// Returns each allocation in a parser whose size is neither a constant nor a `Bounded`.
pub(super) fn check(path: &str, text: &str) -> Vec<Fault> {
    let mut found = Vec::new();
    let is_test = path.split(['/', '.']).any(|part| part == "tests");
    let is_parser = PARSERS.iter().any(|parser| path.starts_with(parser));
    if is_parser && !is_test && path != BOUNDED {
        match text.parse() {
            Ok(tokens) => scan(tokens, &mut found),
            Err(error) => found.push((0, format!("{error}"))),
        }
    }
    found
}

/// Returns the entries of the lists above that no file matches.
pub(super) fn unused(files: &Files) -> Vec<Fault> {
    let entries = PARSERS.into_iter().chain([BOUNDED]);
    let unused = entries.filter(|entry| !files.keys().any(|path| path.starts_with(entry)));
    let unused = unused.map(|entry| (0, format!("there is no {entry}")));
    unused.collect()
}

fn scan(tokens: TokenStream, found: &mut Vec<Fault>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut is_for_tests = false;
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            is_for_tests &= token.to_string() != ";";
            continue;
        };
        let before = |back| {
            at.checked_sub(back)
                .map_or(String::new(), |at| tokens[at].to_string())
        };
        let is_item = group.delimiter() == Delimiter::Brace;
        if !(is_for_tests && is_item) {
            let parts = group.stream().to_string();
            let size = if before(1) == "!" && before(2) == "vec" {
                parts.rsplit_once(';').map(|(_, size)| size)
            } else if before(2) != "fn" && FUNCTIONS.split(' ').any(|name| name == before(1)) {
                parts.split(',').next()
            } else {
                None
            };
            if size.is_some_and(|size| !is_constant(size)) {
                let what = format!(
                    "{}: a size that a peer may choose; use `Bounded`",
                    before(1)
                );
                found.push((group.span_open().start().line, what));
            }
            scan(group.stream(), found);
        }
        let attribute = token.to_string();
        let is_test = attribute.starts_with("[cfg") && attribute.contains("test");
        is_for_tests = is_test && !attribute.contains("not") || is_for_tests && !is_item;
    }
}

fn is_constant(size: &str) -> bool {
    let mut words = size.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let is_known = |word| CONSTANT.split(' ').any(|known| known == word) || is_number(word);
    words.all(|word| !word.contains(char::is_lowercase) || is_known(word))
}

#[test]
fn sizes_of_others_are_found() {
    let source = "
        fn parse(claimed: usize) {
            let _ = (vec![0; MAX + 2 * size_of::<u64>()], vec![claimed], vec![0u8; claimed]);
            Vec::<u8>::with_capacity(claimed).resize(claimed, 0);
        }
        #[cfg(all(test, unix))]
        mod tests { fn resize(claimed: usize) { vec![0; claimed]; } }
    ";
    let found = check("crates/crosshandle-handle/src/text.rs", source);
    assert_eq!(
        found.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
        [3, 4, 4]
    );
    assert_eq!(check("crates/crosshandle-os/src/memfd.rs", source), []);
}
