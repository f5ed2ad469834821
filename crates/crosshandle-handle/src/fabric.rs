//! Handles of memory that other hosts of a fabric open directly.

use super::{BackendKind, DeviceUuid, HandleError};
use data_encoding::BASE64URL_NOPAD as BASE64;
use std::fmt;
use std::str::FromStr;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a [`FabricHandle`] in bytes.
pub const FABRIC_HANDLE_SIZE: usize = 108;
/// Size of the driver's own handle in bytes.
pub const DRIVER_HANDLE_SIZE: usize = 64;

const MAGIC: [u8; 4] = *b"XHDF";
const VERSION: u8 = 1;
const PREFIX: &str = "xhf1.";
const TEXT_LENGTH: usize = PREFIX.len() + (FABRIC_HANDLE_SIZE * 8).div_ceil(6);
/// Offset of the tag in bytes. The tag covers all bytes before it.
const TAG_AT: usize = FABRIC_HANDLE_SIZE - size_of::<U32>();

/// The layout of a fabric handle.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    magic: [u8; 4],
    version: u8,
    backend: u8,
    reserved: [u8; 2],
    host: U64,
    length: U64,
    device: [u8; 16],
    driver: [u8; DRIVER_HANDLE_SIZE],
    tag: U32,
}

const _: () = assert!(size_of::<Wire>() == FABRIC_HANDLE_SIZE);

/// A handle of GPU memory that every host of the same NVLink fabric can open without the exporter's
/// help. It contains the driver's own handle.
///
/// A value is always well-formed. The handle is valid for as long as the memory lives, and always
/// grants reading and writing, because the driver knows no other access. Any process that has the
/// handle and a GPU in the fabric can open the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FabricHandle([u8; FABRIC_HANDLE_SIZE]);

impl FabricHandle {
    /// Makes a handle of a backend's memory. `len` must not be 0.
    pub fn new(
        backend: BackendKind,
        host: u64,
        device: DeviceUuid,
        len: u64,
        driver: [u8; DRIVER_HANDLE_SIZE],
    ) -> Self {
        let mut wire = Wire {
            magic: MAGIC,
            version: VERSION,
            backend: backend as u8,
            reserved: [0; 2],
            host: host.into(),
            length: len.into(),
            device: *device.as_bytes(),
            driver,
            tag: 0.into(),
        };
        wire.tag = crc32c::crc32c(&wire.as_bytes()[..TAG_AT]).into();
        let mut bytes = [0; FABRIC_HANDLE_SIZE];
        bytes.copy_from_slice(wire.as_bytes());
        Self(bytes)
    }

    /// Checks `bytes` and returns them as a handle.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandleError> {
        let bytes: [u8; FABRIC_HANDLE_SIZE] =
            bytes.try_into().map_err(|_| HandleError::WrongSize {
                expected: FABRIC_HANDLE_SIZE,
                found: bytes.len(),
            })?;
        let wire = Wire::read_from_bytes(&bytes).map_err(|_| HandleError::NotAHandle)?;
        let malformed = |field, why| Err(HandleError::Malformed { field, why });
        match wire {
            _ if wire.magic != MAGIC => Err(HandleError::NotAHandle),
            _ if wire.version != VERSION => Err(HandleError::UnsupportedVersion {
                found: wire.version,
                supported: VERSION,
            }),
            _ if wire.tag.get() != crc32c::crc32c(&bytes[..TAG_AT]) => Err(HandleError::Corrupt),
            _ if BackendKind::from_code(wire.backend).is_none() => {
                malformed("backend", "no backend has this number")
            }
            _ if wire.reserved != [0; 2] => malformed("reserved", "it must be 0"),
            _ if wire.host.get() == 0 => malformed("host", "it must not be 0"),
            _ if wire.length.get() == 0 || wire.length.get() > isize::MAX as u64 => {
                malformed("length", "no memory has that length")
            }
            _ => Ok(Self(bytes)),
        }
    }

    /// Returns the bytes to send to another process.
    pub const fn as_bytes(&self) -> &[u8; FABRIC_HANDLE_SIZE] {
        &self.0
    }

    fn wire(&self) -> Wire {
        zerocopy::transmute!(self.0)
    }

    /// Returns the number of bytes, which is never 0.
    #[allow(clippy::len_without_is_empty, reason = "no handle shares nothing")]
    pub fn len(&self) -> u64 {
        self.wire().length.get()
    }

    /// Returns the backend that the memory belongs to.
    pub fn backend(&self) -> BackendKind {
        let backend = BackendKind::from_code(self.wire().backend);
        backend.expect("checked when the handle was made")
    }

    /// Returns the GPU that the memory belongs to, which may be a GPU of another host.
    pub fn device(&self) -> DeviceUuid {
        DeviceUuid::from_bytes(self.wire().device)
    }

    /// Returns the identity of the exporter's kernel.
    pub fn host(&self) -> u64 {
        self.wire().host.get()
    }

    /// Returns the driver's own handle.
    pub fn driver_handle(&self) -> [u8; DRIVER_HANDLE_SIZE] {
        self.wire().driver
    }
}

