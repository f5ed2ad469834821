//! Installs the library for C and C++ programs, with the headers, the pkg-config file and the CMake
//! package.
//!
//! `cargo cinstall` (cargo-c) installs the same files. This task also gives the symbols of the
//! shared library a version, which rustc cannot do: it links the library from the static one.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::step::{Step, say};
use crate::workspace::Workspace;

const CRATE: &str = "crates/crosshandle-c";
/// The version of every crate of this workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The libraries of the system that the static library needs.
const NEEDED: [&str; 7] = [
    "-lgcc_s",
    "-lutil",
    "-lrt",
    "-lpthread",
    "-lm",
    "-ldl",
    "-lc",
];
/// The version of all exported symbols.
const SYMBOL_VERSION: &str = "CROSSHANDLE_1";

/// Where to install.
pub(crate) struct Place {
    /// The directory in which programs will find the files.
    pub(crate) prefix: PathBuf,
    /// The directory in front of `prefix` into which the files are copied, for packages.
    pub(crate) destdir: Option<PathBuf>,
    pub(crate) build: Build,
}

/// How to build the library.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Build {
    /// Without optimisation.
    Debug,
    /// For programs on this machine.
    Bench,
    /// For packages: without names for debuggers.
    Packed,
}

/// Builds and installs the library.
pub(crate) fn run(workspace: &Workspace, place: &Place) -> Result<()> {
    let prefix = &place.prefix;
    if !prefix.is_absolute() {
        return Err(format!("{} is not an absolute path", prefix.display()));
    }
    let mut build = vec!["build", "--locked", "--package", "crosshandle-c"];
    // The profile `bench` shares the directory of `release`, which is optimised less.
    let (profile, directory) = match place.build {
        Build::Debug => ("dev", "debug"),
        Build::Bench => ("bench", "release"),
        Build::Packed => ("packed", "packed"),
    };
    build.extend(["--profile", profile]);
    Step::new(workspace, "build libcrosshandle", workspace.cargo(&build)).run()?;

    let inside = prefix.strip_prefix("/").unwrap_or(prefix);
    let root = match &place.destdir {
        Some(destdir) => destdir.join(inside),
        None => prefix.clone(),
    };
    let (libraries, source) = (root.join("lib"), workspace.root.join(CRATE));
    let archive = libraries.join("libcrosshandle.a");
    let built = workspace.target.join(directory).join("libcrosshandle_c.a");
    copy(&built, &archive)?;
    link(workspace, &source, place, &libraries)?;
    for name in [
        "crosshandle.h",
        "crosshandle.hpp",
        "crosshandle.cuh",
        "crosshandle.clh",
    ] {
        copy(
            &source.join("include").join(name),
            &root.join("include").join(name),
        )?;
    }
    for name in [
        "crosshandle-config.cmake",
        "crosshandle-config-version.cmake",
    ] {
        let to = root.join("share/cmake/crosshandle").join(name);
        copy(&source.join("cmake").join(name), &to)?;
    }
    let description = libraries.join("pkgconfig/crosshandle.pc");
    write(&description, &pkg_config(prefix))?;
    say(&format!("installed libcrosshandle in {}", root.display()));
    Ok(())
}

/// Returns the first two parts of the version. Libraries with the same parts are compatible.
fn series() -> String {
    let mut parts = VERSION.split('.');
    let (major, minor) = (parts.next(), parts.next());
    [major, minor].map(Option::unwrap_or_default).join(".")
}

/// Links the shared library, and makes the links by which linkers and loaders find it.
fn link(workspace: &Workspace, source: &Path, place: &Place, libraries: &Path) -> Result<()> {
    let name = format!("libcrosshandle.so.{VERSION}");
    let mut script = OsString::from("-Wl,--version-script=");
    script.push(source.join("crosshandle.map"));
    let mut command = Command::new(compiler());
    command.arg("-shared").arg("-o").arg(libraries.join(&name));
    command
        .arg("-Wl,--whole-archive")
        .arg(libraries.join("libcrosshandle.a"));
    command.args(["-Wl,--no-whole-archive", "-Wl,--gc-sections"]);
    command.arg(format!("-Wl,-soname,libcrosshandle.so.{}", series()));
    // The library's threads may still run when a program closes it, so the code stays loaded.
    command.args(["-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"]);
    if place.build == Build::Packed {
        command.arg("-Wl,--strip-all");
    }
    command.arg(script).args(NEEDED);
    Step::new(workspace, "link libcrosshandle.so", command).run()?;
    for link in [
        format!("libcrosshandle.so.{}", series()),
        "libcrosshandle.so".into(),
    ] {
        let link = libraries.join(link);
        let _ = fs::remove_file(&link);
        symlink(&name, &link).map_err(|error| cannot("link", &link, &error))?;
    }
    Ok(())
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: crosshandle\n\
         Description: Share device memory and events between processes through small handles\n\
         Version: {VERSION}\n\
         Libs: -L${{libdir}} -lcrosshandle\n\
         Libs.private: {}\n\
         Cflags: -I${{includedir}}\n",
        prefix.display(),
        NEEDED.join(" ")
    )
}

