//! The Python environments:
//!
//! - the stock Unified Runtime (headers, loader, SYCL runtime, dpctl, an OpenCL runtime, and the
//!   libclang that bindgen needs), at the versions of `requirements.txt`
//! - the same with dpnp (`requirements-dpnp.txt`)
//! - the packages that build and test the wheel (`requirements-wheel.txt`)
//! - zig, which links wheels for other architectures (`requirements-cross.txt`)
//! - pyright, which checks the types (`requirements-pyright.txt`)
//! - inference engines and Ray (`requirements-engines.txt`, about 8 GB)
//! - the programs that benchmarks compare with (`requirements-peers.txt`, about 6 GB)
//!
//! Each environment is created once, in the target directory. Its name contains a hash of the
//! requirements and of the interpreter. The packages take about 1.5 GB without engines and peers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::step::{Step, say};
use crate::workspace::Workspace;

/// The packages to install, each with its version and hashes.
const REQUIREMENTS: &str = include_str!("../requirements.txt");

/// Returns the requirement of a package of the stock runtime, with its version and hashes.
pub(crate) fn requirement(package: &str) -> Result<String> {
    requirement_of(REQUIREMENTS, package)
}

/// Returns the requirement of a package, with its version and hashes.
pub(crate) fn requirement_of(requirements: &str, package: &str) -> Result<String> {
    let is_it = |block: &&str| {
        block
            .split_once("==")
            .is_some_and(|(name, _)| name == package)
    };
    let found = blocks(requirements).find(is_it);
    let found = found.ok_or_else(|| format!("{package} is not among the requirements"))?;
    // Comments may follow the requirement.
    let lines = found
        .split_inclusive('\n')
        .filter(|line| !line.starts_with('#'));
    Ok(lines.collect())
}

/// The oldest interpreter that every package supports.
const OLDEST: (u32, u32) = (3, 11);

/// Splits requirements into packages, each with its version and hashes.
pub(crate) fn blocks(requirements: &str) -> impl Iterator<Item = &str> {
    let mut rest = requirements;
    std::iter::from_fn(move || {
        let starts = |place: usize| rest[place..].starts_with(|c: char| c.is_ascii_lowercase());
        let mut ends = rest.match_indices('\n').map(|(place, _)| place + 1);
        let end = ends.find(|place| starts(*place)).unwrap_or(rest.len());
        let (block, after) = rest.split_at(end);
        rest = after;
        (!block.is_empty()).then_some(block)
    })
}

/// Prints the interpreter's version and installation. It fails if `venv` cannot work.
const PROBE: &str = "import ensurepip, sys, venv; \
    print(*sys.version_info[:2], sys.version, sys.base_prefix)";

/// The user's environment variables that would install packages outside the environment.
const FOREIGN: [&str; 6] = [
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_TARGET",
    "PIP_USER",
    "PYTHONHOME",
    "PYTHONPATH",
];

/// The packages that build the wheel and test it.
const WHEEL_REQUIREMENTS: &str = include_str!("../requirements-wheel.txt");

/// The packages that build wheels for other architectures.
const CROSS_REQUIREMENTS: &str = include_str!("../requirements-cross.txt");

/// The packages that check types by pyright.
const PYRIGHT_REQUIREMENTS: &str = include_str!("../requirements-pyright.txt");

/// The packages for dpnp's tests: those of [`REQUIREMENTS`], and more.
const DPNP_REQUIREMENTS: &str = concat!(
    include_str!("../requirements.txt"),
    include_str!("../requirements-dpnp.txt")
);

/// The packages for tests with real engines.
const ENGINE_REQUIREMENTS: &str = include_str!("../requirements-engines.txt");

/// The packages that benchmarks compare with.
pub(crate) const PEER_REQUIREMENTS: &str = include_str!("../requirements-peers.txt");

pub(crate) struct Environment {
    directory: PathBuf,
    requirements: &'static str,
}

