//! The messages between a program and a holder: one JSON text each, in both directions, without
//! descriptors. Either side may be hostile, so names and sizes are checked where they arrive.

use super::tuning::{MAX_LABEL_BYTES, MAX_PARTS};
use crate::error::{Error, HolderFault, Result};
use crate::handle::MemoryHandle;
use crate::types::report::ObjectKind;
use serde::{Deserialize, Serialize};

/// The version of these messages.
pub(super) const PROTOCOL: u32 = 2;
/// The oldest version that a holder answers: that of the release before, whose programs go on while the
/// holder is upgraded.
pub(super) const OLDEST_PROTOCOL: u32 = 1;
/// Bytes of the longest name.
const MAX_NAME_BYTES: usize = 128;
/// Bytes of the longest role of a part, and of the longest token.
const MAX_WORD_BYTES: usize = 64;

/// The part of a question that all versions have.
#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) protocol: u32,
}

/// Describes why a question cannot be read.
pub(super) fn not_understood(bytes: &[u8]) -> Answer {
    let why = match serde_json::from_slice::<Version>(bytes) {
        Ok(Version { protocol }) if !(OLDEST_PROTOCOL..=PROTOCOL).contains(&protocol) => format!(
            "this program speaks version {protocol} of the holder's protocol, and the holder (process {}, \
             crosshandle {}) versions {OLDEST_PROTOCOL} to {PROTOCOL}; use the same release on both sides",
            std::process::id(),
            env!("CARGO_PKG_VERSION"),
        ),
        _ => {
            "the holder does not understand the question; use the same release on both sides".into()
        }
    };
    refused(HolderFault::Refused, why)
}

/// A question of a program.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Request {
    pub(super) protocol: u32,
    /// What lets the program do it, where the name has tokens.
    #[serde(default)]
    pub(super) token: Option<String>,
    pub(super) question: Question,
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Question {
    /// Asks to take memory over, under a name.
    Hold(Hold),
    /// Asks for the handles of a name.
    Open { name: String, writes: bool },
    /// Asks for the handles for reading of a name as soon as it has a later version than `version`, or a later epoch
    /// than `epoch` if that is given.
    Await {
        name: String,
        version: u64,
        #[serde(default)]
        epoch: Option<u64>,
    },
    /// Asks for the handles of a name to be its one writer: in an epoch of its own.
    Claim {
        name: String,
        /// Whether that is to be granted without proof that the writer before has ended.
        forces: bool,
        request: u64,
    },
    /// Says that the writer which has claimed a name by this question writes no more.
    EndClaim { name: String, request: u64 },
    /// Asks for all names behind `after`.
    List { after: Option<String> },
    /// Asks to let go of a name.
    Remove { name: String },
    /// Asks to protect a name from being removed or replaced, or not to any more.
    Pin { name: String, pinned: bool },
    /// Brings back what was held when a holder and its successor died at once.
    TakeBack(Offer),
    /// Asks how the holder is.
    Status,
    /// Asks the holder to end, with its successor, and to let go of everything.
    Stop,
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Hold {
    pub(super) name: String,
    #[serde(default)]
    pub(super) label: String,
    /// Whether the name may be in use: then this is its next version.
    #[serde(default)]
    pub(super) replaces: bool,
    /// The name's tokens; if there are none here, those that it has.
    #[serde(default)]
    pub(super) tokens: Tokens,
    pub(super) parts: Vec<Part>,
    /// A random number: the same question asked twice is done once. 0: a question that is not asked twice.
    #[serde(default)]
    pub(super) request: u64,
}

/// Memory of a lost name that a process has open for reading.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Offer {
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) parts: Vec<OfferedPart>,
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) struct OfferedPart {
    /// The part's handle for reading, as the holder before gave it: it shows that the process was allowed to read.
    pub(super) handle: String,
    /// A handle by which the memory can be had from the process.
    pub(super) from: String,
}

/// How memory was found to be what a name stood for, after a holder and its successor had died at once and a process
/// that had it open for reading brought it back.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Recovered {
    /// All of it is the same files that were held, as the kernel numbers them: its bytes are those that it had.
    SameFiles,
    /// Some of it is a driver's memory whose descriptors cannot be told apart: who brought it could have brought
    /// other bytes, so whoever opens it takes their hash.
    Unverified,
}

