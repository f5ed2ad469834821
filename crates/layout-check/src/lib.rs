//! A comparison of Rust declarations with the C headers they come from: every size, alignment,
//! offset and value. For the tests of the crates that declare a C interface.
//!
//! The list of declarations is read from the sources of such a crate, so none can be forgotten. It
//! is written as a C program and as a Rust program that print the same facts. The first is compiled
//! with the headers, the second with the declarations, and their outputs must be equal. That every
//! name of the headers is declared is checked by name alone.

mod declarations;
mod headers;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use crate::declarations::{Declarations, Record};

/// The sources of a crate's declarations, and the headers that they must match.
pub struct Interface<'a> {
    /// Files with the declarations. Their names are the names of their modules.
    pub sources: &'a [PathBuf],
    /// Directory of the headers.
    pub include: &'a Path,
    /// Paths of the headers in that directory.
    pub headers: &'a [&'a str],
    /// Prefixes of the interface's names.
    pub prefixes: &'a [&'a str],
    /// Returns whether a name of the headers need not be declared, such as a decoration or a macro
    /// with arguments.
    pub not_abi: fn(&str) -> bool,
    /// Directory in which the two programs are written and built.
    pub scratch: &'a Path,
}

impl Interface<'_> {
    /// Compares all facts, and returns a line with the number of each kind.
    ///
    /// # Panics
    ///
    /// Panics with a list of all differences if a fact differs.
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

    /// Checks that every name of the headers is declared, and returns a line with their number.
    ///
    /// # Panics
    ///
    /// Panics with a list of all missing names if one is not declared.
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

/// Returns the directory of headers in the environment variable `variable`. If it is not set, prints
/// why `test` checks nothing. `cargo xtask test` sets the variable.
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