impl Environment {
    /// Returns the environment. If it does not exist yet, creates it, which downloads about 930 MB.
    ///
    /// Files of an interrupted creation are removed first. If several processes call this at once,
    /// one of them creates the environment and the others wait.
    pub(crate) fn ensure(workspace: &Workspace) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err("the stock Unified Runtime is published for x86_64 alone".into());
        }
        Self::with(workspace, REQUIREMENTS)
    }

    /// Returns the environment that builds the wheel and tests it, as [`ensure`](Self::ensure)
    /// does.
    pub(crate) fn for_wheel(workspace: &Workspace) -> Result<Self> {
        Self::with(workspace, WHEEL_REQUIREMENTS)
    }

    /// Returns the environment that builds wheels for other architectures, as
    /// [`ensure`](Self::ensure) does. It needs 100 MB more.
    pub(crate) fn for_cross(workspace: &Workspace) -> Result<Self> {
        Self::with(workspace, CROSS_REQUIREMENTS)
    }

    /// Returns the environment that runs dpnp's tests, as [`ensure`](Self::ensure) does. It needs
    /// about 900 MB more.
    pub(crate) fn for_dpnp(workspace: &Workspace) -> Result<Self> {
        Self::with(workspace, DPNP_REQUIREMENTS)
    }

    /// Returns the environment that checks types by pyright, as [`ensure`](Self::ensure) does.
    pub(crate) fn for_pyright(workspace: &Workspace) -> Result<Self> {
        Self::with(workspace, PYRIGHT_REQUIREMENTS)
    }

    /// Returns the environment with inference engines, as [`ensure`](Self::ensure) does. It needs
    /// about 8 GB.
    pub(crate) fn for_engines(workspace: &Workspace) -> Result<Self> {
        Self::with(workspace, ENGINE_REQUIREMENTS)
    }

    /// Returns the environment with the programs that benchmarks compare with, as
    /// [`ensure`](Self::ensure) does. It needs about 6 GB. A package that cannot be installed is
    /// left out, and the benchmark then skips its rows.
    pub(crate) fn for_peers(workspace: &Workspace) -> Result<Self> {
        Self::with(workspace, PEER_REQUIREMENTS)
    }

    fn with(workspace: &Workspace, requirements: &'static str) -> Result<Self> {
        let interpreter = Interpreter::find()?;
        let mut hasher = DefaultHasher::new();
        (requirements, &interpreter.identity).hash(&mut hasher);
        let name = format!("python-{:016x}", hasher.finish());
        let directory = workspace.target.join(&name);
        let environment = Self {
            directory,
            requirements,
        };
        if environment.complete() {
            return Ok(environment);
        }

        let cannot =
            |what: &str, error| format!("cannot {what} {}: {error}", environment.display());
        fs::create_dir_all(&workspace.target).map_err(|error| cannot("create", error))?;
        // Closing the file unlocks it, even if this process is killed.
        let lock = File::create(workspace.target.join(format!("{name}.lock")))
            .map_err(|error| cannot("lock", error))?;
        if lock.try_lock().is_err() {
            say("wait   another process creates the python environment");
            lock.lock().map_err(|error| cannot("lock", error))?;
        }
        if environment.complete() {
            return Ok(environment);
        }
        if environment.directory.exists() {
            fs::remove_dir_all(&environment.directory).map_err(|error| cannot("remove", error))?;
        }
        environment.create(workspace, &interpreter)?;
        fs::write(environment.stamp(), requirements).map_err(|error| cannot("finish", error))?;
        Ok(environment)
    }

    /// Returns the path of the interpreter, which finds the packages without further settings.
    pub(crate) fn python(&self) -> PathBuf {
        self.directory.join("bin").join("python")
    }

    /// Returns the directory of the environment's programs.
    pub(crate) fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    /// Returns a command that runs the environment's pip without prompts.
    pub(crate) fn pip(&self) -> Command {
        let mut pip = command(&self.python());
        pip.args([
            "-m",
            "pip",
            "--no-input",
            "--disable-pip-version-check",
            "--quiet",
        ]);
        pip
    }

    /// Returns the directory that contains `unified-runtime/ur_api.h` and `sycl/sycl.hpp`.
    pub(crate) fn include(&self) -> PathBuf {
        self.directory.join("include")
    }

    /// Returns the directory that contains `libur_loader.so.0`, `libsycl.so.9` and the libraries
    /// that they load. A program finds them if `LD_LIBRARY_PATH` contains this directory.
    pub(crate) fn library_dir(&self) -> PathBuf {
        self.directory.join("lib")
    }

    /// Returns the path of the OpenCL runtime for the CPU.
    pub(crate) fn opencl(&self) -> PathBuf {
        self.library_dir().join("libintelocl.so")
    }

    /// Returns the directory of `libclang.so`.
    pub(crate) fn libclang_dir(&self) -> Result<PathBuf> {
        let lib = self.library_dir();
        let entries = fs::read_dir(&lib)
            .map_err(|error| format!("cannot read {}: {error}", lib.display()))?;
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
            .map(|entry| entry.path().join("site-packages/clang/native"))
            .find(|path| path.join("libclang.so").is_file())
            .ok_or_else(|| format!("there is no libclang.so in {}", self.display()))
    }

    /// Creates the environment with all packages, but without the stamp.
    fn create(&self, workspace: &Workspace, interpreter: &Interpreter) -> Result<()> {
        say(&format!(
            "wait   {} of Python packages are downloaded once, into {}",
            self.download(),
            self.display()
        ));
        let mut venv = command(&interpreter.program);
        venv.args(["-m", "venv"]).arg(&self.directory);
        Step::new(workspace, "python environment", venv)
            .limit(Duration::from_secs(5 * 60))
            .run()?;
        if self.requirements != PEER_REQUIREMENTS {
            return self
                .install(workspace, "python packages", self.requirements)?
                .run();
        }
        for block in blocks(self.requirements) {
            let name = block.split_once("==").map_or(block, |(name, _)| name);
            let step = self.install(workspace, name, block)?;
            if let Some(problem) = step.run_optional()? {
                say(&format!("{name} is left out: {problem}"));
            }
        }
        Ok(())
    }

    /// Returns the step that installs packages without their dependencies.
    fn install<'a>(
        &self,
        workspace: &'a Workspace,
        name: &str,
        requirements: &str,
    ) -> Result<Step<'a>> {
        let file = self.directory.join("requirements.txt");
        fs::write(&file, requirements)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let mut install = command(&self.python());
        install
            .args([
                "-m",
                "pip",
                "install",
                "--no-input",
                "--only-binary",
                ":all:",
            ])
            .args(["--disable-pip-version-check", "--require-hashes"])
            // The requirements name every package. The engines' own requirements contradict each
            // other.
            .arg("--no-deps")
            .arg("--requirement")
            .arg(file);
        Ok(Step::new(workspace, name, install))
    }

    /// Returns the path of the stamp. It is written last, so an environment with a stamp is
    /// complete.
    fn stamp(&self) -> PathBuf {
        self.directory.join("complete")
    }

    /// Returns the size of the packages' files.
    fn download(&self) -> &'static str {
        match self.requirements {
            REQUIREMENTS => "930 MB",
            WHEEL_REQUIREMENTS => "about 250 MB",
            DPNP_REQUIREMENTS => "1.8 GB",
            ENGINE_REQUIREMENTS => "8 GB",
            PEER_REQUIREMENTS => "6 GB",
            _ => "about 100 MB",
        }
    }

    fn complete(&self) -> bool {
        // The interpreter is a link to a file outside the environment, which may have been removed.
        self.python().exists()
            && fs::read_to_string(self.stamp()).is_ok_and(|text| text == self.requirements)
    }

    fn display(&self) -> std::path::Display<'_> {
        self.directory.display()
    }
}

