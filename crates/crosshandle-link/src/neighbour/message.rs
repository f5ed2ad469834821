//! Messages between the process that shares its link and its *neighbours*, which are the processes
//! that use the link. Each request and each reply is one datagram. Replies are sent in the order of
//! the requests.

use crate::wire::{Rest, RestIsHandle, messages};
use crosshandle::handle::{EVENT_HANDLE_SIZE, MEMORY_HANDLE_SIZE};

/// Maximum size in bytes of a request or a reply.
pub const MAX_LEN: usize = 2048;
/// Maximum length in bytes of the text in a `Refused` reply.
const MAX_TEXT: usize = MAX_LEN - 2;

messages! {
    /// A request from a neighbour.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Request<'a> {
        /// Opens an object on the remote host.
        Open = 1 {
            /// Whether memory is opened read-only.
            read_only: bool,
            /// The handle, of memory or of an event.
            handle: &'a [u8] as RestIsHandle,
        },
        /// Copies between remote memory and local memory.
        Copy = 2 {
            /// The direction: `true` copies to the remote host.
            there: bool,
            /// The number of the open remote memory.
            id: u32,
            /// Offset of the first byte in the remote memory.
            offset: u64,
            /// Handle to the local memory.
            handle: &'a [u8; MEMORY_HANDLE_SIZE],
            /// Offset of the first byte in the local memory.
            local_offset: u64,
            len: u64,
        },
        /// Signals an event on the remote host.
        Signal = 3 { id: u32 },
        Close = 4 { id: u32 },
    }
}

messages! {
    /// A reply to a neighbour.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Reply {
        /// Memory was opened.
        Memory = 1 {
            /// Whether the memory is [staged](crate::RemoteMemory::is_staged).
            is_staged: bool,
            id: u32,
            /// The length of the memory in bytes.
            len: u64,
        },
        /// An event was opened.
        Event = 2 {
            id: u32,
            /// The handle of the event's mirror.
            mirror: [u8; EVENT_HANDLE_SIZE],
        },
        Done = 3 {
            /// The number of the signal, or 0 if the request was not a signal.
            value: u64,
        },
        Refused = 4 {
            has_ended: bool,
            why: String as Rest<MAX_TEXT>,
        },
    }
}

impl<'a> Request<'a> {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// Returns the reason why the bytes are invalid.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, &'static str> {
        Self::read(bytes)
    }
}

impl Reply {
    /// Encodes the reply. Truncates the text of a `Refused` reply if it is too long.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// Decodes a reply.
    ///
    /// # Errors
    /// Returns the reason why the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        Self::read(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    const HANDLE: [u8; MEMORY_HANDLE_SIZE] = {
        let mut bytes = [0; MEMORY_HANDLE_SIZE];
        let mut place = 0;
        while place < bytes.len() {
            bytes[place] = place as u8;
            place += 1;
        }
        bytes
    };

    fn requests() -> Vec<Request<'static>> {
        let handle = &HANDLE;
        vec![
            Request::Open {
                read_only: false,
                handle: &handle[..EVENT_HANDLE_SIZE],
            },
            Request::Open {
                read_only: true,
                handle,
            },
            Request::Copy {
                there: true,
                id: 7,
                offset: 1 << 40,
                handle,
                local_offset: 3,
                len: u64::MAX,
            },
            Request::Signal { id: u32::MAX },
            Request::Close { id: 0 },
        ]
    }

    fn replies() -> Vec<Reply> {
        vec![
            Reply::Memory {
                id: 1,
                len: 2,
                is_staged: true,
            },
            Reply::Event {
                id: 3,
                mirror: std::array::from_fn(|place| place as u8),
            },
            Reply::Done { value: 9 },
            Reply::Refused {
                has_ended: true,
                why: "no".into(),
            },
        ]
    }

    /// `datagrams.txt` contains the bytes of these messages, which must not change.
    #[test]
    fn every_message_has_the_bytes_of_this_version() {
        let mut lines = include_str!("datagrams.txt").lines();
        for request in requests() {
            let bytes = request.encode();
            assert_eq!(Some(&*HEXLOWER.encode(&bytes)), lines.next());
            assert_eq!(Request::decode(&bytes), Ok(request));
            // A request with one byte less or more is invalid.
            assert!(Request::decode(&bytes[..bytes.len() - 1]).is_err());
            assert!(Request::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        for reply in replies() {
            let bytes = reply.encode();
            assert_eq!(Some(&*HEXLOWER.encode(&bytes)), lines.next());
            assert_eq!(Reply::decode(&bytes), Ok(reply));
        }
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn long_refusals_are_cut_at_a_character() {
        let whole = "ö".repeat(MAX_LEN);
        let bytes = Reply::Refused {
            has_ended: true,
            why: whole.clone(),
        }
        .encode();
        assert_eq!(bytes.len(), MAX_LEN);
        let Ok(Reply::Refused { why, .. }) = Reply::decode(&bytes) else {
            panic!("not as it was written");
        };
        assert!(whole.starts_with(&why));
    }

    #[test]
    fn senseless_bytes_are_no_message() {
        for senseless in [&[][..], &[0], &[5, 0], &[1, 2], &[4, 2, 65]] {
            assert!(Request::decode(senseless).is_err());
            assert!(Reply::decode(senseless).is_err());
        }
    }
}