/// What a program must show to use a name, if anything: who may write may read, and the administrator may
/// do both.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct Tokens {
    pub(super) read: Option<String>,
    pub(super) write: Option<String>,
    pub(super) admin: Option<String>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

/// One object under a name.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Part {
    pub(super) role: String,
    /// The device, as its maker calls it.
    pub(super) device: String,
    pub(super) kind: ObjectKind,
    pub(super) bytes: u64,
    /// The handle that lets who has it write; absent in answers to those who may not.
    #[serde(default)]
    pub(super) handle: Option<String>,
    pub(super) read_only: String,
}

/// A name, as it is told. `parts` have no handles in lists.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) label: String,
    pub(super) pinned: bool,
    pub(super) created_unix_s: u64,
    pub(super) has_tokens: bool,
    /// The number of its latest writer, from 1; 0 if none has claimed it.
    #[serde(default)]
    pub(super) epoch: u64,
    /// That writer's process, if it has one here and has not ended its claim.
    #[serde(default)]
    pub(super) writer: Option<u32>,
    /// How it was found to be the same, if it was brought back.
    #[serde(default)]
    pub(super) recovered: Option<Recovered>,
    pub(super) parts: Vec<Part>,
}

/// A holder's answer.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The memory is held, and a successor has it if `is_safe`.
    HandedOver {
        version: u64,
        is_safe: bool,
    },
    Opened(Entry),
    /// The program is the writer of the name, in its epoch.
    Claimed(Entry),
    Listed {
        names: Vec<Entry>,
        more: bool,
    },
    Done,
    Status(Status),
    Refused {
        fault: HolderFault,
        why: String,
    },
}

/// How a holder is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(default)]
#[non_exhaustive]
pub struct Status {
    /// The holder's process id, in its own PID namespace.
    pub pid: u32,
    /// Its successor's; `None` while there is none.
    pub successor: Option<u32>,
    /// Whether the successor has everything that the holder has.
    pub is_safe: bool,
    /// How often a successor has taken over since the first holder was started.
    pub takeovers: u64,
    /// The names that are held.
    pub names: u64,
    /// The bytes that are held.
    pub bytes: u64,
    /// The names that a holder before this one had when it died with its successor, and that nobody has brought back.
    pub lost: u64,
    /// The reason why `is_safe` is false: what would be lost if this process died now, or died together with its
    /// successor.
    pub why_unsafe: Option<String>,
}

impl Answer {
    /// Returns the answer in the words of a version of the protocol.
    pub(super) fn in_version(self, protocol: u32) -> Self {
        match self {
            Self::Refused {
                fault: HolderFault::Busy,
                why,
            } if protocol < 2 => refused(HolderFault::Refused, why),
            answer => answer,
        }
    }
}

/// Puts a question off: the program asks it again.
pub(super) fn busy(why: impl Into<String>) -> Answer {
    refused(HolderFault::Busy, why)
}

/// Makes a refusal.
pub(super) fn refused(fault: HolderFault, why: impl Into<String>) -> Answer {
    Answer::Refused {
        fault,
        why: why.into(),
    }
}

/// Checks a name: no text that is taken for a handle, a version, an option or a path.
pub(super) fn check_name(name: &str) -> Result<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:+".contains(&byte);
    let why = if name.is_empty() || name.len() > MAX_NAME_BYTES {
        format!("a name has 1 to {MAX_NAME_BYTES} characters")
    } else if !name.bytes().all(is_good) {
        "a name has letters, digits and . _ - / : + alone".into()
    } else if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        "a name begins with a letter or a digit".into()
    } else if name.starts_with("xh") {
        "a name never begins with xh, since handles do".into()
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("{name:?} is no name: {why}")))
}

fn check_word(word: &str, what: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_graphic();
    if word.is_empty() || word.len() > MAX_WORD_BYTES || !word.chars().all(is_good) {
        return Err(Error::invalid(format!(
            "{what} has 1 to {MAX_WORD_BYTES} printable characters without blanks"
        )));
    }
    Ok(())
}