struct Interpreter {
    program: PathBuf,
    /// The interpreter's version and path. An environment works only with this interpreter.
    identity: String,
}

impl Interpreter {
    /// Returns the interpreter that `PYTHON` names, or `python3` otherwise.
    fn find() -> Result<Self> {
        let named = std::env::var_os("PYTHON").filter(|name| !name.is_empty());
        let program = PathBuf::from(named.unwrap_or_else(|| OsString::from("python3")));
        let (major, minor) = OLDEST;
        let wanted = format!(
            "Python {major}.{minor} or newer with its venv module \
             (packages python3 and python3-venv; PYTHON may name another interpreter)"
        );
        let output = command(&program)
            .args(["-c", PROBE])
            .output()
            .map_err(|error| {
                let program = program.display();
                format!("this machine lacks {wanted}: cannot run {program}: {error}")
            })?;
        let identity = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.trim().lines().last().unwrap_or("no message");
            return Err(format!("this machine lacks {wanted}: {last}"));
        }
        match version(&identity) {
            Some(version) if version >= OLDEST => Ok(Self { program, identity }),
            _ => Err(format!("this machine lacks {wanted}: found {identity}")),
        }
    }
}

/// Returns the version at the start of the output of `PROBE`.
fn version(identity: &str) -> Option<(u32, u32)> {
    let mut words = identity.split(' ').map(|word| word.parse().ok());
    Some((words.next()??, words.next()??))
}

/// Returns a command that does not find the user's own packages.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in FOREIGN {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_as_the_probe_prints_it() {
        let identity = "3 12 3.12.4 (main, Jun  6 2024) [GCC 12.2.0] /usr";
        assert_eq!(version(identity), Some((3, 12)));
        assert_eq!(version("3"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn requirements_split_into_packages() {
        let text = "a==1 \\\n    --hash=sha256:0\nb==2 \\\n    --hash=sha256:1\n";
        let found: Vec<_> = blocks(text).collect();
        assert_eq!(found, [&text[..27], &text[27..]]);
        assert_eq!(
            blocks(PEER_REQUIREMENTS).collect::<String>(),
            PEER_REQUIREMENTS
        );
    }

    #[test]
    fn every_requirement_is_pinned() {
        for requirements in [
            CROSS_REQUIREMENTS,
            DPNP_REQUIREMENTS,
            ENGINE_REQUIREMENTS,
            PEER_REQUIREMENTS,
            PYRIGHT_REQUIREMENTS,
            WHEEL_REQUIREMENTS,
        ] {
            let joined = requirements.replace("\\\n", "");
            let packages = joined.lines().filter(|line| !line.starts_with('#'));
            let is_loose = |line: &&str| !line.contains("==") || !line.contains("--hash=sha256:");
            let loose: Vec<_> = packages.filter(is_loose).collect();
            assert!(loose.is_empty(), "without a version or a hash: {loose:?}");
        }
    }
}
