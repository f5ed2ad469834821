//! Writes two programs, in C and in Rust, that print the same facts in the same order. Each line is
//! one fact, with a kind, a name, and one or two numbers or a text.

use std::fmt::Write;
use std::process::Command;

use crate::{Declarations, Interface};

/// Compiles and runs the C program, and returns the facts of the headers.
pub(crate) fn run_c(declarations: &Declarations, interface: &Interface<'_>) -> Vec<String> {
    let mut facts = String::new();
    for name in &declarations.types {
        writeln!(facts, "TYPE({name})").unwrap();
    }
    for record in &declarations.records {
        writeln!(facts, "RECORD({})", record.name).unwrap();
        for (field, _) in &record.fields {
            writeln!(facts, "FIELD({}, {})", record.name, c_name(field)).unwrap();
        }
    }
    for (_, name) in &declarations.enumerators {
        writeln!(facts, "ENUMERATOR({name})").unwrap();
    }
    for name in &declarations.numbers {
        writeln!(facts, "NUMBER({name})").unwrap();
    }
    for name in &declarations.texts {
        writeln!(facts, "TEXT({name})").unwrap();
    }
    let mut includes = String::new();
    for header in interface.headers {
        writeln!(includes, "#include \"{header}\"").unwrap();
    }
    let source = include_str!("probe.c")
        .replace("HEADERS\n", &includes)
        .replace("FACTS\n", &facts);
    let scratch = interface.scratch;
    let path = scratch.join("probe.c");
    std::fs::write(&path, source).unwrap();

    let program = scratch.join("probe-c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    // The headers use `bool` without including its header.
    command.args(["-std=c11", "-include", "stdbool.h", "-I"]);
    command
        .arg(interface.include)
        .arg(&path)
        .arg("-o")
        .arg(&program);
    succeed(&mut command);
    lines(&mut Command::new(program))
}

/// Compiles and runs the Rust program, and returns the facts of the declarations.
pub(crate) fn run_rust(declarations: &Declarations, interface: &Interface<'_>) -> Vec<String> {
    let mut facts = String::new();
    for name in &declarations.types {
        writeln!(facts, "layout!(\"type\", {name}),").unwrap();
    }
    for record in &declarations.records {
        writeln!(facts, "layout!(\"record\", {}),", record.name).unwrap();
        for (field, _) in &record.fields {
            let (owner, name) = (&record.name, c_name(field));
            writeln!(facts, "field!({owner}, {field}, \"{name}\"),").unwrap();
        }
    }
    for (owner, name) in &declarations.enumerators {
        writeln!(
            facts,
            "number!(\"enumerator\", \"{name}\", {owner}::{name}.0),"
        )
        .unwrap();
    }
    for name in &declarations.numbers {
        writeln!(facts, "number!(\"number\", \"{name}\", {name}),").unwrap();
    }
    for name in &declarations.texts {
        writeln!(facts, "text!({name}),").unwrap();
    }
    // The program includes only these files, without the other modules of the crate.
    let mut modules = String::new();
    for path in interface.sources {
        let name = path.file_stem().unwrap().to_str().unwrap();
        writeln!(modules, "#[path = {path:?}]\nmod {name};").unwrap();
        writeln!(modules, "pub use {name}::*;").unwrap();
    }
    let source = include_str!("probe.rs.in")
        .replace("MODULES\n", &modules)
        .replace("FACTS\n", &facts);
    let path = interface.scratch.join("probe.rs");
    std::fs::write(&path, source).unwrap();

    let program = interface.scratch.join("probe-rust");
    succeed(rustc().arg(&path).arg("-o").arg(&program));
    lines(&mut Command::new(program))
}

/// Returns a command that runs the compiler directly, because Cargo cannot build a file that a test
/// has just written.
fn rustc() -> Command {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(program);
    command.args(["--edition=2024", "--cap-lints=allow"]);
    command
}

/// Returns the C name of a field. bindgen appends a `_` to Rust's keywords.
fn c_name(field: &str) -> &str {
    match field.strip_suffix('_') {
        Some(word) if syn::parse_str::<syn::Ident>(word).is_err() => word,
        _ => field,
    }
}

fn succeed(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {:?}: {error}", command.get_program()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
}

fn lines(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}