/// Installs the library below the target directory, and builds and runs the examples on it: with
/// the flags of pkg-config, and with CMake if the machine has them.
pub(crate) fn check(workspace: &Workspace, skipped: &mut Vec<String>) -> Result<()> {
    let prefix = workspace.target.join("c-install");
    let place = Place {
        prefix: prefix.clone(),
        destdir: None,
        build: Build::Debug,
    };
    run(workspace, &place)?;
    check_symbols(&prefix.join("lib/libcrosshandle.so"))?;

    let examples = workspace.root.join(CRATE).join("examples");
    let program = prefix.join("share_example");
    let mut compile = Command::new(compiler());
    compile
        .args(["-std=c11", "-D_GNU_SOURCE", "-o"])
        .arg(&program);
    compile.arg(examples.join("share.c"));
    compile.args(flags(&prefix, skipped)?);
    let limit = Duration::from_secs(5 * 60);
    Step::new(workspace, "C example", compile)
        .limit(limit)
        .run()?;
    example(workspace, &prefix, &program)?;

    if !answers("cmake") {
        skipped.push("the CMake package: this machine lacks cmake".to_owned());
        return Ok(());
    }
    let build = prefix.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&examples).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    Step::new(workspace, "CMake: configure", configure)
        .limit(limit)
        .run()?;
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&build);
    Step::new(workspace, "CMake: build", make)
        .limit(limit)
        .run()?;
    example(workspace, &prefix, &build.join("camera"))
}

/// Checks that every exported symbol has the version.
fn check_symbols(library: &Path) -> Result<()> {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--with-symbol-versions"]);
    let output = nm.arg(library).output();
    let output = output.map_err(|error| format!("cannot run nm: {error}"))?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut count = 0;
    for name in listed.lines().filter_map(|line| line.split(' ').nth(2)) {
        let has_version = name.ends_with(&format!("@@{SYMBOL_VERSION}"));
        if name != SYMBOL_VERSION && !(has_version && name.starts_with("crosshandle_")) {
            return Err(format!("{}: {name} has no version", library.display()));
        }
        count += 1;
    }
    match count > 100 {
        true => Ok(()),
        false => Err(format!("{}: only {count} symbols", library.display())),
    }
}

/// Returns the flags for a program, from pkg-config if the machine has it.
fn flags(prefix: &Path, skipped: &mut Vec<String>) -> Result<Vec<String>> {
    let libraries = prefix.join("lib");
    if !answers("pkg-config") {
        skipped.push("the pkg-config file: this machine lacks pkg-config".to_owned());
        let library = format!("-L{}", libraries.display());
        let include = format!("-I{}", prefix.join("include").display());
        return Ok(vec![include, library, "-lcrosshandle".to_owned()]);
    }
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "crosshandle"]);
    command.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let output = command.output();
    let output = output.map_err(|error| format!("cannot run pkg-config: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("pkg-config does not find crosshandle: {errors}"));
    }
    let flags = String::from_utf8_lossy(&output.stdout);
    Ok(flags.split_whitespace().map(str::to_owned).collect())
}

/// Runs an example on the installed library.
fn example(workspace: &Workspace, prefix: &Path, program: &Path) -> Result<()> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    let step = Step::new(workspace, format!("run {name}"), command);
    step.limit(Duration::from_secs(2 * 60)).run()
}

fn answers(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

fn compiler() -> OsString {
    let named = env::var_os("CC").filter(|name| !name.is_empty());
    named.unwrap_or_else(|| "cc".into())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    let copied = fs::copy(from, to).map(drop);
    copied.map_err(|error| cannot("copy", from, &error))
}

fn write(path: &Path, text: &str) -> Result<()> {
    create_parent(path)?;
    fs::write(path, text).map_err(|error| cannot("write", path, &error))
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|error| cannot("create", parent, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[test]
fn the_cmake_package_has_the_version_of_the_crate() {
    let text = include_str!("../../crates/crosshandle-c/cmake/crosshandle-config-version.cmake");
    assert!(text.contains(&format!("set(PACKAGE_VERSION \"{VERSION}\")")));
    assert_eq!(series(), "0.1");
}