impl Hold {
    /// Checks everything that can be checked without asking anybody.
    pub(super) fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        if self.label.len() > MAX_LABEL_BYTES {
            return Err(Error::invalid(format!(
                "a label has at most {MAX_LABEL_BYTES} bytes"
            )));
        }
        if self.parts.is_empty() || self.parts.len() > MAX_PARTS {
            return Err(Error::invalid(format!(
                "a name is for 1 to {MAX_PARTS} pieces of memory"
            )));
        }
        let Tokens { read, write, admin } = &self.tokens;
        for token in [read, write, admin].into_iter().flatten() {
            check_word(token, "a token")?;
        }
        for (index, part) in self.parts.iter().enumerate() {
            check_word(&part.role, "a role")?;
            check_word(&part.device, "a device's name")?;
            if self.parts[..index]
                .iter()
                .any(|other| other.role == part.role)
            {
                return Err(Error::invalid(format!(
                    "two parts have the role {}",
                    part.role
                )));
            }
            part.handles()?;
        }
        Ok(())
    }
}

impl Part {
    /// Returns the part's handles: for writing, if it is there, and for reading only.
    pub(super) fn handles(&self) -> Result<(Option<MemoryHandle>, MemoryHandle)> {
        let handle = self.handle.as_deref().map(str::parse).transpose()?;
        Ok((handle, self.read_only.parse()?))
    }
}

/// What a program wants to do with a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Right {
    Read,
    Write,
    Admin,
}

impl Tokens {
    pub(super) fn has_some(&self) -> bool {
        *self != Self::default()
    }

    /// Returns whether a token lets who has it do this. Who may do more may do less; a right without a
    /// token of its own needs that of the next higher one, or else of the next lower one. Reading needs
    /// none if it has none.
    pub(super) fn allow(&self, right: Right, shown: Option<&str>) -> bool {
        let all = [&self.read, &self.write, &self.admin].map(Option::as_deref);
        let (lower, higher) = all.split_at(right as usize);
        if right == Right::Read && self.read.is_none() {
            return true;
        }
        let mut needed: Vec<&str> = higher.iter().flatten().copied().collect();
        if needed.is_empty() {
            needed.extend(lower.iter().rev().flatten().next());
        }
        let shown = shown.unwrap_or_default();
        let is_shown = |found: bool, token: &&str| found | is_equal(token, shown);
        needed.is_empty() || needed.iter().fold(false, is_shown)
    }
}

/// Compares without telling by the time it takes how much of both is equal.
fn is_equal(one: &str, other: &str) -> bool {
    let differences = one
        .bytes()
        .zip(other.bytes())
        .map(|(one, other)| one ^ other);
    one.len() == other.len() && differences.fold(0, |all, one| all | one) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_handles_and_options() {
        for good in ["llama-70b", "a", "org/model:bf16", "0.5B", "a+b_c"] {
            check_name(good).expect(good);
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for bad in [
            "", "xhm2.abc", "xh", "-n", "/x", "../x", "a b", "a@2", "ä", &long,
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn higher_rights_include_lower_ones() {
        let token = |text: &str| Some(text.to_owned());
        let none = Tokens::default();
        assert!(none.allow(Right::Admin, None));
        let write = Tokens {
            write: token("w"),
            ..Tokens::default()
        };
        assert!(write.allow(Right::Read, None));
        assert!(!write.allow(Right::Write, None));
        assert!(write.allow(Right::Write, Some("w")));
        // Nobody may do more than who may write.
        assert!(!write.allow(Right::Admin, None));
        assert!(write.allow(Right::Admin, Some("w")));
        let all = Tokens {
            read: token("r"),
            write: token("w"),
            admin: token("a"),
        };
        for (right, good) in [
            (Right::Read, &["r", "w", "a"][..]),
            (Right::Write, &["w", "a"]),
            (Right::Admin, &["a"]),
        ] {
            for shown in ["r", "w", "a", "", "x", "rw"] {
                let is_good = good.contains(&shown);
                assert_eq!(all.allow(right, Some(shown)), is_good, "{right:?} {shown}");
            }
            assert!(!all.allow(right, None));
        }
    }
}
