//! Paths that the documents name: every one of them exists.

use std::collections::BTreeSet;

/// Every file and directory of the checkout, by its path from the root; directories end with `/`.
pub(crate) type Paths = BTreeSet<String>;

/// Returns paths in a document that name nothing: the line and the path. `directory` is the
/// document's own, empty or ending with `/`.
pub(crate) fn dangling(text: &str, directory: &str, paths: &Paths) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_listing = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_listing = !is_listing;
        }
        let mut named = links(line);
        let code: Vec<&str> = if is_listing {
            line.split_whitespace()
                .filter(|word| word.starts_with("crates/"))
                .collect()
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        for code in code {
            named.extend(
                code.split_whitespace()
                    .filter_map(path)
                    .flat_map(alternatives),
            );
        }
        for path in named {
            if !exists(&path, directory, paths) {
                found.push((index + 1, path));
            }
        }
    }
    found
}

/// Returns where links of a line point to, without those into the web or within the page.
fn links(line: &str) -> Vec<String> {
    let targets = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .map(|target| format!("./{target}"))
        .collect()
}

/// Returns the path that a piece of code is, if it is one of this checkout's.
fn path(code: &str) -> Option<&str> {
    let code = code.trim_end_matches([',', '.', ';', ':', ')']);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./{},*".contains(c);
    if !code.chars().all(is_plain) || code.starts_with(['/', '.', '-']) {
        return None;
    }
    let is_ours = ["crates/", "docs/", "xtask/", "fuzz/", "benches/"]
        .iter()
        .any(|root| code.starts_with(root));
    let is_source = [".rs", ".c", ".cpp", ".h", ".md"]
        .iter()
        .any(|ending| code.ends_with(ending));
    (is_ours || is_source || (code.ends_with('/') && code.len() > 1)).then_some(code)
}

/// Expands braces: `a/{b,c}` is two paths.
fn alternatives(path: &str) -> Vec<String> {
    match (path.find('{'), path.find('}')) {
        (Some(open), Some(close)) if open < close => path[open + 1..close]
            .split(',')
            .flat_map(|one| alternatives(&format!("{}{one}{}", &path[..open], &path[close + 1..])))
            .collect(),
        _ => vec![path.to_owned()],
    }
}

/// Returns whether a path names something from the root, from the library's sources, or, if it is
/// the end of a path, anywhere. A star stands for any name.
fn exists(path: &str, directory: &str, paths: &Paths) -> bool {
    if let Some(link) = path.strip_prefix("./") {
        let mut at: Vec<&str> = directory
            .split('/')
            .filter(|part| !part.is_empty())
            .collect();
        for part in link.split('/') {
            match part {
                ".." => drop(at.pop()),
                "." | "" => {}
                name => at.push(name),
            }
        }
        let path = at.join("/");
        return paths.contains(&path) || paths.contains(&format!("{path}/"));
    }
    if let Some((before, _)) = path.split_once('*') {
        return paths.iter().any(|known| known.starts_with(before));
    }
    let is_rooted = ["crates/", "docs/", "xtask/", "fuzz/", "benches/"]
        .iter()
        .any(|root| path.starts_with(root));
    let directory = format!("{}/", path.trim_end_matches('/'));
    if is_rooted {
        return paths.contains(path) || paths.contains(&directory);
    }
    let ends = [format!("/{path}"), format!("/{directory}")];
    paths.contains(path)
        || paths.contains(&directory)
        || paths
            .iter()
            .any(|known| ends.iter().any(|end| known.ends_with(end)))
}
