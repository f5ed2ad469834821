//! Tests of the library for other languages in `crates/crosshandle/examples/beneath_python`.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::Directory;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Mistakes that C allows a caller to make. Each of them must result in an error text.
const MISTAKES: &str = "
import crosshandle
def refused(text, function, *arguments):
    try:
        function(*arguments)
    except crosshandle.Error as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
refused('no device', crosshandle.Context, 'nowhere')
with crosshandle.Context('host') as context, context.create_event() as event:
    refused('is null', crosshandle.call, 'memory_new', None, 8)
    refused('is null', crosshandle.call, 'memory_open', context, None)
    refused('is null', crosshandle.call, 'event_handle', event, None)
    refused('utf-8', crosshandle.call, 'event_open', context, b'\\xff')
    refused('not a handle', context.open_event, 'hello')
    refused('no memory at address 0', context.adopt_memory, 0, 8)
    refused('at least one byte', context.allocate, 0)
    refused('has no driver', context.adopt_queue, 1)
    refused('no driver is behind', getattr, context.create_queue(), 'value')
    refused('timed out', event.wait, 1, 0.01)
    refused('negative', event.wait, 1, -1)
    event.signal()
    event.wait(1, 10)
crosshandle.call('memory_free', None)
";

/// Runs Python with the library, which Cargo builds next to the examples.
fn python(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().expect("this program");
    let profile = test.parent().and_then(Path::parent).expect("a directory");
    let library = profile.join("examples").join("libbeneath_python.so");
    assert!(
        library.exists(),
        "{} is not built; run `cargo build --package crosshandle --examples` first",
        library.display()
    );
    let sockets = Directory::new();
    let python = std::env::var_os("UR_PYTHON").map(PathBuf::from);
    Command::new(python.expect("`cargo xtask test` sets UR_PYTHON"))
        .arg("-B")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/beneath_python"))
        .env("CROSSHANDLE_LIBRARY", library)
        .env(crosshandle::report::SOCKET_DIR_VARIABLE, sockets.path())
        .output()
        .expect("Python starts")
}

/// Runs two processes that share an array. Both have deadlines of their own.
fn share_arrays(options: &[&str]) -> (bool, String) {
    let program = ["share_arrays.py", "numpy", "numpy", "--turns", "20"];
    let output = python(&[&program, options].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

#[test]
#[ignore = "needs a Python with numpy; `cargo xtask test` runs it"]
fn two_processes_compute_on_one_array() {
    let (is_success, said) = share_arrays(&[]);
    assert!(is_success && said.contains("1 passed, 0 skipped"), "{said}");
}

#[test]
#[ignore = "needs a Python with numpy; `cargo xtask test` runs it"]
fn a_wait_that_is_left_out_comes_out() {
    let (is_success, said) = share_arrays(&["--careless"]);
    assert!(
        !is_success && said.contains("elements were wrong"),
        "{said}"
    );
}

#[test]
#[ignore = "needs a Python with numpy; `cargo xtask test` runs it"]
fn mistakes_come_back_as_text() {
    let output = python(&["-c", MISTAKES]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
