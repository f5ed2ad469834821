//! A holder in a separate process, and a store that uses it.

#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../../../crosshandle/tests/common/mod.rs"]
pub(crate) mod common;

use common::{Directory, Parent, Process, is};
use crosshandle::holder::{self, ServeOptions};
use crosshandle_store::{NamedBytes, Store};

pub(crate) const HOLDER: &str = "holder";

/// Runs a holder until the parent hangs up, if this process was started as one. Returns `true` in
/// that case.
pub(crate) fn holds() -> bool {
    if !is(HOLDER) {
        return false;
    }
    let mut parent = Parent::new();
    let stop = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
    let options = ServeOptions::new()
        .socket_dir(Directory::inherited().path())
        .stop_when_readable(stop.expect("a descriptor"));
    holder::serve(options, || parent.say("ready")).expect("it held");
    true
}

/// Starts a process, and waits for its first line.
pub(crate) fn start(test: &str, role: &str, directory: &Directory, expected: &str) -> Process {
    let mut process = Process::start(test, role, directory);
    assert_eq!(process.hear(), expected);
    process
}

pub(crate) fn start_holder(test: &str, directory: &Directory) -> Process {
    start(test, HOLDER, directory, "ready")
}

pub(crate) fn store(directory: &Directory) -> Store {
    Store::new().socket_dir(directory.path())
}

/// Returns a tensor of these bytes.
pub(crate) fn named<'a>(name: &str, bytes: &'a [u8]) -> NamedBytes<'a> {
    NamedBytes {
        name: name.into(),
        dtype: "U8".into(),
        shape: vec![bytes.len() as u64],
        bytes,
    }
}
