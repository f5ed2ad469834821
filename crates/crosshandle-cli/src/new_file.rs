//! Files that replace older ones only when they are complete.

use crate::failure::{ErrorContext as _, Failure, Result};
use rustix::fs::FileType;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is being written. Until [`finish`](Self::finish) it has another name, and it is removed if
/// that is not reached: a full disk does not cost an old file.
pub(crate) struct NewFile {
    file: File,
    /// Its name until it is complete, and its name from then on. `None` for what is no file, such as
    /// a pipe or a device, which is written as it is.
    names: Option<(PathBuf, PathBuf)>,
}

impl NewFile {
    /// Begins to write a file of `len` bytes. Through a symbolic link, the file behind it is replaced.
    pub(crate) fn create(path: &Path, len: u64) -> Result<Self> {
        let (path, mode) = match fs::metadata(path) {
            Ok(old) if FileType::from_raw_mode(mode_of(&old)) == FileType::RegularFile => {
                // As if it were written in place.
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
            .ok_or_else(|| Failure::error("this names no file"))?;
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
                "making {} (the file is made beside the one that it replaces)",
                unfinished.display()
            ))?;
        let new = Self {
            file,
            names: Some((unfinished, path)),
        };
        if mode != 0o666 {
            // The mask of new files does not apply to an old one.
            let mode = rustix::fs::Mode::from_raw_mode(mode);
            rustix::fs::fchmod(&new.file, mode).context("setting its permissions")?;
        }
        Ok(new)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether it is a file with positions, not a pipe or a device.
    pub(crate) fn is_regular(&self) -> bool {
        self.names.is_some()
    }

    /// Gives the file its name, in place of an old one.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some((unfinished, path)) = &self.names {
            // Some file systems only now say that they are full.
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

/// Refuses what RLIMIT_FSIZE forbids: the kernel would send SIGXFSZ, which ends the process.
fn check_limit(len: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit => Err(Failure::error(format!(
            "it would have {len} bytes, and files may have {limit}; raise RLIMIT_FSIZE (ulimit -f)"
        ))),
        _ => Ok(()),
    }
}

fn mode_of(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata)
}
