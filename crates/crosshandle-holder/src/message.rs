//! Messages between a program and a holder. Each message is one JSON text without descriptors.
//! Either side may be hostile, so the receiver checks names and sizes.

use crosshandle_handle::MemoryHandle;
use crosshandle_types::error::{Error, ErrorKind, HolderFault, Result};
use crosshandle_types::report::ObjectKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum size of a message between a program and a holder, or between a holder and its successor,
/// in bytes. With a larger value, two messages could exceed the usual limit of a socket's queue.
pub const MAX_MESSAGE_BYTES: usize = 60 << 10;

/// Maximum number of objects under one name. Their handles must fit into one message.
const MAX_PARTS: usize = 32;

/// Maximum length of a label, in bytes.
const MAX_LABEL_BYTES: usize = 4096;

/// Maximum number of names. The label and handles of a name take up to 20 KB of the holder's
/// memory.
pub const MAX_NAMES: usize = 4096;

/// Version of the messages.
pub const PROTOCOL: u32 = 2;
/// Oldest version that a holder accepts. The programs of the previous release use it while the
/// holder is upgraded.
pub(crate) const OLDEST_PROTOCOL: u32 = 1;
/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Maximum length of a token, of a part's role and of a device name, in bytes.
const MAX_WORD_BYTES: usize = 64;

/// Parses the request of a program.
///
/// # Errors
/// Returns the refusal if the program speaks another version, or if the request cannot be parsed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Envelope, Reply> {
    /// The part of a request that all versions have in common.
    #[derive(Deserialize)]
    struct Version {
        protocol: u32,
    }
    if let Ok(Version { protocol }) = serde_json::from_slice(bytes)
        && !(OLDEST_PROTOCOL..=PROTOCOL).contains(&protocol)
    {
        let why = format!(
            "this program speaks version {protocol} of the holder's protocol, and the holder (process {}, \
             crosshandle {}) versions {OLDEST_PROTOCOL} to {PROTOCOL}; use the same release on both sides",
            std::process::id(),
            env!("CARGO_PKG_VERSION"),
        );
        return Err(refused(HolderFault::Refused, why));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let why = format!(
            "the holder does not understand the request ({error}); use the same release on both sides"
        );
        refused(HolderFault::Refused, why)
    })
}

/// A request of a program, with the data that all requests have.
#[derive(Serialize, Deserialize, Debug)]
pub struct Envelope {
    pub protocol: u32,
    /// The token that the program presents, for names with tokens.
    #[serde(default)]
    pub token: Option<String>,
    pub request: Request,
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Hands memory over under a name.
    Hold(Hold),
    /// Asks for the handles of a name.
    Open { name: String, writes: bool },
    /// Waits until a name has a later version than `version`, or a later epoch than `epoch` if one
    /// is given, and asks for its read-only handles.
    Await {
        name: String,
        version: u64,
        #[serde(default)]
        epoch: Option<u64>,
    },
    /// Claims a name: asks for its handles as its only writer, in a new epoch.
    Claim {
        name: String,
        /// Whether the claim succeeds without proof that the previous writer has ended.
        forces: bool,
        request: u64,
    },
    /// Ends the claim that had this request number. The program no longer writes.
    EndClaim { name: String, request: u64 },
    /// Lists the names that sort after `after`.
    List { after: Option<String> },
    /// Removes a name.
    Remove { name: String },
    /// Sets or clears the protection of a name against removal and replacement.
    Pin { name: String, pinned: bool },
    /// Brings back memory that was held when a holder and its successor died at the same time.
    TakeBack(Offer),
    /// Asks for the state of the holder.
    Status,
    /// Asks the holder and its successor to release everything and end.
    Stop,
}

#[derive(Serialize, Deserialize, Debug, Default)]
pub struct Hold {
    pub name: String,
    #[serde(default)]
    pub label: String,
    /// Whether the name may already exist. The memory then becomes its next version.
    #[serde(default)]
    pub replaces: bool,
    /// The tokens of the name. If all are absent, an existing name keeps its tokens.
    #[serde(default)]
    pub tokens: Tokens,
    pub parts: Vec<HeldPart>,
    /// A random number that identifies the request, so that a repeated request takes effect only
    /// once. 0 marks a request that is never repeated.
    #[serde(default)]
    pub request: u64,
}

