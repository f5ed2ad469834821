//! Compares declarations with the real headers: every size, alignment, offset and value. For the
//! tests of the crates that declare a C interface.
//!
//! What to compare is read from the sources of such a crate, so nothing can be forgotten. It is
//! written down twice, as a C and as a Rust program that print the same facts; the first is
//! compiled against the headers, the second against the declarations. That all that the headers
//! name is declared is compared by name.

mod declarations;
mod headers;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use crate::declarations::{Declarations, Record};

/// Declarations, and what they have to match.
pub struct Interface<'a> {
    /// The files with the declarations; their names are the names of their modules.
    pub sources: &'a [PathBuf],
    /// Where headers are looked for.
    pub include: &'a Path,
    /// The headers, in there.
    pub headers: &'a [&'a str],
    /// What names of the interface begin with.
    pub prefixes: &'a [&'a str],
    /// Whether a name of the headers need not be declared: decorations, macros with arguments.
    pub not_abi: fn(&str) -> bool,
    /// A directory for the two programs.
    pub scratch: &'a Path,
}

impl Interface<'_> {
    /// Compares all facts, and says how many of each kind there are.
    ///
    /// # Panics
    ///
    /// Where a fact differs, naming all that do.
    pub fn check_layout(&self) -> String {
        let declarations = Declarations::read(self.sources);
        std::fs::create_dir_all(self.scratch).unwrap();
        let c = programs::run_c(&declarations, self);
        let rust = programs::run_rust(&declarations, self);

        let differences: Vec<_> = c
            .iter()
            .zip(&rust)
            .filter(|(theirs, ours)| theirs != ours)
            .map(|(theirs, ours)| format!("  header: {theirs}\n  crate:  {ours}"))
            .collect();
        assert!(
            differences.is_empty() && c.len() == rust.len(),
            "{} of {} facts differ, {} in the crate:\n{}",
            differences.len(),
            c.len(),
            rust.len(),
            differences.join("\n")
        );

        let mut counts = BTreeMap::<_, usize>::new();
        for fact in &rust {
            *counts.entry(fact.split(' ').next().unwrap()).or_default() += 1;
        }
        // Types, records, fields, enumerators, numbers, texts.
        assert!(counts.values().all(|&count| count > 0) && counts.len() == 6);
        let opaque = declarations.opaque.len();
        format!("compared: {counts:?}; {opaque} structures have no layout to compare")
    }

    /// Looks for everything that the headers name, and says how much that is.
    ///
    /// # Panics
    ///
    /// Where something is not declared, naming all of that.
    pub fn check_names(&self) -> String {
        let declarations = Declarations::read(self.sources);
        let names = headers::names(self);
        let missing: Vec<_> = names
            .iter()
            .filter(|name| !declarations.has(name))
            .collect();
        assert!(missing.is_empty(), "not in the crate: {missing:?}");
        format!("declared: {} names of the headers", names.len())
    }
}

/// The directory with headers that `variable` names, or a line that says why `test` checks
/// nothing. `cargo xtask test` sets the variable.
pub fn include_dir(variable: &str, header: &str, test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os(variable).filter(|value| !value.is_empty());
    if directory.is_none() {
        eprintln!(
            "SKIPPED {test}: there are no headers to compare with. Set {variable} to the directory \
             that holds {header}, or run `cargo xtask test`, which does so"
        );
    }
    directory.map(PathBuf::from)
}
