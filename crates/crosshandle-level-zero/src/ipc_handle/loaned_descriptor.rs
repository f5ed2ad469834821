//! Descriptors that the driver receives by number.
//!
//! The specification does not say whether the driver closes them. Intel's driver closes a
//! descriptor of host memory immediately (since 26.09), and one of physical memory when the memory
//! is destroyed. It never closes a descriptor of device memory. The driver therefore gets a number
//! of its own. This library closes that number at the end, unless the driver has closed it.

use crosshandle_os::descriptor::identity_of;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use rustix::fs::fstat;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Lowest number of a descriptor that is loaned to the driver. The system gives other descriptors
/// the lowest free number. No other descriptor therefore gets a loaned number that the driver has
/// closed before this library checks it, unless the process has this many descriptors. The usual
/// limit is 1024.
const FIRST_LOANED_DESCRIPTOR: i32 = 512;

/// Held while the driver may close a number, until this library has checked the number. Meanwhile,
/// no other descriptor of the same file can get the number. Under this lock, the driver imports,
/// opens or destroys memory that no command uses, so these calls do not wait for commands.
static LENDING: Mutex<()> = Mutex::new(());

/// A descriptor that was passed to the driver by its number.
pub(crate) struct LoanedDescriptor {
    number: RawFd,
    /// The device and inode numbers of the file.
    file: (u64, u64),
}

/// Returns the device and inode numbers of a descriptor's file.
pub(crate) fn identity(file: impl AsFd) -> Result<(u64, u64)> {
    let status = fstat(file).map_err(Error::os("looking at a descriptor"))?;
    Ok((status.st_dev, status.st_ino))
}

impl LoanedDescriptor {
    /// Duplicates a descriptor to a number other than `other`.
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

    /// Lends the driver a descriptor during a call. Its number differs from `other`.
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

    /// Lends the driver a descriptor for as long as the object lives that the call creates from it.
    /// If the call fails, the loan ends.
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

    /// Ends the loan after a call that destroys the object.
    pub(crate) fn end<T>(self, call: impl FnOnce() -> T) -> T {
        let _lending = LENDING.lock();
        let result = call();
        self.take_back();
        result
    }

    /// Closes the descriptor, unless the driver has closed it.
    fn take_back(self) {
        if identity_of(self.number) == Some(self.file) {
            // SAFETY: the descriptor is open, and is still the one that `new` made. If the driver
            // had closed it, its number would not lead to this file: other descriptors of the file
            // are made under `LENDING`, or get lower numbers (see `FIRST_LOANED_DESCRIPTOR`).
            drop(unsafe { OwnedFd::from_raw_fd(self.number) });
        }
    }
}

/// Duplicates a descriptor to the lowest free number from `first` on. If the process's limit is
/// lower, uses the lowest free number of all.
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
    use crosshandle_os::{descriptor::identity_of, memfd};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

    fn close(number: RawFd) {
        // SAFETY: the number was lent to the driver, whose role this test plays.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }

    #[test]
    fn what_the_driver_leaves_open_is_closed() {
        let file = memfd::create("loan", 1).unwrap();
        let own = file.as_raw_fd();
        let number = LoanedDescriptor::for_a_call(&file, Some(own), Ok).unwrap();
        assert!(number != own && identity_of(number) != identity(&file).ok());
        let (number, loan) = LoanedDescriptor::for_longer(&file, Ok).unwrap();
        assert_eq!(identity_of(number), identity(&file).ok());
        loan.end(|| ());
        assert_ne!(identity_of(number), identity(&file).ok());
    }

    #[test]
    fn what_the_driver_closes_is_not_closed_again() {
        let (file, other) = (memfd::create("loan", 1), memfd::create("other", 1));
        let (file, other) = (file.unwrap(), other.unwrap());
        // Another descriptor gets the number before the library checks it.
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
