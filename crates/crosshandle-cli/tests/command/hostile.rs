//! Hostile texts of other programs. No command may print characters that a terminal or a JSON
//! viewer would interpret.

use crate::common::{Finished, Sandbox, text};
use crate::holder::Pair;
use crosshandle::holder::{HoldOptions, Holder};
use crosshandle::{Context, ContextOptions, Device, Memory};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;

/// Escape sequences of both kinds, marks of direction, a carriage return, and characters without
/// width.
const HOSTILE: &str =
    "t\u{1b}[31m\u{9b}2J\u{202e}x\u{2066}\u{200f}\rcrosshandle: all is well\u{feff}";

fn is_obeyed(c: char) -> bool {
    let is_mark = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    (c.is_control() && c != '\n') || is_mark
}

/// Checks the output and returns it.
fn check(what: &str, finished: Finished) -> String {
    let shown = format!("{}{}", finished.text(), finished.stderr);
    assert!(
        !shown.contains(is_obeyed),
        "{what}: {:?}",
        shown.replace(|c: char| !is_obeyed(c), "")
    );
    assert!(!shown.contains("panicked"), "{what}: {shown}");
    shown
}

fn file(sandbox: &Sandbox, name: &str, header: &serde_json::Value, data: usize) -> String {
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 1);
    text(&sandbox.file(name, &bytes)).to_owned()
}

/// Hands over memory that looks like a model, with the given manifest.
fn hand_over(context: &Context, holder: &Holder, name: &str, manifest: &[u8]) -> Vec<Memory> {
    let parts = [vec![0; 4096], manifest.to_vec(), vec![0; 4128]];
    let memory = parts.map(|bytes| {
        let memory = context.allocate(bytes.len()).expect("memory");
        memory.write(0, &bytes).expect("inside");
        memory.set_name(HOSTILE);
        memory
    });
    let parts = ["data", "manifest", "state"].into_iter().zip(&memory);
    let parts: Vec<_> = parts.collect();
    let options = HoldOptions::new().label(HOSTILE);
    holder.hand_over(name, &parts, options).expect("held");
    memory.into()
}

#[test]
fn no_command_prints_what_a_terminal_obeys() {
    let sandbox = Sandbox::new();
    let _pair = Pair::start(&sandbox);
    // A program, a context, memory and an event with hostile names, and a holder with a hostile
    // label.
    fs::write("/proc/self/comm", "t\u{1b}[31m\u{202e}x").expect("a name of this process");
    let options = ContextOptions::new()
        .socket_dir(sandbox.sockets())
        .pooling(false)
        .name(HOSTILE);
    let device = Device::find("host").expect("there is always a host");
    let context = Context::with_options(&device, options).expect("a context");
    let event = context.create_event().expect("an event");
    event.set_name(HOSTILE);
    let handle = event.handle().expect("a handle").to_string();
    let _submitted = event.signal().expect("signalled");
    let holder = Holder::new().socket_dir(sandbox.sockets());
    let manifest = serde_json::to_vec(HOSTILE).expect("plain data");
    let _memory = hand_over(&context, &holder, "strange", &manifest);
    let begin = r#"{"format":1,"bytes":4096,"data_hash":"","tensors":{"#;
    let name = serde_json::to_string(HOSTILE).expect("plain data");
    let manifest = format!(
        r#"{begin}{name}:{{"dtype":"U8","shape":[1],"offset":256,"bytes":9}}}},"metadata":{{}}}}"#
    );
    let _others = hand_over(&context, &holder, "tensors", manifest.as_bytes());

    let tensor = |shape: u64| serde_json::json!({ HOSTILE: {"dtype": "U8", "shape": [shape], "data_offsets": [0, 4]} });
    let good = file(&sandbox, "good.safetensors", &tensor(4), 4);
    let bad = file(&sandbox, "bad.safetensors", &tensor(5), 4);
    let named = file(&sandbox, &HOSTILE.replace('/', ""), &tensor(5), 4);
    let index = serde_json::json!({"weight_map": {HOSTILE: "good.safetensors", "u": HOSTILE}});
    let index = sandbox.file("a.json", index.to_string().as_bytes());
    let index = text(&index);
    let missing = serde_json::json!({"weight_map": {format!("{HOSTILE}2"): "good.safetensors"}});
    let missing = sandbox.file("b.json", missing.to_string().as_bytes());
    let missing = text(&missing);
    let token = sandbox.path("token");
    sandbox.run(["link", "token", text(&token)]).expect(0);
    let token = text(&token);
    let listens = ["link", "listen", "127.0.0.1:0", "--names", "--token", token];
    let (_listening, address) = sandbox.hold(listens);

    let commands: &[&[&str]] = &[
        &["ls"],
        &["ls", "--json"],
        &["ps"],
        &["ps", "--all"],
        &["ps", "--json"],
        &["top", "--once"],
        &["hold", "--check"],
        &["hold", "--check", "--json"],
        &["event", "status", &handle],
        &["load", &bad, "--name", "n"],
        &["load", &bad, "--name", "n", "--log-format", "json"],
        &["load", &named, "--name", "n"],
        &["load", index, "--name", "n"],
        &["load", missing, "--name", "n"],
        &["load", &good, &good, "--name", "n"],
        &["load", &good, "--name", "good", "--verbose"],
        &["load", &good, "--name", HOSTILE],
        &["verify", "strange"],
        &["verify", "tensors"],
        &["verify", "good"],
        &["verify", HOSTILE],
        &["rm", HOSTILE],
        &["pin", HOSTILE],
        &["revoke", HOSTILE],
        &["share", &named, "--name", HOSTILE],
        &[
            "pull", "strange", "--from", &address, "--as", "p", "--token", token,
        ],
        &[
            "pull", "tensors", "--from", &address, "--as", "p", "--token", token,
        ],
        &[
            "pull", HOSTILE, "--from", &address, "--as", "p", "--token", token,
        ],
        &["inspect", HOSTILE],
        &["read", HOSTILE],
        &["doctor"],
        &["gc"],
    ];
    let mut hostile = 0;
    for command in commands {
        let shown = check(&command.join(" "), sandbox.run(*command));
        hostile += usize::from(shown.contains("all is well") || shown.contains("\u{fffd}"));
    }
    // Most commands have printed some of the hostile text.
    assert!(hostile >= 12, "{hostile}");
    let listed = sandbox.run(["ls", "--json"]).expect(0).json();
    assert!(
        listed
            .as_array()
            .expect("names")
            .iter()
            .any(|name| name["label"] == HOSTILE),
        "JSON keeps its values: {listed}"
    );
}

