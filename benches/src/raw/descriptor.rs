//! Descriptors on request: a thread of the exporter sends them over a socket with `SCM_RIGHTS`.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::memfd::Mapping;

/// Descriptors that an exporter offers, by number.
#[derive(Clone, Default)]
pub(crate) struct OfferedDescriptors(Arc<Mutex<HashMap<u64, OwnedFd>>>);

impl OfferedDescriptors {
    /// Offers `file` under `number`, and withdraws the descriptor that had this number.
    pub(crate) fn add(&self, number: u64, file: OwnedFd) {
        self.lock().insert(number, file);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that replies on `socket` until the other end is closed.
    pub(crate) fn serve(&self, socket: OwnedFd) -> Result<()> {
        let offers = self.clone();
        thread::Builder::new()
            .name("raw-exporter".to_owned())
            .spawn(move || {
                if let Err(error) = offers.answer_all(socket.as_fd()) {
                    // The importer sees the socket close and fails.
                    eprintln!("raw exporter: {error:#}");
                }
            })
            .map(drop)
            .context("cannot start a thread")
    }

    fn answer_all(&self, socket: BorrowedFd<'_>) -> Result<()> {
        loop {
            let mut request = [0; 8];
            let mut none = RecvAncillaryBuffer::default();
            let received = retry_on_intr(|| {
                recvmsg(
                    socket,
                    &mut [IoSliceMut::new(&mut request)],
                    &mut none,
                    RecvFlags::CMSG_CLOEXEC,
                )
            })
            .context("cannot receive a request")?;
            if received.bytes == 0 {
                return Ok(());
            }
            let number = u64::from_le_bytes(request);
            let offers = self.lock();
            let file = offers
                .get(&number)
                .with_context(|| format!("nothing offered as {number}"))?;
            send_descriptor(socket, file.as_fd())?;
        }
    }
}

pub(crate) fn send_descriptor(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    ensure!(
        control.push(SendAncillaryMessage::ScmRights(&files)),
        "no room for a descriptor"
    );
    retry_on_intr(|| {
        sendmsg(
            socket,
            &[IoSlice::new(&[1])],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })
    .map(drop)
    .context("cannot send a descriptor")
}

/// Receives one descriptor. Returns `None` if the kernel dropped it because this process may not
/// open more.
pub(crate) fn receive_descriptor(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .context("cannot receive a descriptor")?;
    ensure!(received.bytes == 1, "the exporter has closed its socket");
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            return Ok(files.next());
        }
    }
    Ok(None)
}

/// Requests the descriptor that is offered under `number`.
#[inline]
pub(crate) fn request(socket: BorrowedFd<'_>, number: u64) -> Result<OwnedFd> {
    let request = number.to_le_bytes();
    retry_on_intr(|| {
        sendmsg(
            socket,
            &[IoSlice::new(&request)],
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL,
        )
    })
    .context("cannot send a request")?;
    receive_descriptor(socket)?.context("no descriptor came")
}

/// Opens the memory that is offered under `number`: requests the descriptor, maps the memory, and
/// closes the descriptor.
#[inline]
pub(crate) fn open(socket: BorrowedFd<'_>, number: u64, length: usize) -> Result<Mapping> {
    let file = request(socket, number)?;
    Mapping::shared(&file, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::link::Link;
    use crate::raw::memfd;

    #[test]
    fn opening_yields_the_same_memory() {
        let (exporter, importer) = Link::pair().unwrap();
        let file = memfd::create(4096).unwrap();
        let own = Mapping::shared(&file, 4096).unwrap();
        own.region().write(3, 99);
        let offers = OfferedDescriptors::default();
        offers.add(7, file);
        offers.serve(exporter.into()).unwrap();
        let opened = open(importer.as_fd(), 7, 4096).unwrap();
        assert_eq!(opened.region().read(3), 99);
        assert!(open(importer.as_fd(), 8, 4096).is_err());
    }
}