/// Memory of a lost name, offered by a process that has it open for reading.
#[derive(Serialize, Deserialize, Debug)]
pub struct Offer {
    pub name: String,
    pub version: u64,
    pub parts: Vec<OfferedPart>,
}

#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct OfferedPart {
    /// The read-only handle of the part that the previous holder gave out. It proves that the
    /// process was allowed to read.
    #[serde(with = "handle")]
    pub handle: MemoryHandle,
    /// A handle by which the holder can fetch the memory from the process.
    #[serde(with = "handle")]
    pub from: MemoryHandle,
}

/// How the holder verified memory that a reader brought back after both the previous holder and its
/// successor had died.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Recovered {
    /// All parts are the files that were held before, identified by their inode numbers. Their
    /// bytes are unchanged.
    #[serde(rename = "same files")]
    SameFiles,
    /// At least one part is memory of a driver whose descriptors cannot be told apart. The process
    /// that brought it back could have brought other bytes, so openers should verify a hash.
    Unverified,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameFiles => "same files",
            Self::Unverified => "unverified",
        })
    }
}

/// The tokens that programs must present to use a name, if any. The write token also allows
/// reading, and the administration token allows both.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Tokens {
    pub read: Option<String>,
    pub write: Option<String>,
    pub admin: Option<String>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

/// A name that a holder keeps, and the memory that the name refers to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[non_exhaustive]
pub struct HeldName {
    /// The name.
    pub name: String,
    /// The version of the name, counted from 1. Each replacement increments it.
    pub version: u64,
    /// The text that the process set when it handed the memory over.
    pub label: String,
    /// Whether the name is protected against removal and replacement.
    pub pinned: bool,
    /// When the memory was handed over, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// Whether some operations on the name need a token.
    pub has_tokens: bool,
    /// The number of writers that have claimed the name (`Holder::claim`). 0 if no process has.
    #[serde(default)]
    pub epoch: u64,
    /// The process id of the current writer, in the holder's PID namespace. `None` if no process
    /// has claimed the name or the claim has ended. The process itself may have ended.
    #[serde(default)]
    pub writer: Option<u32>,
    /// How the memory was verified, if a process that had it open for reading brought it back
    /// (`Backup`).
    #[serde(default)]
    pub recovered: Option<Recovered>,
    /// The memory.
    pub parts: Vec<HeldPart>,
}

/// One piece of memory under a name.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[non_exhaustive]
pub struct HeldPart {
    /// The role of this part. No other part of the name has the same one.
    pub role: String,
    /// The device, as the process that handed the memory over names it: `host`, `cuda:1`.
    pub device: String,
    /// The kind of the memory.
    pub kind: ObjectKind,
    /// The length in bytes.
    pub bytes: u64,
    /// A read-only handle. `None` in lists.
    #[serde(
        default,
        with = "optional_handle",
        skip_serializing_if = "Option::is_none"
    )]
    pub read_only: Option<MemoryHandle>,
    /// A handle for reading and writing. `None` unless the caller asked for it.
    #[serde(
        default,
        with = "optional_handle",
        skip_serializing_if = "Option::is_none"
    )]
    pub handle: Option<MemoryHandle>,
}

impl HeldName {
    /// Returns the part with the given role, if the name has one.
    pub fn part(&self, role: &str) -> Option<&HeldPart> {
        self.parts.iter().find(|part| part.role == role)
    }

    /// Returns the total size of all parts in bytes.
    pub fn bytes(&self) -> u64 {
        total(&self.parts)
    }
}

