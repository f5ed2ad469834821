//! The tables that the checks of the library's structure read.

/// Layers of the library, low to high: the first component of a file's path under
/// `crates/crosshandle/src`. `docs/architecture.md` shows the same list; a test compares the two.
pub(crate) const LAYERS: [&str; 15] = [
    "handle",
    "error",
    "sync",
    "observe",
    "types",
    "os",
    "threads",
    "platform",
    "event_protocol",
    "ipc",
    "hal",
    "pool",
    "api",
    "fuzzing",
    "lib",
];

/// Places of the library, as prefixes of paths, that may contain `unsafe`.
pub(crate) const MAY_BE_UNSAFE: [&str; 5] = [
    "hal/",
    "os/",
    "ipc/",
    "types/shared_bytes/",
    // Passes a driver's own objects between the program and a backend.
    "api/context/native.rs",
];

/// Crates of bindings, with the only place that may name each of them.
pub(crate) const BINDINGS: [(&str, &str); 3] = [
    ("cudarc", "hal/cuda/"),
    ("opencl_cpu", "hal/host/"),
    ("level_zero_sys", "hal/level_zero/"),
];

/// Most entries that a directory under `crates/*/src` may have.
pub(crate) const MAX_ENTRIES: usize = 14;

/// Directories that may have more entries than [`MAX_ENTRIES`], each with the reason.
pub(crate) const LARGE_DIRECTORIES: [(&str, &str); 4] = [
    (
        "crates/crosshandle-cli/src/commands",
        "a flat list, one file for each subcommand",
    ),
    ("crates/crosshandle/src", "an entry for each layer"),
    (
        "crates/conformance/src/cases",
        "a flat list of topics, one file for each",
    ),
    (
        "crates/level-zero-sim/src",
        "a stand-in for a driver, as flat as the driver's interface, for tests only",
    ),
];

/// Crates whose threads, times and identifiers are checked: what runs inside of a user's process.
pub(crate) const IN_USERS_PROCESS: [&str; 2] = ["crates/crosshandle/src", "crates/ur-adapter/src"];

/// A word that the code used to have, and the term that replaced it.
pub(crate) struct Retired {
    pub(crate) word: &'static str,
    pub(crate) instead: &'static str,
    pub(crate) place: Place,
}

/// Where a retired word is a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In comments and as a part of an identifier.
    Anywhere,
    /// As a part of an identifier: in comments it is ordinary English.
    Identifiers,
    /// As a whole identifier.
    WholeIdentifier,
}

const fn retired(word: &'static str, instead: &'static str) -> Retired {
    let place = Place::Anywhere;
    Retired {
        word,
        instead,
        place,
    }
}

const fn retired_identifier(word: &'static str, instead: &'static str) -> Retired {
    let place = Place::Identifiers;
    Retired {
        word,
        instead,
        place,
    }
}

const fn retired_name(word: &'static str, instead: &'static str) -> Retired {
    let place = Place::WholeIdentifier;
    Retired {
        word,
        instead,
        place,
    }
}

/// Words that are no longer used, in lower case but for whole identifiers.
pub(crate) const RETIRED: &[Retired] = &[
    retired("lane", "stream (CUDA), command list (Level Zero)"),
    retired("caretaker", "scheduler"),
    retired("leftover", "deferred drop"),
    retired("companion", "native mirror"),
    retired("bury", "fail_orphans"),
    retired("buried", "failed orphans"),
    retired("lingering", "deferred reclaim"),
    retired("lingers", "is reclaimed later"),
    retired("nudge", "wake ticker"),
    retired("nap", "backoff"),
    retired("keeper", "liveness lock"),
    retired("chore", "deferred driver call"),
    retired("visitor", "peer device"),
    retired("backlog", "in flight"),
    retired_identifier("witness", "complete_observed"),
    retired_name("discard", "deferred drop"),
    retired_name("settle", "a verb that says of what: record_finished"),
    retired_identifier("traffic", "stream admission"),
    retired_identifier("foreign", "external memory"),
    retired_identifier("lent", "loaned descriptor"),
    retired_identifier("leaving", "drain"),
    retired_name("Gate", "context guard, or HostFence"),
    retired_name("Family", "set of physical handles"),
    retired_name("PATIENCE", "a name that says of what, with its unit"),
    retired_name("Held", "pending"),
    retired_name("Over", "completion flag"),
    retired_name("Note", "BackendBlob"),
    retired_name("Place", "Operand"),
    retired_name("Keep", "KeepAlive"),
    retired_name("Points", "WaitList"),
    retired_name("Stock", "stream pool"),
    retired_name("Turns", "runs of own signals"),
    retired_name("LONGEST", "a name that says of what, with its unit"),
    retired_name("SHORTEST", "a name that says of what, with its unit"),
    retired_name("MOST", "a name that says of what, with its unit"),
    retired_name("SHORT", "a name that says of what, with its unit"),
];
