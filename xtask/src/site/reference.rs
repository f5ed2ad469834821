//! Pages that are generated: the interfaces of Python and C, and the help of every command.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::step::Step;
use crate::workspace::Workspace;

const PYTHON: &str = include_str!("python_api.py");
/// The headers, with the language of their listings.
const HEADERS: [(&str, &str); 4] = [
    ("crosshandle.h", "c"),
    ("crosshandle.hpp", "cpp"),
    ("crosshandle.cuh", "cpp"),
    ("crosshandle.clh", "c"),
];

/// A page: its file, its title and its text.
pub(super) type Page = (&'static str, &'static str, String);

/// Returns the generated pages.
pub(super) fn pages(workspace: &Workspace) -> Result<[Page; 3]> {
    Ok([
        ("api-python.md", "Python API", python(workspace)?),
        ("api-c.md", "C and C++ headers", headers(workspace)?),
        ("api-command.md", "Commands", commands(workspace)?),
    ])
}

fn python(workspace: &Workspace) -> Result<String> {
    let package = workspace
        .root
        .join("crates/crosshandle-python/python/crosshandle");
    let mut list = Command::new("python3");
    list.args(["-c", PYTHON]).arg(package);
    printed(&mut list)
}

fn headers(workspace: &Workspace) -> Result<String> {
    let directory = workspace.root.join("crates/crosshandle-c/include");
    let mut text =
        "# C and C++ headers\n\nThis page has the headers with their comments. [C and C++](c.md) \
                    shows how to use them.\n"
            .to_owned();
    for (name, language) in HEADERS {
        let header = fs::read_to_string(directory.join(name));
        let header = header.map_err(|error| format!("cannot read {name}: {error}"))?;
        let _ = write!(text, "\n## `{name}`\n\n```{language}\n{header}```\n");
    }
    Ok(text)
}

fn commands(workspace: &Workspace) -> Result<String> {
    let build = ["build", "--locked", "--package", "crosshandle-cli"];
    Step::new(workspace, "command", workspace.cargo(&build)).run()?;
    let program = workspace.target.join("debug/crosshandle");
    let mut text =
        "# Commands\n\nThis page has the help of each command, as `--help` prints it.\n".to_owned();
    describe(&program, &[], &mut text)?;
    Ok(text)
}

/// Appends the help of a command and of its subcommands.
fn describe(program: &Path, names: &[&str], text: &mut String) -> Result<()> {
    let help = printed(Command::new(program).args(names).arg("--help"))?;
    let title = [&["crosshandle"], names].concat().join(" ");
    let _ = write!(
        text,
        "\n## `{title}`\n\n```text\n{}\n```\n",
        help.trim_end()
    );
    for name in subcommands(&help) {
        describe(program, &[names, &[name]].concat(), text)?;
    }
    Ok(())
}

/// Returns the names in the list of subcommands.
fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let list = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, list)| list);
    let list = list.split("\n\n").next().unwrap_or_default();
    // The continuation of a description is indented further.
    let named = list.lines().filter_map(|line| line.strip_prefix("  "));
    let names = named.filter(|line| !line.starts_with(' '));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help")
}

/// Returns what a command prints.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.output();
    let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn subcommands_are_read_from_the_help() {
    let help = "About\n\nCommands:\n  one   Does\n        more\n  two   Does\n  help  Print\n\nOptions:\n  -h\n";
    assert_eq!(subcommands(help).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(subcommands("Options:\n  -h\n").count(), 0);
}