/// Returns the total size of some parts in bytes, as stated by their exporter.
pub(crate) fn total(parts: &[HeldPart]) -> u64 {
    parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// A handle in JSON: its text.
pub(crate) mod handle {
    use crosshandle_handle::MemoryHandle;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(it: &MemoryHandle, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(it)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<MemoryHandle, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A handle in JSON that may be absent.
mod optional_handle {
    use crosshandle_handle::MemoryHandle;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Handle(#[serde(with = "super::handle")] MemoryHandle);

    pub(super) fn serialize<S: Serializer>(
        it: &Option<MemoryHandle>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        it.map(Handle).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<MemoryHandle>, D::Error> {
        Ok(Option::<Handle>::deserialize(from)?.map(|it| it.0))
    }
}

/// The reply of a holder.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The holder has the memory. `is_safe` says whether its successor and the journal have it too.
    HandedOver {
        version: u64,
        is_safe: bool,
    },
    Opened(HeldName),
    /// The program is the writer of the name, in its epoch.
    Claimed(HeldName),
    Listed {
        names: Vec<HeldName>,
        more: bool,
    },
    Done,
    Status(Status),
    Refused {
        fault: HolderFault,
        why: String,
    },
}

/// State of a holder.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(default)]
#[non_exhaustive]
pub struct Status {
    /// The process id of the holder, in its own PID namespace.
    pub pid: u32,
    /// The process id of its successor. `None` while there is no successor.
    pub successor: Option<u32>,
    /// Whether no memory would be lost if the holder died now, or died with its successor.
    pub is_safe: bool,
    /// Number of takeovers by a successor since the first holder was started.
    pub takeovers: u64,
    /// Number of names that are held.
    pub names: u64,
    /// Number of bytes that are held.
    pub bytes: u64,
    /// Number of names that are lost: a previous holder had them when it died together with its
    /// successor, and no process has brought them back.
    pub lost: u64,
    /// The reason why `is_safe` is false. It says what would be lost if the holder died now, or
    /// died together with its successor.
    pub why_unsafe: Option<String>,
}

impl Reply {
    /// Returns the reply in a form that the given version of the protocol has.
    pub(crate) fn in_version(self, protocol: u32) -> Self {
        match self {
            Self::Refused {
                fault: HolderFault::Busy | HolderFault::NoRoom,
                why,
            } if protocol < 2 => refused(HolderFault::Refused, why),
            reply => reply,
        }
    }
}

/// Returns the refusal that makes the program repeat its request later.
pub(crate) fn busy(why: impl Into<String>) -> Reply {
    refused(HolderFault::Busy, why)
}

pub(crate) fn refused(fault: HolderFault, why: impl Into<String>) -> Reply {
    Reply::Refused {
        fault,
        why: why.into(),
    }
}

/// Returns the refusal of a request that failed in the holder.
pub(crate) fn refused_by(error: &Error) -> Reply {
    let fault = match error.kind() {
        ErrorKind::ResourceExhausted => HolderFault::NoRoom,
        _ => HolderFault::Refused,
    };
    refused(fault, error.to_string())
}

/// Checks a name. A name cannot be mistaken for a handle, a version, an option or a path.
pub(crate) fn check_name(name: &str) -> Result<()> {
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
    /// Checks everything that can be checked without asking another process.
    pub fn check(&self) -> Result<()> {
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
            if part.read_only.is_none() {
                return Err(Error::invalid(format!(
                    "the part {} has no handle for reading",
                    part.role
                )));
            }
        }
        Ok(())
    }
}

impl HeldPart {
    #[doc(hidden)]
    pub fn new(
        role: impl Into<String>,
        device: impl Into<String>,
        kind: ObjectKind,
        bytes: u64,
        [handle, read_only]: [MemoryHandle; 2],
    ) -> Self {
        Self {
            role: role.into(),
            device: device.into(),
            kind,
            bytes,
            read_only: Some(read_only),
            handle: Some(handle),
        }
    }

    /// Returns the handles of the part: for writing, and for reading only.
    pub(crate) fn handles(&self) -> impl Iterator<Item = MemoryHandle> + use<> {
        self.handle.into_iter().chain(self.read_only)
    }
}

/// An operation on a name that may need a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Right {
    Read,
    Write,
    Admin,
}

impl Tokens {
    pub(crate) fn has_some(&self) -> bool {
        *self != Self::default()
    }

    /// Returns whether the token `shown` allows `right`. The token of a higher right also allows
    /// the lower ones. A right without a token of its own needs that of the next higher right, or
    /// else of the next lower one. Reading needs no token if no read token is set.
    pub(crate) fn allow(&self, right: Right, shown: Option<&str>) -> bool {
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

/// Compares two tokens in a time that does not reveal how many of their bytes agree.
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
            "", "xhm3.abc", "xh", "-n", "/x", "../x", "a b", "a@2", "ä", &long,
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
        // Without an administration token, the write token allows everything.
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
