//! Fetches packages of the Debian archive at fixed versions, and unpacks them into the target
//! directory. They are Level Zero's stock loaders and headers, and a program that creates
//! containers.
//!
//! Nothing is installed. The machine's own apt knows where the archive is and how to reach it.
//! Downloads are checked against the checksums below. Therefore any release of Debian works, even
//! on a machine without package lists.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::step::Step;
use crate::workspace::Workspace;

/// A package file in the archive.
pub(crate) struct Package {
    name: &'static str,
    version: &'static str,
    /// The directory of the source package in the archive's pool.
    pool: &'static str,
    sha256: &'static str,
}

/// The stock loader of Debian 12. It supports Level Zero 1.4, and is the oldest loader that a
/// driver must support. It runs with glibc 2.34 or newer.
pub(crate) const OLD_LOADER: Package = Package {
    name: "libze1",
    version: "1.8.12-1",
    pool: "l/level-zero",
    sha256: "403b3e3821a3e2dfdc8e6392300350943de2f66d1ada1dc551f8d5ac175ef944",
};

/// The stock loader of Debian 13, for Level Zero 1.12. It needs the C++ library of GCC 13.
pub(crate) const LOADER: Package = Package {
    name: "libze1",
    version: "1.20.6-1",
    pool: "l/level-zero",
    sha256: "a901ee6a081bfd1037b6e91fa46bb1f3e37dfd6503946032fb6866956106feb7",
};

/// The headers of Level Zero 1.17. The archive removes them when a newer version appears. The
/// generated declarations are committed, so only their generation needs the headers.
pub(crate) const HEADERS: Package = Package {
    name: "libze-dev",
    version: "1.32.0-1",
    pool: "l/level-zero",
    sha256: "46683fdb7a9c619941a5e665b424e8dca69d9870e4f49424a73ddc18653f1111",
};

/// A program that creates containers without privileges, if the kernel allows user namespaces. It
/// is Debian 12's package, which runs with glibc 2.34 or newer.
pub(crate) const BUBBLEWRAP: Package = Package {
    name: "bubblewrap",
    version: "0.8.0-2+deb12u1",
    pool: "b/bubblewrap",
    sha256: "3cc9134a3286ad01a323dcd924ba123eb634cefaeec82d774257e06308aeaadb",
};

/// A helper program of apt, which is not in `PATH`.
const HELPER: &str = "/usr/lib/apt/apt-helper";

