//! Messages, with descriptors, between the two processes of a scenario.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum time that a process waits for a message. No scenario takes that long.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Link {
    socket: OwnedFd,
    peer: Option<Child>,
}

impl Link {
    /// Starts this program again as the peer of a scenario.
    pub(crate) fn start(name: &str, variables: &[(&str, &str)]) -> Self {
        let kind = SocketType::SEQPACKET;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command
            .args([name, "peer"])
            .envs(variables.iter().copied())
            .stdin(theirs);
        let peer = Some(command.spawn().unwrap());
        Self { socket, peer }.patient()
    }

    /// Returns the peer's end of the link, which is its standard input.
    pub(crate) fn inherited() -> Self {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        Self { socket, peer: None }.patient()
    }

    fn patient(self) -> Self {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(PATIENCE)).unwrap();
        self
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let parts = [IoSlice::new(bytes)];
        sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    pub(crate) fn receive(&self) -> (Vec<u8>, Option<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; 256];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(
            &self.socket,
            &mut parts,
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .unwrap();
        assert!(got.bytes > 0, "the other process has gone");
        bytes.truncate(got.bytes);
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        (bytes, descriptor)
    }

    /// Tells the other process to continue.
    pub(crate) fn go(&self) {
        self.send(b"go", None);
    }

    /// Waits until the other process calls [`go`](Self::go).
    pub(crate) fn wait(&self) {
        assert_eq!(self.receive().0, b"go");
    }

    /// Waits for the peer to end, and checks that it succeeded.
    pub(crate) fn end(mut self) {
        let status = self.peer.take().unwrap().wait().unwrap();
        assert!(status.success(), "the peer failed: {status}");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(mut peer) = self.peer.take() {
            let _ = peer.kill();
            let _ = peer.wait();
        }
    }
}
