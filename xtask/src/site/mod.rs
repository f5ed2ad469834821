//! The site: the pages of `docs/` as a book with a search, the interfaces of Rust, Python and C,
//! the help of the commands, and `llms.txt`.

mod check;
mod reference;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use crate::step::{Step, say};
use crate::workspace::Workspace;
use crate::{Result, style, tools};

/// The pages that are outside of `docs/`, with their names in the book.
const OUTSIDE: [(&str, &str); 5] = [
    ("README.md", "introduction.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("CHANGELOG.md", "changelog.md"),
    ("SECURITY.md", "security-policy.md"),
    ("CODE_OF_CONDUCT.md", "code-of-conduct.md"),
];
/// Crates whose documentation is part of the site.
const CRATES: [&str; 3] = ["crosshandle", "crosshandle-link", "crosshandle-store"];

/// Builds the site in `target/site`, and checks it in a browser if `checked` is set.
pub(crate) fn build(workspace: &Workspace, checked: bool) -> Result<()> {
    let cannot = |what: &str, error: io::Error| format!("cannot {what}: {error}");
    let files = style::read(workspace)?;
    let mut pages = pages(files);
    if let Some(first) = pages.get_mut("introduction.md") {
        first.push_str("\n[The Rust API](rust/crosshandle/index.html)\n");
    }
    let generated = reference::pages(workspace)?;
    let list: String = generated
        .iter()
        .map(|(file, title, _)| format!("- [{title}]({file})\n"))
        .collect();
    if let Some(summary) = pages.get_mut("SUMMARY.md") {
        *summary = summary.replace("# Reference\n\n", &format!("# Reference\n\n{list}"));
    }
    pages.extend(generated.map(|(file, _, text)| (file.to_owned(), text)));
    let book = workspace.target.join("xtask/book");
    let source = book.join("src");
    let site = workspace.target.join("site");
    for directory in [&book, &site] {
        if directory.exists() {
            fs::remove_dir_all(directory).map_err(|error| cannot("remove the old site", error))?;
        }
    }
    for (name, text) in &pages {
        let path = source.join(name);
        let parent = path.parent().unwrap_or(&source);
        fs::create_dir_all(parent).map_err(|error| cannot("create a directory", error))?;
        fs::write(&path, text).map_err(|error| cannot("write a page", error))?;
    }
    for name in ["book.toml", "site.css"] {
        let settings = workspace.root.join("docs").join(name);
        fs::copy(settings, book.join(name)).map_err(|error| cannot("copy the settings", error))?;
    }

    // The tool adds its script to the settings, and mdBook then runs it by its name.
    let mermaid = tools::MERMAID.get(workspace)?;
    let mut command = std::process::Command::new(&mermaid);
    command.arg("install").arg(&book);
    Step::new(workspace, "script for diagrams", command).run()?;
    let mut command = std::process::Command::new(tools::MDBOOK.get(workspace)?);
    command.arg("build").arg(&book).arg("--dest-dir").arg(&site);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = mermaid.parent().map(Path::to_owned);
    let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)));
    command.env("PATH", path.map_err(|error| error.to_string())?);
    Step::new(workspace, "book", command).run()?;
    let mut args = vec!["doc", "--locked", "--no-deps"];
    args.extend(CRATES.iter().flat_map(|package| ["--package", *package]));
    Step::new(workspace, "documentation of Rust", workspace.cargo(&args)).run()?;
    copy_tree(&workspace.target.join("doc"), &site.join("rust"))
        .map_err(|error| cannot("copy the documentation", error))?;
    fs::write(site.join("llms.txt"), llms(&pages)).map_err(|error| cannot("write", error))?;
    if checked {
        check::run(&site, &workspace.target.join("xtask/screenshots"))?;
    }
    say(&format!("open {}", site.join("index.html").display()));
    Ok(())
}

/// Returns the files of the book by name: pages with links that lead to pages of the book, and
/// pictures.
///
/// Links to other files of the repository become their text, because the book lacks these files.
fn pages(files: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let name = |path: &str| {
        let outside = OUTSIDE.iter().find(|(outside, _)| *outside == path);
        match outside {
            Some((_, name)) => Some((*name).to_owned()),
            None => path.strip_prefix("docs/").map(str::to_owned),
        }
    };
    let book = files.iter().filter_map(|(path, text)| {
        let own = name(path).filter(|own| [".md", ".svg"].iter().any(|end| own.ends_with(end)))?;
        let text = match path.ends_with(".md") {
            true => relinked(path, text, &|path| name(path)),
            false => text.clone(),
        };
        Some((own, text))
    });
    book.collect()
}

