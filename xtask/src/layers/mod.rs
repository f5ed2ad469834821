//! The structure of the code: layers, cycles of imports, places of `unsafe`, threads and constants,
//! words, sizes that peers choose, and the paths that documents name.
//!
//! `table.rs` has what is allowed. Code of tests is exempt from all but the words.

mod cycles;
mod documents;
mod evidence;
mod imports;
mod rules;
mod sizes;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Instant;

use imports::Edge;
use rules::Rules;
use table::{IN_USERS_PROCESS, LARGE_DIRECTORIES, LAYERS, MAX_ENTRIES};
use tree::{Sources, Tree};

use crate::Result;
use crate::step::{say, seconds};

/// The library's sources.
const LIBRARY: &str = "crates/crosshandle/src";
/// The document whose promises have tests, which it names.
const SECURITY: &str = "docs/security.md";
/// The list of the suite's cases.
const SUITE: &str = "crates/conformance/src/suite.rs";
/// Where the words that are this project's own are explained.
const GLOSSARY: &str = "docs/glossary.md";

/// A fault in the checkout.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    /// The file or directory, from the root.
    path: String,
    /// The line, from 1; 0 for the whole of it.
    line: usize,
    message: String,
}

impl Fault {
    fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        Self {
            path,
            line,
            message,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks the checkout at `root` as a step of the test command.
pub(crate) fn step(root: &Path) -> Result<()> {
    say("start  layers");
    let started = Instant::now();
    let outcome = run(root, false);
    let word = if outcome.is_ok() { "ok    " } else { "FAILED" };
    say(&format!("{word} layers ({})", seconds(started.elapsed())));
    outcome.map_err(|error| format!("{error}\n  repeat it with: cargo xtask layers"))
}

/// Checks the checkout at `root`, and prints every fault. With `graph` it prints the imports
/// between layers and the library's figures as well.
///
/// # Errors
/// Any fault, and sources that cannot be read.
pub(crate) fn run(root: &Path, graph: bool) -> Result<()> {
    let checkout = Checkout::read(root)?;
    let tree = Tree::read(&checkout.library())?;
    let edges = imports::edges(&tree);
    if graph {
        print_graph(&tree, &edges);
        print_figures(&checkout, &tree, &edges);
    }
    let faults = checkout.faults(&tree, &edges);
    for fault in &faults {
        say(&fault.to_string());
    }
    match faults.len() {
        0 => Ok(()),
        1 => Err("layers: 1 fault".to_owned()),
        count => Err(format!("layers: {count} faults")),
    }
}

/// The parts of a checkout that are checked.
struct Checkout {
    /// Sources of the crates but for generated ones, by their path from the root.
    sources: BTreeMap<String, String>,
    documents: BTreeMap<String, String>,
    paths: documents::Paths,
    tests: evidence::Tests,
}

impl Checkout {
    fn read(root: &Path) -> Result<Self> {
        let mut paths = BTreeSet::new();
        list(root, "", &mut paths)?;
        let (mut sources, mut documents) = (BTreeMap::new(), BTreeMap::new());
        let mut tests = evidence::Tests::default();
        for path in &paths {
            let is_source = is_source(path);
            if is_source || is_document(path) || is_test(path) {
                let text = fs::read_to_string(root.join(path))
                    .map_err(|error| format!("cannot read {path}: {error}"))?;
                if is_source || is_test(path) {
                    tests.add_functions(&text);
                }
                if path == SUITE {
                    tests.add_cases(&text);
                }
                if is_source {
                    sources.insert(path.clone(), text);
                } else if is_document(path) {
                    documents.insert(path.clone(), text);
                }
            }
        }
        Ok(Self {
            sources,
            documents,
            paths,
            tests,
        })
    }

    /// Returns the library's sources, by their path below its `src`.
    fn library(&self) -> Sources {
        let prefix = format!("{LIBRARY}/");
        let files = self.sources.iter();
        files
            .filter_map(|(path, text)| Some((path.strip_prefix(&prefix)?.to_owned(), text.clone())))
            .collect()
    }

    fn faults(&self, tree: &Tree, edges: &[Edge]) -> Vec<Fault> {
        let mut faults = layer_faults(tree, edges);
        faults.extend(cycle_faults(tree, edges));
        faults.extend(self.rule_faults(tree));
        faults.extend(self.size_faults());
        faults.extend(directory_faults(&self.paths));
        faults.extend(self.word_faults());
        for (path, text) in &self.documents {
            let directory = path.rfind('/').map_or("", |end| &path[..=end]);
            for (line, named) in documents::dangling(text, directory, &self.paths) {
                faults.push(Fault::new(path, line, format!("there is no {named}")));
            }
        }
        let security = self.documents.get(SECURITY).map_or("", String::as_str);
        for (line, named) in evidence::missing(security, &self.tests) {
            let message = format!("there is no test {named}");
            faults.push(Fault::new(SECURITY, line, message));
        }
        faults
    }

    fn rule_faults(&self, tree: &Tree) -> Vec<Fault> {
        let mut faults = Vec::new();
        for file in &tree.files {
            let rules = Rules {
                path: &file.path,
                is_library: true,
                is_in_users_process: true,
            };
            for (line, message) in rules.check(&file.syntax) {
                faults.push(Fault::new(library_path(&file.path), line, message));
            }
        }
        for (path, text) in &self.sources {
            let Some((krate, within)) = path.split_once("/src/") else {
                continue;
            };
            if path.starts_with(LIBRARY) || within.split(['/', '.']).any(|part| part == "tests") {
                continue;
            }
            let rules = Rules {
                path: within,
                is_library: false,
                is_in_users_process: IN_USERS_PROCESS.contains(&&*format!("{krate}/src")),
            };
            match syn::parse_file(text) {
                Ok(file) => faults.extend(
                    rules
                        .check(&file)
                        .into_iter()
                        .map(|(line, message)| Fault::new(path, line, message)),
                ),
                Err(error) => faults.push(Fault::new(path, 0, error.to_string())),
            }
        }
        faults
    }

    fn size_faults(&self) -> Vec<Fault> {
        let is_tests = |path: &str| path.split(['/', '.']).any(|part| part == "tests");
        let parsers = self.sources.iter();
        let parsers = parsers.filter(|(path, _)| sizes::applies(path) && !is_tests(path));
        let found = parsers.flat_map(|(path, text)| {
            // A file that cannot be read is a fault already.
            let found =
                syn::parse_file(text).map_or_else(|_| Vec::new(), |file| sizes::check(&file));
            found
                .into_iter()
                .map(move |(line, message)| Fault::new(path, line, message))
        });
        found.collect()
    }

    fn word_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (path, text) in &self.sources {
            let krate = path.split_once("/src/").map_or("", |(krate, _)| krate);
            let identifiers = IN_USERS_PROCESS.contains(&&*format!("{krate}/src"));
            for (line, message) in words::retired(text, identifiers) {
                faults.push(Fault::new(path, line, message));
            }
        }
        match self.documents.get(GLOSSARY) {
            Some(glossary) => {
                let sources: Vec<_> = self.sources.values().map(String::as_str).collect();
                for term in words::missing(&words::terms(glossary), &sources) {
                    let message = format!("the term {term} is nowhere in the code");
                    faults.push(Fault::new(GLOSSARY, 0, message));
                }
            }
            None => faults.push(Fault::new(GLOSSARY, 0, "there is no glossary")),
        }
        faults
    }
}

/// Returns whether a path is a source of a crate that is written by hand.
fn is_source(path: &str) -> bool {
    let Some((krate, _)) = path.split_once("/src/") else {
        return false;
    };
    let is_generated = krate.ends_with("-sys");
    path.starts_with("crates/") && path.ends_with(".rs") && !is_generated
}

/// Returns whether a path is a test of a crate, outside of its sources.
fn is_test(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/tests/") && path.ends_with(".rs")
}

fn is_document(path: &str) -> bool {
    path == "README.md"
        || path == "CONTRIBUTING.md"
        || (path.starts_with("docs/") && path.ends_with(".md"))
}

/// Adds every file and directory below `root`, but for what is hidden or built.
fn list(root: &Path, directory: &str, paths: &mut documents::Paths) -> Result<()> {
    let cannot = |error| format!("cannot list {directory}: {error}");
    for entry in fs::read_dir(root.join(directory)).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{directory}{name}");
        if entry.file_type().map_err(cannot)?.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "shared" {
                let below = format!("{path}/");
                paths.insert(below.clone());
                list(root, &below, paths)?;
            }
        } else {
            paths.insert(path);
        }
    }
    Ok(())
}

