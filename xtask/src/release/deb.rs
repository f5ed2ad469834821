//! The Debian package: the command, its manual and completions, the units of the holder, the
//! adapters, and the library for C.
//!
//! Its files come from six crates, so `dpkg-deb` packs a directory of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PROFILE, VERSION};
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{Result, c_install, wheel};

const ADAPTERS: [&str; 3] = [
    "libur_adapter_crosshandle_cuda.so",
    "libur_adapter_crosshandle_host.so",
    "libur_adapter_crosshandle_level_zero.so",
];
const LIBRARY: &str = "usr/lib/libcrosshandle.so";
const COMMAND: &str = "usr/bin/crosshandle";
/// The shells for which the package has completions, with the places where they look.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/crosshandle"),
    (
        "fish",
        "usr/share/fish/vendor_completions.d/crosshandle.fish",
    ),
    ("zsh", "usr/share/zsh/vendor-completions/_crosshandle"),
];

/// Builds the package in `dist`. `lists` are the lists of dependencies. The programs of the wheel
/// have been built already.
pub(super) fn build(copy: &Workspace, lists: &[PathBuf], dist: &Path) -> Result<()> {
    let stage = copy.target.join("deb");
    wheel::empty(&stage)?;
    let place = c_install::Place {
        prefix: "/usr".into(),
        destdir: Some(stage.clone()),
        build: c_install::Build::Packed,
    };
    c_install::run(copy, &place)?;
    let built = copy.target.join(PROFILE);
    wheel::copy(&built.join("crosshandle"), &stage.join(COMMAND))?;
    for adapter in ADAPTERS {
        let to = stage.join("usr/lib/crosshandle").join(adapter);
        wheel::copy(&built.join(adapter), &to)?;
    }
    texts(copy, &stage)?;
    units(copy, &stage)?;
    let documents = stage.join("usr/share/doc/crosshandle");
    wheel::copy(&copy.root.join("LICENSE"), &documents.join("copyright"))?;
    wheel::copy(
        &copy.root.join("CHANGELOG.md"),
        &documents.join("CHANGELOG.md"),
    )?;
    for list in lists {
        let name = list.file_name().unwrap_or_default();
        wheel::copy(list, &documents.join("sbom").join(name))?;
    }
    control(copy, &stage)?;

    // The mode of new files depends on the user's mask.
    let mut modes = Command::new("chmod");
    modes.args(["-R", "u=rwX,go=rX"]).arg(&stage);
    Step::new(copy, "modes of the package's files", modes).run()?;
    let mut pack = Command::new("dpkg-deb");
    copy.prepare(&mut pack);
    pack.args(["--root-owner-group", "--build"]).arg(&stage);
    let architecture = architecture()?;
    pack.arg(dist.join(format!("crosshandle_{VERSION}_{architecture}.deb")));
    Step::new(copy, "Debian package", pack).run()
}

/// Writes the manual pages and the completions, which the command generates.
fn texts(copy: &Workspace, stage: &Path) -> Result<()> {
    let manual = stage.join("usr/share/man/man1");
    let mut write = Command::new(stage.join(COMMAND));
    write.arg("man").arg(&manual);
    Step::new(copy, "manual", write).run()?;
    let pages = fs::read_dir(&manual).map_err(|error| format!("cannot read pages: {error}"))?;
    let mut compress = Command::new("gzip");
    // Without the name and the time, so that the bytes are the same each time.
    compress.args(["--no-name", "--best"]);
    compress.args(pages.flatten().map(|entry| entry.path()));
    Step::new(copy, "compress the manual", compress).run()?;
    for (shell, place) in COMPLETIONS {
        let output = Command::new(stage.join(COMMAND))
            .args(["completions", shell])
            .output()
            .map_err(|error| format!("cannot run the command: {error}"))?;
        if !output.status.success() {
            return Err(format!("the command has no completions for {shell}"));
        }
        let to = stage.join(place);
        let directory = to.parent().unwrap_or(stage);
        fs::create_dir_all(directory)
            .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        wheel::write(&to, &output.stdout)?;
    }
    Ok(())
}

/// Copies the units of a holder for one user, with the path of the installed command.
fn units(copy: &Workspace, stage: &Path) -> Result<()> {
    let directory = stage.join("usr/lib/systemd/user");
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let read = |name: &str| {
        fs::read_to_string(copy.root.join("examples/holder").join(name))
            .map_err(|error| format!("cannot read {name}: {error}"))
    };
    let service = read("crosshandle-holder.service")?;
    let installed = service.replace("%h/.cargo/bin/crosshandle", "/usr/bin/crosshandle");
    if installed == service {
        return Err("crosshandle-holder.service does not start %h/.cargo/bin/crosshandle".into());
    }
    wheel::write(
        &directory.join("crosshandle-holder.service"),
        installed.as_bytes(),
    )?;
    let socket = read("crosshandle-holder.socket")?;
    wheel::write(
        &directory.join("crosshandle-holder.socket"),
        socket.as_bytes(),
    )
}

/// Writes the description of the package.
fn control(copy: &Workspace, stage: &Path) -> Result<()> {
    let directory = stage.join("DEBIAN");
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let (needed, architecture) = (needed(copy, stage)?, architecture()?);
    let text = format!(
        "Package: crosshandle\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: The Crosshandle developers\n\
         Depends: {needed}\n\
         Section: libs\n\
         Priority: optional\n\
         Description: Share device memory and events between processes\n \
         The command crosshandle, the library libcrosshandle with its headers for C and C++,\n \
         adapters for Unified Runtime, and user units for the holder.\n"
    );
    wheel::write(&directory.join("control"), text.as_bytes())?;
    // After the installation, the loader's cache knows the new library.
    wheel::write(&directory.join("triggers"), b"activate-noawait ldconfig\n")
}

/// Returns the packages that the programs and libraries need, with their oldest versions.
fn needed(copy: &Workspace, stage: &Path) -> Result<String> {
    let work = copy.target.join("shlibdeps");
    wheel::empty(&work.join("debian"))?;
    wheel::write(
        &work.join("debian/control"),
        b"Source: crosshandle\n\nPackage: crosshandle\nArchitecture: any\n",
    )?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.current_dir(&work).arg("-O");
    command.arg(stage.join(COMMAND)).arg(stage.join(LIBRARY));
    command.args(ADAPTERS.map(|name| stage.join("usr/lib/crosshandle").join(name)));
    let output = command.output();
    let output = output.map_err(|error| format!("cannot run dpkg-shlibdeps: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.trim().strip_prefix("shlibs:Depends=");
    found.map(str::to_owned).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("dpkg-shlibdeps does not name the needed packages: {errors}")
    })
}

/// Returns Debian's name of this machine's architecture.
fn architecture() -> Result<String> {
    let output = Command::new("dpkg").arg("--print-architecture").output();
    let output = output.map_err(|error| format!("cannot run dpkg: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
