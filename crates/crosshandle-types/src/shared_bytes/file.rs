//! Copies between shared bytes and files. The kernel copies directly, without a buffer in between.

use super::SharedBytes;
use crate::error::{Error, Result};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd as _};

impl SharedBytes<'_> {
    /// Fills the range with bytes from a file, starting at byte `position` of the file.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the memory was opened read-only; [`Error::InvalidArgument`] if the
    /// file is too short; [`Error::Os`] if the file cannot be read. Part of the range may be filled
    /// even if the call fails.
    pub fn read_file(&self, file: impl AsFd, position: u64) -> Result<()> {
        self.check_writable()?;
        let file = file.as_fd().as_raw_fd();
        transfer(self.len, position, "reading a file", |done, position| {
            // SAFETY: the rest of the range is mapped and writable, and no Rust reference to it
            // exists; the descriptor is open.
            unsafe {
                let rest = self.as_ptr().add(done).cast();
                libc::pread(file, rest, self.len - done, position)
            }
        })
    }

    /// Writes the bytes of the range to a file, starting at byte `position` of the file.
    ///
    /// # Errors
    /// [`Error::Os`] if the file cannot be written. Part of the file may be written even if the
    /// call fails.
    pub fn write_file(&self, file: impl AsFd, position: u64) -> Result<()> {
        let file = file.as_fd().as_raw_fd();
        transfer(self.len, position, "writing a file", |done, position| {
            // SAFETY: the rest of the range is mapped; the descriptor is open.
            unsafe {
                let rest = self.as_ptr().add(done).cast_const().cast();
                libc::pwrite(file, rest, self.len - done, position)
            }
        })
    }
}

/// Repeats a system call that may transfer fewer bytes than requested, until `len` bytes are
/// transferred. `call` gets the number of bytes transferred so far and the next position in the
/// file.
fn transfer(
    len: usize,
    position: u64,
    operation: &'static str,
    mut call: impl FnMut(usize, libc::off_t) -> isize,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let next = position.checked_add(done as u64);
        let next = next.and_then(|next| libc::off_t::try_from(next).ok());
        let next = next.ok_or_else(|| Error::invalid("no file is as long as that"))?;
        match call(done, next) {
            0 => {
                return Err(Error::invalid(format!(
                    "the file ends at byte {next}, {} bytes too early; it must not become shorter while \
                     it is copied",
                    len - done
                )));
            }
            transferred if transferred > 0 => done += transferred.unsigned_abs(),
            _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                errno => return Err(Error::os(operation)(errno.unwrap_or(Errno::IO))),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::ptr::NonNull;

    #[test]
    fn bytes_reach_a_file_and_come_back() {
        let mut bytes: Vec<u64> = (0..1000).collect();
        let wanted = bytes.clone();
        let len = bytes.len() * 8;
        let start = NonNull::from(bytes.as_mut_slice()).cast();
        // SAFETY: `bytes` outlives both values and is not used before the end. No other object
        // shares its words.
        let (shared, sealed) = unsafe {
            let shared = SharedBytes::new(start, len, true);
            (shared, SharedBytes::new(start, len, false))
        };
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        file.write_all(b"before").unwrap();
        sealed.write_file(&file, 6).unwrap();
        shared.write(0, &vec![0; len]).unwrap();
        assert!(matches!(sealed.read_file(&file, 6), Err(Error::ReadOnly)));
        shared.read_file(&file, 6).unwrap();
        let short = shared.read_file(&file, 7).unwrap_err();
        assert!(short.to_string().contains("1 bytes too early"), "{short}");
        shared.read_file(&file, 6).unwrap();
        assert!(bytes == wanted);
    }

    #[test]
    fn files_that_cannot_be_used_are_told() {
        let mut byte = 0_u64;
        // SAFETY: as above.
        let shared = unsafe { SharedBytes::new(NonNull::from(&mut byte).cast(), 8, true) };
        let (read, write) = rustix::pipe::pipe().unwrap();
        let code = |result: Result<()>| match result {
            Err(Error::Os { code, .. }) => Errno::from_raw_os_error(code),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(shared.read_file(&read, 0)), Errno::SPIPE);
        assert_eq!(code(shared.write_file(&write, 0)), Errno::SPIPE);
        assert!(shared.write_file(&write, u64::MAX - 3).is_err());
    }
}
