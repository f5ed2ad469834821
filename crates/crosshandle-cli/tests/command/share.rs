//! `share` and `read` between real processes.

use crate::common::{Running, Sandbox, contents, text};
use crosshandle::{Context, ContextOptions, Device, Error, MemoryHandle};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::fs;
use std::process::Stdio;

#[test]
fn a_small_and_a_large_file_cross() {
    for len in [1, 100, 4096, (5 << 20) + 123] {
        let sandbox = Sandbox::new();
        let file = sandbox.file("data", &contents(len));
        let (holder, handle) = sandbox.hold(["share", text(&file)]);
        let read = sandbox.run(["read", &handle]).expect(0);
        assert!(read.stdout == contents(len), "{len} bytes");
        let copy = sandbox.path("copy");
        let read = sandbox.run(["read", &handle, "-o", text(&copy)]).expect(0);
        assert!(read.stdout.is_empty());
        assert!(fs::read(&copy).expect("written") == contents(len));
        holder.signal(Signal::TERM);
        let held = holder.finish().expect(0);
        assert!(held.stdout.is_empty(), "the handle alone");
    }
}

#[test]
fn parts_are_read() {
    let sandbox = Sandbox::new();
    let all = contents(3 << 20);
    let file = sandbox.file("data", &all);
    let (_holder, handle) = sandbox.hold(["share", text(&file)]);
    let read = |arguments: &[&str]| sandbox.run([&["read", &handle], arguments].concat());

    assert!(read(&["--offset", "3MiB"]).expect(0).stdout.is_empty());
    assert!(read(&["--length", "0"]).expect(0).stdout.is_empty());
    let part = read(&["--offset", "1000000", "--length", "1234567"]).expect(0);
    assert!(part.stdout == all[1_000_000..2_234_567]);
    let end = read(&["--offset", "3145720"]).expect(0);
    assert!(end.stdout == all[3_145_720..]);
    let first = read(&["--length", "1KiB"]).expect(0);
    assert!(first.stdout == all[..1024]);

    for outside in [
        &["--offset", "3145729"][..],
        &["--length", "3145729"],
        &["--offset", "1", "--length", "18446744073709551615"],
    ] {
        let refused = read(outside).expect(1);
        assert!(
            refused.stderr.contains("3145728 bytes"),
            "{}",
            refused.stderr
        );
        assert!(refused.stdout.is_empty());
    }
}

#[test]
fn a_read_only_handle_grants_reading_only() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", &contents(10_000));
    let (_holder, handle) = sandbox.hold(["share", text(&file), "--read-only"]);
    let read = sandbox.run(["read", &handle]).expect(0);
    assert!(read.stdout == contents(10_000));
    let explained = sandbox.run(["inspect", &handle, "--json"]).expect(0).json();
    assert_eq!(explained["memory"]["read_only"], true);

    let device = Device::find("host").expect("the host is always there");
    let options = ContextOptions::new().socket_dir(sandbox.sockets());
    let context = Context::with_options(&device, options).expect("a context");
    let handle: MemoryHandle = handle.parse().expect("a handle");
    assert!(matches!(context.open_memory(&handle), Err(Error::ReadOnly)));
}

#[test]
fn a_signal_ends_it_and_removes_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let sandbox = Sandbox::new();
        let file = sandbox.file("data", b"bytes");
        let (holder, handle) = sandbox.hold(["share", text(&file)]);
        assert_eq!(sandbox.listed_sockets().len(), 1);
        holder.signal(signal);
        holder.finish().expect(0);
        assert_eq!(sandbox.listed_sockets(), Vec::<String>::new());
        let read = sandbox.run(["read", &handle]).expect(4);
        assert!(read.stderr.contains("is gone"), "{}", read.stderr);
    }
}

#[test]
fn a_killed_exporter_is_gone() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", b"bytes");
    let (holder, handle) = sandbox.hold(["share", text(&file)]);
    holder.signal(Signal::KILL);
    crate::common::wait_for_end(holder.pid());
    let read = sandbox.run(["read", &handle]).expect(4);
    assert!(read.stdout.is_empty());
}

