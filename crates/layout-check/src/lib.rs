//! Compares Rust declarations with the C headers that they come from: every size, alignment, offset
//! and value. The tests of crates that declare a C interface use it.
//!
//! The check reads the list of declarations from the sources of such a crate, so it covers all of
//! them. It writes a C program and a Rust program that print the same facts. It compiles the C
//! program with the headers and the Rust program with the declarations, and compares their outputs.
//! A second check compares names only: every name of the headers must be declared.

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
    /// Directory that contains the headers.
    pub include: &'a Path,
    /// Paths of the headers, relative to that directory.
    pub headers: &'a [&'a str],
    /// Prefixes of the names that belong to the interface.
    pub prefixes: &'a [&'a str],
    /// Returns whether a name of the headers needs no declaration, for example a decoration or a
    /// macro with arguments.
    pub not_abi: fn(&str) -> bool,
    /// Directory in which the two programs are written and compiled.
    pub scratch: &'a Path,
}

impl Interface<'_> {
    /// Compares all facts, and returns a line with the number of facts of each kind.
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
        // The six kinds are types, records, fields, enumerators, numbers and texts.
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

/// Returns the header directory that the environment variable `variable` names. If it is not set,
/// prints why `test` checks nothing. `cargo xtask test` sets the variable.
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
