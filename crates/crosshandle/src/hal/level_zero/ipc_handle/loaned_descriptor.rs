//! Descriptors that the driver is given by number.
//!
//! The specification does not say whether the driver closes them. Intel's driver closes a descriptor
//! of host memory at once (since 26.09), one of physical memory when that is destroyed, and one of
//! device memory never. So the driver is given a number of its own, and this library closes it in
//! the end if the driver has not.

use crate::error::{Error, Result};
use crate::hal::level_zero::tuning::FIRST_LOANED_DESCRIPTOR;
use crate::sync::Mutex;
use rustix::fs::fstat;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Held from when the driver may close a number until this library has looked at it, so that no other
/// descriptor of the same file gets the number meanwhile. The driver's calls under it import, open or
/// destroy memory that no command uses, so none waits for a command.
static LENDING: Mutex<()> = Mutex::new(());

/// A descriptor that the driver was given by its number.
pub(crate) struct LoanedDescriptor {
    number: RawFd,
    /// Device and inode of the file.
    file: (u64, u64),
}

/// Returns the device and inode of a descriptor's file.
pub(crate) fn identity(file: impl AsFd) -> Result<(u64, u64)> {
    let status = fstat(file).map_err(Error::os("looking at a descriptor"))?;
    Ok((status.st_dev, status.st_ino))
}

impl LoanedDescriptor {
    /// Duplicates a descriptor, to any number but `other`.
    fn new(file: BorrowedFd<'_>, other: Option<RawFd>) -> Result<Self> {
        let own = duplicate(file, FIRST_LOANED_DESCRIPTOR)?;
        let own = match other == Some(own.as_raw_fd()) {
            true => duplicate(file, own.as_raw_fd() + 1)?,
            false => own,
        };
        let file = identity(&own)?;
        Ok(Self {
            number: own.into_raw_fd(),
            file,
        })
    }

    /// Gives the driver a descriptor for the length of a call, by any number but `other`.
    pub(crate) fn for_a_call<T>(
        file: impl AsFd,
        other: Option<RawFd>,
        call: impl FnOnce(RawFd) -> Result<T>,
    ) -> Result<T> {
        let _lending = LENDING.lock();
        let loan = Self::new(file.as_fd(), other)?;
        let result = call(loan.number);
        loan.take_back();
        result
    }

    /// Gives the driver a descriptor for as long as the object that the call creates from it lives. A
    /// call that fails keeps none.
    pub(crate) fn for_longer<T>(
        file: impl AsFd,
        call: impl FnOnce(RawFd) -> Result<T>,
    ) -> Result<(T, Self)> {
        let _lending = LENDING.lock();
        let loan = Self::new(file.as_fd(), None)?;
        match call(loan.number) {
            Ok(made) => Ok((made, loan)),
            Err(error) => {
                loan.take_back();
                Err(error)
            }
        }
    }

    /// Takes the descriptor back after a call that destroys the object.
    pub(crate) fn end<T>(self, call: impl FnOnce() -> T) -> T {
        let _lending = LENDING.lock();
        let result = call();
        self.take_back();
        result
    }

    /// Closes the descriptor, unless the driver has.
    fn take_back(self) {
        // SAFETY: for the length of a system call, which fails if it is closed.
        let number = unsafe { BorrowedFd::borrow_raw(self.number) };
        if identity(number).is_ok_and(|file| file == self.file) {
            // SAFETY: open, and ours: no other code was given this number for this file.
            drop(unsafe { OwnedFd::from_raw_fd(self.number) });
        }
    }
}

/// Duplicates a descriptor to the lowest free number from `first` on, or to the lowest of all if the
/// process's limit is below that.
fn duplicate(file: BorrowedFd<'_>, first: RawFd) -> Result<OwnedFd> {
    fcntl_dupfd_cloexec(file, first)
        .or_else(|errno| match errno {
            Errno::INVAL | Errno::MFILE => fcntl_dupfd_cloexec(file, 3),
            errno => Err(errno),
        })
        .map_err(Error::os("duplicating a descriptor"))
}

#[cfg(test)]
mod tests {
    use super::{LoanedDescriptor, identity};
    use crate::os::memfd;
    use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

    fn close(number: RawFd) {
        // SAFETY: given to the driver, which is played here.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }

    fn leads_to(number: RawFd) -> Option<(u64, u64)> {
        // SAFETY: for the length of a system call, which fails if it is closed.
        identity(unsafe { BorrowedFd::borrow_raw(number) }).ok()
    }

    #[test]
    fn what_the_driver_leaves_open_is_closed() {
        let file = memfd::create("loan", 1).unwrap();
        let own = file.as_raw_fd();
        let number = LoanedDescriptor::for_a_call(&file, Some(own), Ok).unwrap();
        assert!(number != own && leads_to(number) != identity(&file).ok());
        let (number, loan) = LoanedDescriptor::for_longer(&file, Ok).unwrap();
        assert_eq!(leads_to(number), identity(&file).ok());
        loan.end(|| ());
        assert_ne!(leads_to(number), identity(&file).ok());
    }

    #[test]
    fn what_the_driver_closes_is_not_closed_again() {
        let (file, other) = (memfd::create("loan", 1), memfd::create("other", 1));
        let (file, other) = (file.unwrap(), other.unwrap());
        // Another descriptor gets the number before we look.
        let reused = LoanedDescriptor::for_a_call(&file, None, |number| {
            close(number);
            let reused = rustix::io::fcntl_dupfd_cloexec(&other, number);
            Ok(reused.unwrap())
        });
        let reused = reused.unwrap();
        assert_eq!(identity(&reused).unwrap(), identity(&other).unwrap());
        let (number, loan) = LoanedDescriptor::for_longer(&file, Ok).unwrap();
        loan.end(|| close(number));
        assert_eq!(identity(&reused).unwrap(), identity(&other).unwrap());
    }
}
