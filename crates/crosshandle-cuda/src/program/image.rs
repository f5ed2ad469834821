//! Kinds of program images, and checks that an image is complete.

use crate::driver::{Image, ImageKind};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Format, ProgramImage};
use std::borrow::Cow;

const ELF: &[u8] = b"\x7FELF";
/// The first word of a fatbin, which contains images for several devices. Little-endian.
const FATBIN: &[u8] = &[0x50, 0xED, 0x55, 0xBA];

/// An image in the form that the driver accepts.
pub(super) struct Prepared<'a> {
    kind: ImageKind,
    bytes: Cow<'a, [u8]>,
}

impl Prepared<'_> {
    pub(super) fn image(&self) -> Image<'_> {
        Image {
            kind: self.kind,
            bytes: &self.bytes,
        }
    }
}

/// Checks an image. Adds the zero byte that the driver expects at the end of a text.
pub(super) fn prepare<'a>(image: &ProgramImage<'a>) -> Result<Prepared<'a>> {
    match image.format {
        Format::Text(text) => {
            let text = text.trim_end_matches('\0');
            if text.contains('\0') || text.trim().is_empty() {
                return Err(Error::invalid(
                    "an image that is text is not empty and has no zero inside",
                ));
            }
            // The driver detects the format itself, and trusts the offsets in a binary. A text must
            // therefore not be mistaken for a binary.
            if text.starts_with(|first: char| !first.is_ascii() || is_control(first)) {
                return Err(Error::invalid(
                    "an image that is text does not begin like a binary one",
                ));
            }
            let mut bytes = Vec::with_capacity(text.len() + 1);
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
            Ok(Prepared {
                kind: ImageKind::Ptx,
                bytes: Cow::Owned(bytes),
            })
        }
        Format::SpirV(_) => Err(Error::Unsupported(
            "the CUDA driver takes PTX, cubin and fatbin, and no SPIR-V".into(),
        )),
        Format::Binary(bytes) => Ok(Prepared {
            kind: kind_of(bytes)?,
            bytes: Cow::Borrowed(bytes),
        }),
    }
}

/// Returns whether text cannot contain the character.
fn is_control(character: char) -> bool {
    character.is_ascii_control() && !character.is_ascii_whitespace()
}

/// Returns the kind of a binary image, after a check that the image is as long as its header says.
/// The driver takes no length, and relies on the header.
fn kind_of(bytes: &[u8]) -> Result<ImageKind> {
    let (kind, end) = if bytes.starts_with(ELF) {
        (ImageKind::Cubin, elf_end(bytes))
    } else if bytes.starts_with(FATBIN) {
        (ImageKind::Fatbin, fatbin_end(bytes))
    } else {
        return Err(Error::invalid(
            "this image is neither a cubin (ELF) nor a fatbin",
        ));
    };
    match end {
        Some(end) if end <= bytes.len() as u64 => Ok(kind),
        _ => Err(Error::invalid(format!(
            "this image is cut off: it has {} bytes, its header says more",
            bytes.len()
        ))),
    }
}

/// Returns the end of the last table that a 64-bit ELF header refers to.
fn elf_end(bytes: &[u8]) -> Option<u64> {
    let table = |offset, size, count| {
        let len = number::<2>(bytes, size)?.checked_mul(number::<2>(bytes, count)?)?;
        number::<8>(bytes, offset)?.checked_add(len)
    };
    // The table of program headers and the table of section headers.
    Some(table(0x20, 0x36, 0x38)?.max(table(0x28, 0x3A, 0x3C)?))
}

/// Returns the end of the contents that follow a fatbin's header.
fn fatbin_end(bytes: &[u8]) -> Option<u64> {
    number::<2>(bytes, 6)?.checked_add(number::<8>(bytes, 8)?)
}

/// Reads a little-endian number of `N` bytes.
fn number<const N: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..N].copy_from_slice(bytes.get(offset..offset + N)?);
    Some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(bytes: &[u8]) -> Result<ImageKind> {
        // SAFETY: the image is not passed to a driver.
        prepare(&unsafe { ProgramImage::binary(bytes) }).map(|image| image.kind)
    }

    #[test]
    fn text_ends_with_one_zero() {
        for text in [".version 8.0", ".version 8.0\0", ".version 8.0\0\0"] {
            let prepared = prepare(&ProgramImage::text(text)).unwrap();
            assert_eq!(prepared.image().bytes, b".version 8.0\0");
        }
        for text in [
            "",
            "\0",
            " \n",
            ".version\0 8.0",
            "\x7FELF\x02\x01",
            "\u{FEFF}.version",
        ] {
            assert!(prepare(&ProgramImage::text(text)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn binaries_are_whole() {
        let mut elf = vec![0; 0x40 + 2 * 0x38];
        elf[..4].copy_from_slice(ELF);
        elf[0x20] = 0x40;
        elf[0x36] = 0x38;
        elf[0x38] = 2;
        assert_eq!(binary(&elf).unwrap(), ImageKind::Cubin);
        assert!(binary(&elf[..elf.len() - 1]).is_err());
        assert!(binary(&elf[..20]).is_err());
        elf[0x28..0x30].fill(0xFF);
        assert!(binary(&elf).is_err());

        let mut fatbin = FATBIN.to_vec();
        fatbin.extend([1, 0, 16, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9]);
        assert_eq!(binary(&fatbin).unwrap(), ImageKind::Fatbin);
        assert!(binary(&fatbin[..fatbin.len() - 1]).is_err());
        assert!(binary(FATBIN).is_err());

        assert!(binary(b"").is_err() && binary(b".version 8.0\0").is_err());
    }
}
