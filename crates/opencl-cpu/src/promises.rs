//! Removes a SPIR-V module's promises about the launches of its kernels. A compiler may use such
//! promises but does not need them. Intel's compiler for the CPU refuses modules that contain them.

use std::borrow::Cow;

/// Length of a module's header, in words.
const HEADER: usize = 5;

const OP_EXTENSION: u32 = 10;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
/// The first instruction of a function. All promises come before it.
const OP_FUNCTION: u32 = 54;

/// The capability that promises require, `KernelAttributesINTEL`.
const CAPABILITY: u32 = 5892;
const EXTENSION: &[u8] = b"SPV_INTEL_kernel_attributes\0";
/// The range of promises: `MaxWorkgroupSizeINTEL`, `MaxWorkDimINTEL` and `NoGlobalOffsetINTEL`.
const MODES: std::ops::RangeInclusive<u32> = 5893..=5895;

/// Returns a module without promises. If the module is damaged, the rest after the damage is
/// unchanged, and the compiler reports it.
pub(crate) fn removed(module: &[u8]) -> Cow<'_, [u8]> {
    let promised = instructions(module).any(|(_, words)| is_promise(words));
    if !promised {
        return Cow::Borrowed(module);
    }
    let mut kept = module[..4 * HEADER].to_vec();
    let mut end = kept.len();
    for (at, words) in instructions(module) {
        if !is_promise(words) {
            kept.extend_from_slice(&module[at..at + words.as_flattened().len()]);
        }
        end = at + words.as_flattened().len();
    }
    kept.extend_from_slice(&module[end..]);
    Cow::Owned(kept)
}

/// Returns the complete instructions before the first function, with the position of each.
fn instructions(module: &[u8]) -> impl Iterator<Item = (usize, &[[u8; 4]])> {
    let (words, _) = module.as_chunks::<4>();
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let first = u32::from_le_bytes(*words.get(at)?);
        let len = (first >> 16) as usize;
        if len == 0 || first & 0xFFFF == OP_FUNCTION {
            return None;
        }
        let found = words.get(at..at + len)?;
        let place = 4 * at;
        at += len;
        Some((place, found))
    })
}

fn is_promise(words: &[[u8; 4]]) -> bool {
    let word = |index: usize| words.get(index).map(|word| u32::from_le_bytes(*word));
    match word(0).map(|first| first & 0xFFFF) {
        Some(OP_CAPABILITY) => word(1) == Some(CAPABILITY),
        Some(OP_EXTENSION) => words[1..].as_flattened().starts_with(EXTENSION),
        Some(OP_EXECUTION_MODE) => word(2).is_some_and(|mode| MODES.contains(&mode)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn promises_are_removed_and_all_else_is_kept() {
        let header = [0x0723_0203, 0x1_0000, 0, 9, 0];
        let [kernel, size, local] = [
            &[0x2_0011, 6][..],
            &[0x6_0010, 4, 5893, 2, 4, 8],
            &[0x6_0010, 4, 17, 2, 4, 8],
        ];
        let capability = [0x2_0011, 5892];
        let mut extension = bytes(&[0x8_000A]);
        extension.extend_from_slice(EXTENSION);
        let function = [0x5_0036, 1, 2, 0, 3, 0x6_0010, 4, 5893, 2, 4, 8];
        let mut with = bytes(&header);
        for part in [
            &bytes(kernel),
            &bytes(&capability),
            &extension,
            &bytes(size),
            &bytes(local),
            &bytes(&function),
        ] {
            with.extend_from_slice(part);
        }
        let mut without = bytes(&header);
        for part in [kernel, local, &function] {
            without.extend(bytes(part));
        }
        assert_eq!(removed(&with), without);
        assert!(matches!(removed(&without), Cow::Borrowed(_)));
        // A module that is cut off at any place must not cause a panic.
        for end in 0..with.len() {
            removed(&with[..end]);
        }
    }
}