fn library_path(path: &str) -> String {
    format!("{LIBRARY}/{path}")
}

/// Returns the layer of a file of the library: its first component.
fn layer(path: &str) -> &str {
    let end = path.find(['/', '.']).unwrap_or(path.len());
    &path[..end]
}

fn height(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|known| *known == layer)
}

fn layer_faults(tree: &Tree, edges: &[Edge]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &tree.files {
        let layer = layer(&file.path);
        if height(layer).is_none() {
            let message = format!("{layer} is no layer: add it to the table of layers");
            faults.push(Fault::new(library_path(&file.path), 0, message));
        }
    }
    let mut seen = BTreeSet::new();
    for edge in edges {
        let (from, to) = (&tree.files[edge.from].path, &tree.files[edge.to].path);
        let (low, high) = (layer(from), layer(to));
        // No file imports what the root defines itself.
        if height(low) < height(high) && seen.insert((edge.from, edge.line, edge.path.clone())) {
            let message = format!(
                "{} is in {to}: the layer {low} imports from the higher layer {high}",
                edge.path
            );
            faults.push(Fault::new(library_path(from), edge.line, message));
        }
    }
    faults
}

fn cycle_faults(tree: &Tree, edges: &[Edge]) -> Vec<Fault> {
    let components = cycles::find(tree, edges);
    let faults = components.into_iter().map(|component| {
        let names: Vec<_> = component
            .files
            .iter()
            .map(|file| tree.files[*file].path.as_str())
            .collect();
        let mut message = format!(
            "{} files import each other in circles: {}\n  such as:",
            names.len(),
            names.join(", ")
        );
        for edge in &component.circle {
            let (from, to) = (&tree.files[edge.from].path, &tree.files[edge.to].path);
            message.push_str(&format!(
                "\n    {from}:{} uses {} of {to}",
                edge.line, edge.path
            ));
        }
        Fault::new(LIBRARY, 0, message)
    });
    faults.collect()
}