/// Replaces the targets of a page's links, outside of listings.
fn relinked(from: &str, text: &str, name: &dyn Fn(&str) -> Option<String>) -> String {
    let (mut result, mut is_listing) = (String::new(), false);
    for line in text.lines() {
        is_listing ^= line.trim_start().starts_with("```");
        match is_listing {
            true => result.push_str(line),
            // Pictures in HTML, which `cargo xtask figures` writes.
            false if line.contains("=\"docs/") => result.push_str(&line.replace("=\"docs/", "=\"")),
            false => result.push_str(&relinked_line(from, line, name)),
        }
        result.push('\n');
    }
    result
}

fn relinked_line(from: &str, line: &str, name: &dyn Fn(&str) -> Option<String>) -> String {
    let (mut result, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else {
            break;
        };
        rest = after;
        let (page, heading) = match target.split_once('#') {
            Some((page, heading)) => (page, format!("#{heading}")),
            None => (target, String::new()),
        };
        if page.is_empty() || page.contains("://") {
            let _ = write!(result, "{before}]({target})");
        } else if let Some(page) = name(&style::joined(from, page)) {
            let _ = write!(result, "{before}]({page}{heading})");
        } else {
            // The start of the link's text may be on the line before. Then the bracket stays.
            match before.rsplit_once('[') {
                Some((before, text)) => result.extend([before, text]),
                None => result.extend([before, "]"]),
            }
        }
    }
    result + rest
}

/// Returns a list of the pages for language models: title, address and first paragraph of each.
fn llms(pages: &BTreeMap<String, String>) -> String {
    let summary = pages.get("SUMMARY.md").map_or("", String::as_str);
    let mut text = "# Crosshandle\n\n> Share GPU and host memory, and signals, between processes \
                    without a copy.\n\n## Pages\n\n"
        .to_owned();
    for line in summary.lines() {
        let link = line
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once("]("));
        let Some((title, page)) = link else { continue };
        let page = page.trim_end_matches(')');
        let paragraphs = pages.get(page).map_or("", String::as_str).split("\n\n");
        let plain = |text: &&str| !text.starts_with(['#', '!', '<', '`', '|']);
        let first = paragraphs.map(str::trim).find(plain).unwrap_or_default();
        let first = first.replace("**", "").replace('\n', " ");
        let address = page.replace(".md", ".html");
        let _ = writeln!(text, "- [{title}]({address}): {first}");
    }
    text
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => copy_tree(&entry.path(), &to.join(entry.file_name()))?,
            false => drop(fs::copy(entry.path(), to.join(entry.file_name()))?),
        }
    }
    Ok(())
}

#[test]
fn links_lead_to_pages_of_the_book() {
    let files = [
        (
            "README.md",
            "[a](docs/a.md#b) [code](crates/x.rs) [w](https://a.b/c)\n```\n[a](docs/a.md)\n```\nsrc=\"docs/p.svg\"",
        ),
        (
            "docs/a.md",
            "[up](../README.md), [here](#b), [split\ncode](../crates/y.rs)",
        ),
        ("docs/plots/p.svg", "<svg/>"),
        ("crates/x.rs", ""),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let book = pages(files.into());
    let introduction =
        "[a](a.md#b) code [w](https://a.b/c)\n```\n[a](docs/a.md)\n```\nsrc=\"p.svg\"\n";
    assert_eq!(book["introduction.md"], introduction);
    assert_eq!(
        book["a.md"],
        "[up](introduction.md), [here](#b), [split\ncode]\n"
    );
    assert!(book.contains_key("plots/p.svg") && book.len() == 3);
}

/// Every page is in the list, so that the book has it.
#[test]
fn every_page_is_in_the_summary() {
    let workspace = Workspace::find().unwrap();
    let files = style::read(&workspace).unwrap();
    let pages = pages(files);
    let summary = &pages["SUMMARY.md"];
    let missing = pages
        .keys()
        .filter(|name| name.ends_with(".md") && *name != "SUMMARY.md");
    let missing: Vec<_> = missing
        .filter(|name| !summary.contains(&format!("({name})")))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
}