#[test]
fn what_is_no_regular_file_is_an_error() {
    let sandbox = Sandbox::new();
    let _pair = Pair::start(&sandbox);
    let fifo = sandbox.path("fifo.safetensors");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    let begin = Instant::now();
    for path in [text(&fifo), "/dev/zero", text(&sandbox.sockets())] {
        sandbox.run(["load", path, "--name", "n"]).expect(1);
        sandbox.run(["share", path]).expect(1);
    }
    assert!(begin.elapsed() < crate::common::STEP_TIMEOUT / 2);
}

#[test]
fn a_socket_directory_need_not_be_utf_8() {
    let outer = Sandbox::new();
    let mut path = outer.path("sockets").into_os_string().into_vec();
    path.push(0xff);
    let path = std::path::PathBuf::from(std::ffi::OsString::from_vec(path));
    fs::create_dir(&path).expect("a directory");
    let sandbox = Sandbox::with_sockets(&path);
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("ours");
    let pair = Pair::start(&sandbox);
    let bytes = sandbox.file("bytes", &[1; 5000]);
    sandbox
        .run(["share", text(&bytes), "--name", "b"])
        .expect(0);
    crate::holder::kill(pair.await_safe().0);
    pair.await_safe();
    let listed = sandbox.run(["ls", "--json"]).expect(0).json();
    assert_eq!(listed[0]["name"], "b");
    for command in ["ls", "ps", "gc"] {
        sandbox.run([command]).expect(0);
    }
}

#[test]
fn a_stack_of_64_kib_is_enough() {
    let sandbox = Sandbox::new();
    let limited = |arguments: &[&str]| {
        let script = r#"ulimit -s 64 && exec "$@""#;
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_crosshandle")])
            .args(arguments)
            .env(crosshandle::report::SOCKET_DIR_VARIABLE, sandbox.sockets());
        crate::common::Running::start(command)
    };
    let run = |arguments: &[&str]| limited(arguments).finish().expect(0);
    let _holder = limited(&["hold"]);
    let begin = Instant::now();
    while sandbox.run(["hold", "--check"]).code() != Some(0) {
        assert!(begin.elapsed() < crate::common::STEP_TIMEOUT);
    }
    let header = serde_json::json!({"t": {"dtype": "U8", "shape": [9_000_000], "data_offsets": [0, 9_000_000]}});
    let model = file(&sandbox, "m.safetensors", &header, 9_000_000);
    for command in [
        &["load", &model, "--name", "m"][..],
        &["verify", "m"],
        &["ls"],
        &["ps"],
        &["top", "--once"],
        &["devices"],
        &["demo", "--size", "1MiB"],
    ] {
        run(command);
    }
    run(&["hold", "--stop"]);
}