/// Returns directories of sources with too many entries.
fn directory_faults(paths: &documents::Paths) -> Vec<Fault> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for path in paths {
        let whole = path.trim_end_matches('/');
        if let Some((directory, _)) = whole.rsplit_once('/')
            && is_source_directory(directory)
        {
            *counts.entry(directory).or_default() += 1;
        }
    }
    let large = counts.into_iter().filter(|(directory, count)| {
        let is_exempt = LARGE_DIRECTORIES
            .iter()
            .any(|(known, _)| known == directory);
        *count > MAX_ENTRIES && !is_exempt
    });
    large
        .map(|(directory, count)| {
            let message = format!("{count} entries: {MAX_ENTRIES} at most");
            Fault::new(directory, 0, message)
        })
        .collect()
}

fn is_source_directory(directory: &str) -> bool {
    directory.starts_with("crates/") && (directory.ends_with("/src") || directory.contains("/src/"))
}

/// Prints, for each layer from the highest on, which layers it imports from and how often.
fn print_graph(tree: &Tree, edges: &[Edge]) {
    let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for edge in edges {
        let height = |file: usize| height(layer(&tree.files[file].path));
        if let (Some(from), Some(to)) = (height(edge.from), height(edge.to))
            && from != to
        {
            *counts.entry((from, to)).or_default() += 1;
        }
    }
    for (from, name) in LAYERS.iter().enumerate().rev() {
        let imports: Vec<_> = counts
            .iter()
            .filter(|((importer, _), _)| *importer == from)
            .rev()
            .map(|((_, to), count)| format!("{} {count}", LAYERS[*to]))
            .collect();
        say(&format!("{name:>14} → {}", imports.join(", ")));
    }
}

/// Prints the figures that `docs/architecture.md` compares.
fn print_figures(checkout: &Checkout, tree: &Tree, edges: &[Edge]) {
    let library: Vec<_> = checkout
        .sources
        .iter()
        .filter(|(path, _)| path.starts_with(LIBRARY))
        .collect();
    let lines: usize = library.iter().map(|(_, text)| text.lines().count()).sum();
    let blocks: usize = checkout
        .sources
        .values()
        .map(|text| unsafe_blocks(text))
        .sum();
    let in_library: usize = library.iter().map(|(_, text)| unsafe_blocks(text)).sum();
    let mut times = 0;
    for file in &tree.files {
        let rules = Rules {
            path: "",
            is_library: false,
            is_in_users_process: true,
        };
        let found = rules.check(&file.syntax);
        times += found
            .iter()
            .filter(|(_, what)| what.contains("constant of time"))
            .count();
    }
    let sizes: Vec<_> = cycles::find(tree, edges)
        .iter()
        .map(|component| component.files.len().to_string())
        .collect();
    say(&format!("library: {} files, {lines} lines", library.len()));
    say(&format!(
        "unsafe blocks: {blocks} in all crates, {in_library} in the library"
    ));
    say(&format!("constants of time in the library: {times}"));
    say(&format!(
        "files in cycles of imports: {}",
        sizes.join(" + ")
    ));
}

/// Counts blocks of `unsafe` in a source, those in macros and tests included.
fn unsafe_blocks(text: &str) -> usize {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    code.map(|line| line.matches("unsafe {").count()).sum()
}