#[test]
fn a_handle_on_standard_input_and_another_socket_directory() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", b"some bytes");
    let elsewhere = sandbox.path("other");
    let (_holder, handle) = sandbox.hold(["share", text(&file), "--socket-dir", text(&elsewhere)]);
    assert_eq!(sandbox.listed_sockets(), Vec::<String>::new());
    sandbox.run(["read", &handle]).expect(4);

    let input = sandbox.file("handle", format!("{handle}\n").as_bytes());
    let mut command = sandbox.command(["--socket-dir", text(&elsewhere), "read", "-"]);
    command.stdin(fs::File::open(input).expect("the handle"));
    let output = command.output().expect("it runs");
    assert_eq!(output.stdout, b"some bytes");
}

#[test]
fn a_closed_output_is_no_error() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", &contents(4 << 20));
    let (_holder, handle) = sandbox.hold(["share", text(&file)]);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let mut command = sandbox.command(["read", &handle]);
    let child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(command);
    let mut first = [0; 10];
    rustix::io::read(&reader, &mut first).expect("its first bytes");
    drop(reader);
    crate::common::wait_for_end(rustix::process::Pid::from_child(&child));
    let output = child.wait_with_output().expect("it has ended");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(first, contents(10)[..]);
}

#[test]
fn what_cannot_be_shared_is_refused_clearly() {
    let sandbox = Sandbox::new();
    let empty = sandbox.file("empty", b"");
    let file = sandbox.file("data", b"bytes");
    for (arguments, reason) in [
        (vec!["share", text(&empty)], "is empty"),
        (
            vec!["share", text(&sandbox.sockets())],
            "not a regular file",
        ),
        (vec!["share", "/nowhere/at/all"], "No such file"),
        (vec!["share", text(&file), "--device", "host:7"], "host:7"),
        (vec!["share", text(&file), "--device", "abacus"], "abacus"),
    ] {
        let refused = sandbox.run(arguments).expect(1);
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
        assert!(refused.stdout.is_empty());
    }
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", b"bytes");
    let (_holder, handle) = sandbox.hold(["share", text(&file)]);
    let refused = sandbox
        .run(["read", &handle, "-o", "/nowhere/file"])
        .expect(1);
    assert!(
        refused.stderr.contains("/nowhere/file"),
        "{}",
        refused.stderr
    );
    let full = fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let mut command = sandbox.command(["read", &handle]);
    let output = command.stdout(full).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_importer_keeps_the_bytes_of_a_dead_exporter() {
    let sandbox = Sandbox::new();
    let all = contents(4 << 20);
    let file = sandbox.file("data", &all);
    let (holder, handle) = sandbox.hold(["share", text(&file)]);
    // The pipe holds less than the file, so the reader is not done when the exporter dies.
    let (input, output) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let mut command = sandbox.command(["read", &handle]);
    let child = command.stdout(output).spawn().expect("it starts");
    drop(command);
    let mut read = vec![0; all.len()];
    let mut source = fs::File::from(input);
    std::io::Read::read_exact(&mut source, &mut read[..10]).expect("its first bytes");
    holder.signal(Signal::KILL);
    crate::common::wait_for_end(holder.pid());
    std::io::Read::read_exact(&mut source, &mut read[10..]).expect("the rest");
    assert!(read == all);
    let pid = rustix::process::Pid::from_child(&child);
    crate::common::wait_for_end(pid);
    assert_eq!(
        child.wait_with_output().expect("ended").status.code(),
        Some(0)
    );
}

#[test]
fn verbose_says_what_is_held() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", b"bytes");
    let mut holder = Running::start(sandbox.command(["-v", "share", text(&file)]));
    holder.stdout.line();
    let said = holder.stderr.line();
    assert!(said.contains("5 B"), "{said}");
}
