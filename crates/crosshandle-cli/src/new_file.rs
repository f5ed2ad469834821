//! Output files that replace an existing file only when they are complete.

use crate::failure::{ErrorContext as _, Failure, Result};
use rustix::fs::FileType;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is being written. It has a temporary name until [`finish`](Self::finish) is called,
/// and is removed if that never happens. A full disk therefore does not destroy the old file.
pub(crate) struct NewFile {
    file: File,
    /// The temporary name and the final name. `None` for a pipe or a device, which is written
    /// directly.
    names: Option<(PathBuf, PathBuf)>,
}

impl NewFile {
    /// Starts to write a file of `len` bytes. If `path` is a symbolic link, replaces the file that
    /// it refers to.
    pub(crate) fn create(path: &Path, len: u64) -> Result<Self> {
        let (path, mode) = match fs::metadata(path) {
            Ok(old) if FileType::from_raw_mode(mode_of(&old)) == FileType::RegularFile => {
                // Replacing the file must require the same right as writing to it, so open it for
                // writing.
                OpenOptions::new()
                    .write(true)
                    .open(path)
                    .context("the old file")?;
                let path = fs::canonicalize(path).context("following links")?;
                (path, mode_of(&old) & 0o7777)
            }
            Ok(_) => {
                let file = OpenOptions::new().write(true).open(path);
                return Ok(Self {
                    file: file.context("opening it")?,
                    names: None,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), 0o666),
            Err(error) => return Err(error).context("looking for an old file"),
        };
        check_limit(len)?;
        let name = path
            .file_name()
            .ok_or_else(|| Failure::error("the path has no file name"))?;
        let pid = std::process::id();
        let mut unfinished = std::ffi::OsString::from(".");
        unfinished.push(name);
        unfinished.push(format!(".{pid}.part"));
        let unfinished = path.with_file_name(unfinished);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&unfinished)
            .context(format_args!(
                "making {} (a new file is made in the directory of the file that it replaces)",
                unfinished.display()
            ))?;
        let new = Self {
            file,
            names: Some((unfinished, path)),
        };
        if mode != 0o666 {
            // The umask must not apply to the mode of an old file.
            let mode = rustix::fs::Mode::from_raw_mode(mode);
            rustix::fs::fchmod(&new.file, mode).context("setting its permissions")?;
        }
        Ok(new)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns `true` if this is a regular file, not a pipe or a device.
    pub(crate) fn is_regular(&self) -> bool {
        self.names.is_some()
    }

    /// Gives the file its final name. This replaces an existing file.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some((unfinished, path)) = &self.names {
            // Some file systems report only at this call that they are full.
            self.file.sync_all().context("saving it")?;
            fs::rename(unfinished, path).context("giving it its name")?;
            self.names = None;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((unfinished, _)) = &self.names {
            let _ = fs::remove_file(unfinished);
        }
    }
}

/// Returns an error if the length exceeds RLIMIT_FSIZE. Without this check, the kernel would send
/// SIGXFSZ.
fn check_limit(len: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit => Err(Failure::error(format!(
            "it would have {len} bytes, but the limit for files is {limit}; raise RLIMIT_FSIZE (ulimit -f)"
        ))),
        _ => Ok(()),
    }
}

fn mode_of(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata)
}
