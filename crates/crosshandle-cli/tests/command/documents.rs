//! Runs the blocks of the documents that are for a shell, and checks that each block of code is
//! run, or says why not.
//!
//! A comment before a block says how it runs:
//!
//! - `<!-- run: shell -->`: this program runs it with bash, with the command in `PATH`. The
//!   directory has some [files](FILES). In a `console` block, the commands are the lines that
//!   begin with `$`. A command with `&` at its end that prints a line when it is ready has printed
//!   it before the next one starts. `HANDLE` is the latest handle that such a command has printed.
//! - `<!-- from: PATH -->`: each line of the block is in this file, which other tests build and
//!   run.
//! - `<!-- checked: PATH -->`: it is a declaration, which the test in this file checks.
//! - `<!-- run: c -->`, `<!-- run: c++ -->`: the tests of `crosshandle-c` run it.
//! - `<!-- run: rust -->`: it is a documentation test of `crosshandle`.
//! - `<!-- not run: REASON -->`: it does not run.
//!
//! The tests of the Python package run the blocks in Python.

use crate::common::{Running, Sandbox};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Languages of blocks that are not for a shell, a compiler or an interpreter.
const NO_CODE: [&str; 6] = ["text", "mermaid", "json", "yaml", "ini", "python"];
/// The file that includes the pages whose blocks in Rust are documentation tests.
const RUST: &str = "crates/crosshandle/src/documents.rs";

/// Commands that print a line when they are ready, and then run on.
const SERVERS: [&str; 5] = [
    "share ",
    "event new ",
    "hold ",
    "link listen ",
    "link share ",
];
/// Models, and bytes, that the readers of the pages have.
const FILES: [&str; 5] = [
    "model.safetensors",
    "new.safetensors",
    "big.safetensors",
    "checkpoint/model.safetensors",
    "weights.bin",
];

struct Block {
    /// The page and the line, for messages.
    place: String,
    line: usize,
    page: String,
    language: String,
    /// The comment before the block, without its marks.
    comment: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn blocks() -> Vec<Block> {
    let pages = fs::read_dir(root().join("docs")).expect("the pages");
    let pages = pages.map(|entry| entry.expect("an entry").file_name());
    let pages = pages.map(|name| format!("docs/{}", name.to_string_lossy()));
    let mut pages: Vec<_> = pages.filter(|path| path.ends_with(".md")).collect();
    pages.extend(["README.md".into(), "CONTRIBUTING.md".into()]);
    pages.sort();
    pages
        .iter()
        .flat_map(|page| blocks_of(page, &read(page)))
        .collect()
}

fn blocks_of(page: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut comment, mut is_inside) = (String::new(), false);
    for (line, number) in text.lines().zip(1..) {
        match line.strip_prefix("```") {
            Some(language) if !is_inside => {
                is_inside = true;
                blocks.push(Block {
                    place: format!("{page}:{number}"),
                    line: number,
                    page: page.to_owned(),
                    language: language.to_owned(),
                    comment: std::mem::take(&mut comment),
                    text: String::new(),
                });
            }
            Some(_) => is_inside = false,
            None if is_inside => {
                let block = blocks.last_mut().expect("it has begun");
                block.text += line;
                block.text.push('\n');
            }
            // A comment may span lines.
            None if line.starts_with("<!--")
                || !comment.is_empty() && !comment.ends_with("-->") =>
            {
                comment = format!("{comment} {line}").trim().to_owned();
            }
            None => comment.clear(),
        }
    }
    assert!(!is_inside, "{page}: a block does not end");
    for block in &mut blocks {
        let inner = block.comment.strip_prefix("<!--").unwrap_or_default();
        let inner = inner.strip_suffix("-->").unwrap_or_default();
        block.comment = inner.trim().to_owned();
    }
    blocks
}

/// Returns the script of a block. The commands of a `console` block begin with `$`, and continue
/// after a backslash.
fn script(block: &Block) -> String {
    if block.language == "sh" {
        return block.text.clone();
    }
    let (mut script, mut continues) = (String::new(), false);
    for (line, number) in block.text.lines().zip(block.line + 1..) {
        let command = line.strip_prefix("$ ").or(continues.then_some(line));
        if let Some(command) = command {
            script += &awaited(command, number);
            script.push('\n');
        }
        continues = command.is_some_and(|command| command.ends_with('\\'));
    }
    script
}

/// Returns a command that has printed its first line before the next command starts, if it is one
/// of the [servers](SERVERS) in the background. `line` is its number in the page.
fn awaited(command: &str, line: usize) -> String {
    let latest = " \"$(cat job-* | grep -o 'xh[a-z]3[^ ]*' | tail -n 1)\"";
    let command = command.replace(" HANDLE", latest);
    let code = command.split("  #").next().unwrap_or_default().trim_end();
    let server = code.strip_suffix('&').filter(|code| {
        let server = code.strip_prefix("crosshandle ").unwrap_or_default();
        !code.contains('>') && SERVERS.iter().any(|start| server.starts_with(start))
    });
    match server {
        // The jobs are in the order of the page.
        Some(server) => format!(
            "{server} > job-{line:06} 2>&1 &\nuntil [ -s job-{line:06} ]; do sleep 0.05; done"
        ),
        None => command,
    }
}