impl Package {
    /// Returns the directory with the unpacked package, and fetches the package if necessary. If
    /// the machine lacks a needed program, the error names it.
    pub(crate) fn ensure(&self, workspace: &Workspace) -> Result<PathBuf> {
        if !cfg!(target_arch = "x86_64") {
            return Err(format!("{} is published for x86-64 alone", self.name));
        }
        let parent = workspace.target.join("debian");
        let directory = parent.join(format!("{}_{}", self.name, self.version));
        if self.complete(&directory) {
            return Ok(directory);
        }
        let cannot =
            |what: &str, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
        fs::create_dir_all(&parent).map_err(|error| cannot("create", &parent, error))?;
        // Closing the file unlocks it, even if this process is killed.
        let lock = File::create(directory.with_added_extension("lock"))
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| cannot("lock", &directory, error))?;
        if !self.complete(&directory) {
            if directory.exists() {
                fs::remove_dir_all(&directory)
                    .map_err(|error| cannot("remove", &directory, error))?;
            }
            let file = parent.join(self.file());
            self.download(workspace, &file)?;
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("--extract").arg(&file).arg(&directory);
            Step::new(workspace, format!("unpack {self}"), unpack)
                .limit(Duration::from_secs(60))
                .run()?;
            fs::write(directory.join("complete"), self.sha256)
                .map_err(|error| cannot("finish", &directory, error))?;
        }
        drop(lock);
        Ok(directory)
    }

    /// Fetches the file from the first of apt's mirrors that has it.
    fn download(&self, workspace: &Workspace, to: &Path) -> Result<()> {
        let mirrors = mirrors()?;
        let mut reason = String::new();
        for mirror in &mirrors {
            let url = format!("{mirror}/pool/main/{}/{}", self.pool, self.file());
            let mut download = Command::new(HELPER);
            download
                .args(["download-file", &url])
                .arg(to)
                .arg(format!("SHA256:{}", self.sha256));
            let step = Step::new(workspace, format!("download {self}"), download)
                .limit(Duration::from_secs(2 * 60));
            match step.run_optional()? {
                None => return Ok(()),
                Some(problem) => reason = problem,
            }
        }
        if mirrors.is_empty() {
            reason = "apt is not configured for a mirror of Debian".into();
        }
        Err(format!("cannot get {} ({reason})", self.file()))
    }

    fn file(&self) -> String {
        format!("{}_{}_amd64.deb", self.name, self.version)
    }

    fn complete(&self, directory: &Path) -> bool {
        fs::read_to_string(directory.join("complete")).is_ok_and(|text| text == self.sha256)
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Checks that this machine's libraries are new enough for a library or program.
///
/// # Errors
/// Returns the missing libraries or versions.
pub(crate) fn loads(library: &Path) -> Result<()> {
    let output = Command::new("ldd")
        .arg(library)
        .output()
        .map_err(|error| format!("cannot run ldd: {error}"))?;
    // `ldd` reports missing versions as errors, and missing libraries as lines of its list.
    let text = [output.stderr, output.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    match text.lines().find(|line| line.contains("not found")) {
        Some(line) => Err(format!("this machine lacks {}", line.trim())),
        None => Ok(()),
    }
}

/// Returns the directory of headers in an unpacked package.
pub(crate) fn include(package: &Path) -> PathBuf {
    package.join("usr/include")
}

/// Returns the directory of the newest Level Zero loader that this machine can load.
pub(crate) fn loader(workspace: &Workspace) -> Result<PathBuf> {
    let directory = |package: &Package| {
        let directory = library_dir(&package.ensure(workspace)?);
        loads(&directory.join("libze_loader.so.1")).map(|()| directory)
    };
    directory(&LOADER).or_else(|_| directory(&OLD_LOADER))
}

/// Returns the directory of libraries in an unpacked package.
pub(crate) fn library_dir(package: &Path) -> PathBuf {
    package.join("usr/lib/x86_64-linux-gnu")
}

/// Returns the Debian archives that apt uses.
fn mirrors() -> Result<Vec<String>> {
    // This command only prints what it would do, so it needs neither privileges nor package lists.
    let output = Command::new("apt-get")
        .args(["update", "--print-uris"])
        .output()
        .map_err(|error| format!("this machine lacks apt: cannot run apt-get: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.trim().lines().last().unwrap_or("no message");
        return Err(format!("apt-get does not name its mirrors: {last}"));
    }
    let mut mirrors = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(mirror) = mirror(line)
            && !mirrors.iter().any(|known| known == mirror)
        {
            mirrors.push(mirror.to_owned());
        }
    }
    Ok(mirrors)
}

/// Returns the archive in a line such as `'http://mirror/debian/dists/bookworm/InRelease' name 0`.
fn mirror(line: &str) -> Option<&str> {
    let (mirror, _) = line.strip_prefix('\'')?.split_once("/dists/")?;
    mirror.ends_with("/debian").then_some(mirror)
}

#[cfg(test)]
mod tests {
    use super::mirror;

    #[test]
    fn mirrors_are_read_as_apt_prints_them() {
        let line = "'http://mirror.test/debian/dists/bookworm/InRelease' mirror.test_debian 0 ";
        assert_eq!(mirror(line), Some("http://mirror.test/debian"));
        let other = "'http://mirror.test/debian-security/dists/bookworm/InRelease' name 0 ";
        assert_eq!(mirror(other), None);
        assert_eq!(mirror("'file:/var/lib/packages/Packages' name 0"), None);
    }
}