/// Writes the text form, which is `xhf1.` and the bytes in base64url without padding.
impl fmt::Display for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        BASE64.encode_write(&self.0, f)
    }
}

/// Reads the text form, and ignores surrounding white space.
impl FromStr for FabricHandle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, HandleError> {
        let text = text.trim_ascii();
        let encoded = text.strip_prefix(PREFIX).ok_or(HandleError::NotAHandle)?;
        if text.len() != TEXT_LENGTH {
            return Err(HandleError::BadText {
                at: text.len().min(TEXT_LENGTH) + 1,
                why: "it is not as long as a fabric handle is",
            });
        }
        let mut bytes = [0; FABRIC_HANDLE_SIZE];
        let decoded = BASE64.decode_mut(encoded.as_bytes(), &mut bytes);
        decoded.map_err(|partial| HandleError::BadText {
            at: PREFIX.len() + partial.error.position + 1,
            why: "it is not base64url",
        })?;
        Self::from_bytes(&bytes)
    }
}

/// Writes the contents without the driver's handle.
impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricHandle")
            .field("len", &self.len())
            .field("device", &self.device())
            .field("host", &format_args!("{:016x}", self.host()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(mut bytes: [u8; FABRIC_HANDLE_SIZE]) -> [u8; FABRIC_HANDLE_SIZE] {
        let tag = crc32c::crc32c(&bytes[..TAG_AT]);
        bytes[TAG_AT..].copy_from_slice(&tag.to_le_bytes());
        bytes
    }

    fn some() -> FabricHandle {
        FabricHandle::new(
            BackendKind::Cuda,
            7,
            DeviceUuid::from_bytes([3; 16]),
            2 << 20,
            [9; 64],
        )
    }

    #[test]
    fn what_no_exporter_writes_is_refused() {
        let handle = some();
        for (at, value, field) in [(5, 0, "backend"), (6, 1, "reserved"), (8, 0, "host")] {
            let mut bytes = *handle.as_bytes();
            bytes[at] = value;
            let refused = FabricHandle::from_bytes(&sealed(bytes));
            assert!(
                matches!(refused, Err(HandleError::Malformed { field: found, .. }) if found == field),
                "{refused:?}"
            );
        }
        for len in [0, u64::MAX] {
            let bytes = FabricHandle::new(handle.backend(), 7, handle.device(), len, [9; 64]).0;
            assert!(FabricHandle::from_bytes(&bytes).is_err());
        }
        let mut other = *handle.as_bytes();
        other[4] = 2;
        assert_eq!(
            FabricHandle::from_bytes(&sealed(other)),
            Err(HandleError::UnsupportedVersion {
                found: 2,
                supported: VERSION
            })
        );
        let text = handle.to_string();
        assert_eq!(text.len(), TEXT_LENGTH);
        for wrong in [
            &text[..text.len() - 1],
            &text[1..],
            "xhf1.",
            "",
            &text.replace('1', "2"),
        ] {
            assert!(wrong.parse::<FabricHandle>().is_err(), "{wrong}");
        }
        // Debug output does not show the driver's handle.
        assert!(!format!("{handle:?}").contains("9, 9"));
    }

    proptest! {
        #[test]
        fn both_forms_are_read_as_they_were_written(
            backend in proptest::sample::select(BackendKind::ALL), host in 1u64.., device: [u8; 16], len in 1..=isize::MAX as u64, half: [[u8; 32]; 2],
        ) {
            let mut driver = [0; 64];
            driver.copy_from_slice(half.as_flattened());
            let device = DeviceUuid::from_bytes(device);
            let handle = FabricHandle::new(backend, host, device, len, driver);
            prop_assert_eq!(FabricHandle::from_bytes(handle.as_bytes()).unwrap(), handle);
            prop_assert_eq!(format!(" {handle}\n").parse::<FabricHandle>().unwrap(), handle);
            prop_assert_eq!(handle.driver_handle(), driver);
            prop_assert_eq!((handle.backend(), handle.host(), handle.len()), (backend, host, len));
        }

        #[test]
        fn every_change_of_a_bit_is_found(at in 0..FABRIC_HANDLE_SIZE * 8) {
            let mut bytes = *some().as_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert!(FabricHandle::from_bytes(&bytes).is_err());
        }

        #[test]
        fn anything_is_read_without_a_panic(bytes: Vec<u8>, text: String) {
            if let Ok(handle) = FabricHandle::from_bytes(&bytes) {
                prop_assert_eq!(&handle.as_bytes()[..], bytes);
            }
            let _ = text.parse::<FabricHandle>();
            let _ = format!("{PREFIX}{text}").parse::<FabricHandle>();
        }
    }
}