/// Returns a line without the whitespace and without a comment at its end.
fn squeezed(line: &str) -> String {
    let code = [" // ", "  // ", " # "].iter().fold(line, |code, mark| {
        code.split_once(mark).map_or(code, |(code, _)| code)
    });
    code.chars()
        .filter(|letter| !letter.is_whitespace())
        .collect()
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let mut faults = Vec::new();
    let included = read(RUST);
    let mut ran = 0;
    for block in blocks() {
        let language = block.language.split(',').next().unwrap_or_default();
        if NO_CODE.contains(&language) {
            continue;
        }
        let (how, what) = block.comment.split_once(": ").unwrap_or_default();
        let fault = match (how, what) {
            ("not run", reason) if reason.split_whitespace().count() > 2 => continue,
            ("run", "shell") if matches!(language, "sh" | "console") => None,
            ("run", "c" | "c++") if matches!(language, "c" | "cpp") => None,
            ("run", "rust") if block.language == "rust" => {
                let name = format!("../../../{}\"", block.page);
                (!included.contains(&name)).then(|| format!("{RUST} does not include the page"))
            }
            ("checked", path) => (!read(path).contains(&block.page))
                .then(|| format!("{path} does not read the page")),
            ("from", path) => {
                let source: String = read(path).lines().map(squeezed).collect();
                let missing = block.text.lines().find(|line| {
                    let line = squeezed(line);
                    !line.starts_with("//") && !line.starts_with("/*") && !source.contains(&line)
                });
                missing.map(|line| format!("{path} lacks the line {line:?}"))
            }
            _ => Some(format!(
                "write how the block runs: <!-- run: shell -->, or why not ({:?})",
                block.comment
            )),
        };
        match fault {
            None => ran += 1,
            Some(fault) => faults.push(format!("{}: {fault}", block.place)),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(ran > 20, "only {ran} blocks run");
}

/// All blocks of a page run in one directory, in their order.
#[test]
fn every_block_for_a_shell_runs() {
    let blocks = blocks();
    let of_shell = |block: &&Block| block.comment == "run: shell";
    let mut pages: Vec<_> = blocks
        .iter()
        .filter(of_shell)
        .map(|block| &block.page)
        .collect();
    pages.dedup();
    for page in pages {
        let own = blocks
            .iter()
            .filter(of_shell)
            .filter(|block| block.page == *page);
        let script: String = own.map(script).collect();
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path("checkpoint")).expect("a directory");
        for file in FILES {
            fs::write(sandbox.path(file), crate::holder::small_model()).expect("written");
        }
        let program = Path::new(env!("CARGO_BIN_EXE_crosshandle"));
        let programs = program.parent().expect("a directory").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("setsid");
        // Background jobs end with the script, whatever its result is.
        let all = format!(
            "set -euo pipefail\ntrap 'crosshandle hold --stop > /dev/null 2>&1 || true
                kill $(jobs -p) 2> /dev/null || true; wait' EXIT\n{script}"
        );
        command
            .args(["--wait", "bash", "-c", &all])
            .env("PATH", format!("{programs}:{path}"))
            .env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets())
            .env("HOME", sandbox.path(""))
            .current_dir(sandbox.path(""));
        let done = Running::start(command).finish();
        assert!(
            done.status.success(),
            "{page}: {:?}\n{script}\n{}\n{}",
            done.status,
            done.text(),
            done.stderr
        );
    }
}

#[test]
fn blocks_are_read_as_pages_have_them() {
    let text = "<!-- run: shell -->\n```console\n$ a \\\n  b\nout\n$ c\n```\n\
                <!-- not run: two\nlines -->\n```sh\nd\n```\ntext\n```c\n```\n";
    let blocks = blocks_of("p.md", text);
    let comments = blocks.iter().map(|block| block.comment.as_str());
    assert!(comments.eq(["run: shell", "not run: two lines", ""]));
    assert_eq!(script(&blocks[0]), "a \\\n  b\nc\n");
    assert_eq!(script(&blocks[1]), "d\n");
    assert_eq!(blocks[1].place, "p.md:10");
    assert_eq!(
        awaited("crosshandle event new > f &", 7),
        "crosshandle event new > f &"
    );
    let server = awaited("crosshandle share f &   # holds it", 7);
    assert!(
        server.starts_with("crosshandle share f  > job-000007 2>&1 &\nuntil "),
        "{server}"
    );
    assert!(awaited("crosshandle read HANDLE", 8).contains("cat job-*"));
    assert_eq!(squeezed("  int a = b;   // a comment"), "inta=b;");
}
