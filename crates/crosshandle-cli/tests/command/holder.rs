//! The holder, and the commands that send it requests.

use crate::common::{Running, STEP_TIMEOUT, Sandbox, contents, text};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

/// A holder and its successor, which end with the test.
pub(crate) struct Pair<'a> {
    sandbox: &'a Sandbox,
    _first: Running,
}

impl<'a> Pair<'a> {
    pub(crate) fn start(sandbox: &'a Sandbox) -> Self {
        let pair = Self::of(sandbox, sandbox.start(["hold"]));
        pair.await_safe();
        pair
    }

    /// Uses a holder that is already running.
    pub(crate) fn of(sandbox: &'a Sandbox, first: Running) -> Self {
        Self {
            sandbox,
            _first: first,
        }
    }

    /// Waits until the successor is complete. Returns the process IDs of both.
    pub(crate) fn await_safe(&self) -> (u32, u32) {
        let begin = Instant::now();
        loop {
            let checked = self.sandbox.run(["hold", "--check"]);
            if checked.code() == Some(0) {
                let words: Vec<_> = checked.text().split(' ').collect();
                let after = |word: &str, nth: usize| {
                    let mut found = words.iter().enumerate().filter(|(_, it)| **it == word);
                    let (index, _) = found.nth(nth).expect("the words of a holder");
                    words[index + 1].parse().expect("a process")
                };
                return (after("process", 0), after("process", 1));
            }
            assert!(begin.elapsed() < STEP_TIMEOUT, "{}", checked.stderr);
        }
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        let _ = self.sandbox.run(["hold", "--stop"]);
    }
}

pub(crate) fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
    kill_process(pid, Signal::KILL).expect("it lives");
}

/// Returns the bytes of a file with one tensor.
pub(crate) fn small_model() -> Vec<u8> {
    let header = br#"{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header, &[1; 4]].concat()
}

/// Makes a file with two tensors.
fn model(sandbox: &Sandbox, name: &str, len: usize) -> PathBuf {
    let header = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}},"b":{{"dtype":"F32","shape":[2,3],"data_offsets":[{len},{}]}}}}"#,
        len + 24
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(contents(len + 24));
    sandbox.file(name, &bytes)
}

#[test]
fn a_model_comes_back_from_a_reader_that_keeps_it() {
    let sandbox = Sandbox::new();
    let file = model(&sandbox, "model.safetensors", 1 << 20);
    let pair = Pair::start(&sandbox);
    sandbox.run(["load", text(&file), "--name", "m"]).expect(0);
    sandbox.run(["load", text(&file), "--name", "n"]).expect(0);
    let mut reader = sandbox
        .command(["verify", "m", "--stay", "--keep"])
        // The reader runs until its standard input is closed.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a reader");
    let mut verified = String::new();
    BufReader::new(reader.stdout.take().expect("piped"))
        .read_line(&mut verified)
        .expect("it is verified");
    let (holder, successor) = pair.await_safe();
    // The holder is stopped, so that it cannot start another successor.
    let pid = Pid::from_raw(holder.try_into().expect("a process")).expect("a process");
    kill_process(pid, Signal::STOP).expect("it lives");
    kill(successor);
    kill(holder);
    let begin = Instant::now();
    while sandbox.run(["ls"]).code() == Some(0) {
        assert!(begin.elapsed() < STEP_TIMEOUT, "somebody holds still");
    }
    let pair = Pair::start(&sandbox);
    let begin = Instant::now();
    while sandbox.run(["verify", "m"]).code() != Some(0) {
        assert!(begin.elapsed() < STEP_TIMEOUT, "it does not come back");
    }
    assert_eq!(verified, sandbox.run(["verify", "m"]).expect(0).text());
    let listed = sandbox.run(["ls", "--json"]).expect(0).json();
    assert_eq!(listed[0]["recovered"], "same files");
    let listed = sandbox.run(["ls"]).expect(0);
    assert!(listed.text().contains("recovered"), "{}", listed.text());
    let checked = sandbox.run(["hold", "--check"]).expect(0);
    assert!(
        checked.text().contains("1 name(s) of a holder"),
        "{}",
        checked.text()
    );
    let lost = sandbox.run(["verify", "n"]).expect(1);
    assert!(lost.stderr.contains("died together"), "{}", lost.stderr);
    drop(reader.stdin.take());
    assert!(reader.wait().expect("our child").success());
    drop(pair);
}

#[test]
fn a_model_outlives_its_loader_and_the_holder() {
    let sandbox = Sandbox::new();
    let file = model(&sandbox, "model.safetensors", 1 << 20);
    let load = ["load", text(&file), "--name", "m"];
    let alone = sandbox.run(load).expect(1);
    assert!(
        alone.stderr.contains("crosshandle hold"),
        "{}",
        alone.stderr
    );
    let pair = Pair::start(&sandbox);
    let empty = sandbox.run(["ps"]).expect(0);
    assert!(empty.text().contains("crosshandle"), "{}", empty.text());
    let loaded = sandbox.run(load).expect(0);
    assert!(loaded.text().contains("2 tensors"), "{}", loaded.text());
    let hash = loaded
        .text()
        .trim_end()
        .rsplit(' ')
        .next()
        .expect("a hash")
        .to_owned();
    let taken = sandbox.run(load).expect(1);
    assert!(taken.stderr.contains("--replace"), "{}", taken.stderr);
    for _ in 0..2 {
        let (holder, _) = pair.await_safe();
        kill(holder);
        let verified = sandbox.run(["verify", "m", "--expect", &hash]).expect(0);
        assert!(verified.text().contains(&hash));
    }
    sandbox
        .run(["verify", "m", "--expect", &"0".repeat(64)])
        .expect(1);
    sandbox
        .run(["load", text(&file), "--name", "m", "--replace"])
        .expect(0);
    let listed = sandbox.run(["ls", "--json"]).expect(0).json();
    assert_eq!(listed[0]["name"], "m");
    assert_eq!(listed[0]["version"], 2);
    assert_eq!(listed[0]["label"], hash);
    let shown = sandbox.run(["ps"]).expect(0);
    assert!(shown.text().contains("\"m/data\""), "{}", shown.text());
    sandbox.run(["pin", "m"]).expect(0);
    let pinned = sandbox.run(["rm", "m"]).expect(1);
    assert!(pinned.stderr.contains("pinned"), "{}", pinned.stderr);
    sandbox.run(["pin", "m", "--undo"]).expect(0);
    sandbox.run(["rm", "m"]).expect(0);
    assert_eq!(sandbox.run(["ls"]).expect(0).text(), "");
    let gone = sandbox.run(["verify", "m"]).expect(1);
    assert!(gone.stderr.contains("crosshandle ls"), "{}", gone.stderr);
    sandbox
        .run(["load", text(&file), "--name", "xhm3.m"])
        .expect(1);
}

#[test]
fn shared_bytes_are_handed_over_by_name() {
    let sandbox = Sandbox::new();
    let pair = Pair::start(&sandbox);
    let bytes = contents(200_000);
    let file = sandbox.file("bytes", &bytes);
    let shared = sandbox
        .run(["share", text(&file), "--name", "bytes"])
        .expect(0);
    let handle = shared.text().trim_end().to_owned();
    assert!(sandbox.run(["read", &handle]).expect(0).stdout == bytes);
    kill(pair.await_safe().0);
    assert!(sandbox.run(["read", &handle]).expect(0).stdout == bytes);
    sandbox.run(["hold"]).expect(1);
    sandbox.run(["hold", "--stop"]).expect(0);
    sandbox.run(["read", &handle]).expect(4);
    // The killed process has left its socket behind. The stopped one may still be ending.
    let begin = Instant::now();
    while sandbox.listed_sockets() != ["holder.lock"] {
        let left = sandbox.listed_sockets();
        assert!(begin.elapsed() < STEP_TIMEOUT, "also left: {left:?}");
        sandbox.run(["gc"]).expect(0);
    }
}

#[test]
fn a_service_manager_is_told_who_holds() {
    let sandbox = Sandbox::new();
    let told = UnixDatagram::bind(sandbox.path("notify")).expect("a socket");
    told.set_read_timeout(Some(STEP_TIMEOUT))
        .expect("a timeout");
    let mut command = sandbox.command(["hold"]);
    command.env("NOTIFY_SOCKET", sandbox.path("notify"));
    let pair = Pair {
        sandbox: &sandbox,
        _first: Running::start(command),
    };
    let hear = || {
        let mut buffer = [0; 64];
        let len = told.recv(&mut buffer).expect("it says something");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    let (holder, successor) = pair.await_safe();
    kill(holder);
    assert_eq!(hear(), format!("MAINPID={successor}\nREADY=1"));
    let (_, next) = pair.await_safe();
    // A successor that gets SIGTERM ends at once, and not only after it has taken over.
    let next_pid = Pid::from_raw(next.try_into().expect("a process")).expect("a process");
    kill_process(next_pid, Signal::TERM).expect("it lives");
    let begin = Instant::now();
    while pair.await_safe().1 == next {
        assert!(begin.elapsed() < STEP_TIMEOUT, "it lives on");
    }
    assert_eq!(pair.await_safe().0, successor);
    assert!(fs::exists(sandbox.sockets().join("holder.sock")).expect("known"));
}

#[test]
fn a_socket_of_the_service_manager_is_taken_and_left() {
    let sandbox = Sandbox::new();
    let path = sandbox.sockets().join("holder.sock");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = listener.expect("a socket");
    bind(
        &listener,
        &SocketAddrUnix::new(&path).expect("a short path"),
    )
    .expect("bound");
    listen(&listener, 16).expect("listening");
    // The protocol uses descriptor 3, and the ID of the process that gets it.
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" hold";
    let mut child = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_crosshandle")])
        .env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets())
        .stdin(listener)
        .spawn()
        .expect("a holder");
    // The request can be sent before the holder runs, because its socket already exists.
    let listed = sandbox.run(["ls"]).expect(0);
    assert_eq!(listed.text(), "");
    let file = sandbox.file("bytes", &contents(5000));
    sandbox
        .run(["share", text(&file), "--name", "bytes"])
        .expect(0);
    child.kill().expect("it lives");
    child.wait().expect("our child");
    assert!(sandbox.run(["ls"]).expect(0).text().contains("bytes"));
    sandbox.run(["hold", "--stop"]).expect(0);
    assert!(path.exists(), "it is the service manager's");
}

/// A model is copied from one host's holder to another's. Only a model with the expected hashes is
/// accepted.
#[test]
fn a_model_is_pulled_from_another_host() {
    let (owner, user) = (Sandbox::new(), Sandbox::new());
    let file = model(&owner, "model.safetensors", (9 << 20) + 3);
    let (_owners, _users) = (Pair::start(&owner), Pair::start(&user));
    let loaded = owner.run(["load", text(&file), "--name", "m"]).expect(0);
    let hash = loaded.text().trim_end().rsplit(' ').next().expect("a hash");
    let token = owner.path("token");
    owner.run(["link", "token", text(&token)]).expect(0);
    let token = ["--token", text(&token)];
    let listen = |names: &[&str]| {
        let listens = [&["link", "listen", "127.0.0.1:0"], &token[..], names].concat();
        owner.hold(listens)
    };
    let pull = |address: &str, more: &[&str]| {
        let pulls = [&["pull", "m", "--from", address], &token[..], more].concat();
        user.run(pulls)
    };
    // Only a listener with `--names` serves names.
    let (_closed, address) = listen(&[]);
    let refused = pull(&address, &[]).expect(1);
    let is_refused = refused.stderr.contains("does not allow lookups of names");
    assert!(is_refused, "{}", refused.stderr);
    let (_open, address) = listen(&["--names"]);
    let other = "0".repeat(64);
    let refused = pull(&address, &["--expect", &other]).expect(1);
    assert!(refused.stderr.contains("nothing was published"));
    assert_eq!(
        user.run(["ls", "--json"]).expect(0).json(),
        serde_json::json!([])
    );

    let pulled = pull(&address, &["--expect", hash]).expect(0);
    assert!(pulled.text().contains(hash), "{}", pulled.text());
    user.run(["verify", "m", "--expect", hash]).expect(0);
    let taken = pull(&address, &[]).expect(1);
    assert!(taken.stderr.contains("--replace"), "{}", taken.stderr);
    pull(&address, &["--as", "copy"]).expect(0);
    pull(&address, &["--replace"]).expect(0);
    let listed = user.run(["ls", "--json"]).expect(0).json();
    assert_eq!(
        (&listed[0]["name"], &listed[1]["version"]),
        (&"copy".into(), &2.into())
    );
    let missing = user
        .run([&["pull", "n", "--from", &address], &token[..]].concat())
        .expect(1);
    assert!(missing.stderr.contains("rejected"), "{}", missing.stderr);
}

/// The manifest of a hostile host may claim anything. Pulling its model fails with a reason, and
/// publishes nothing.
#[test]
fn a_hostile_model_is_not_pulled() {
    let (owner, user) = (Sandbox::new(), Sandbox::new());
    let (_owners, _users) = (Pair::start(&owner), Pair::start(&user));
    let token = owner.path("token");
    owner.run(["link", "token", text(&token)]).expect(0);
    let token = ["--token", text(&token)];
    let listens = [&["link", "listen", "127.0.0.1:0", "--names"], &token[..]].concat();
    let (_listener, address) = owner.hold(listens);

    let device = crosshandle::Device::find("host").expect("the host");
    let options = crosshandle::ContextOptions::new().socket_dir(owner.sockets());
    let options = options.pooling(false);
    let context = crosshandle::Context::with_options(&device, options).expect("a context");
    let holder = crosshandle::holder::Holder::new().socket_dir(owner.sockets());
    let attack = |name: &str, bytes: u64, tensor: [u64; 3], length: usize| {
        let [offset, len, shape] = tensor;
        let manifest = serde_json::json!({
            "format": 1, "bytes": bytes, "data_hash": null, "metadata": {},
            "tensors": {"t": {"dtype": "U8", "shape": [shape], "offset": offset, "bytes": len}},
        });
        let mut manifest = manifest.to_string().into_bytes();
        manifest.resize(length.max(manifest.len()), b' ');
        let listing = context.allocate(manifest.len()).expect("memory");
        listing.write(0, &manifest).expect("it is written");
        let data = context.allocate(4096).expect("memory");
        let parts = [("data", &data), ("manifest", &listing)];
        let hold = crosshandle::holder::HoldOptions::new();
        holder.hand_over(name, &parts, hold).expect("it is held");
        let pulls = [&["pull", name, "--from", &address], &token[..]].concat();
        let refused = user.run(pulls).expect(1);
        assert!(!refused.stderr.contains("panicked"), "{}", refused.stderr);
        refused.stderr
    };
    for (index, claim) in [1u64 << 40, 1 << 62, 1 << 63, u64::MAX]
        .into_iter()
        .enumerate()
    {
        for (of, bytes, tensor) in [
            ("bytes", claim, [0, claim, claim]),
            ("length", 4096, [0, claim, claim]),
            ("offset", 4096, [claim & !255, 256, 256]),
        ] {
            let why = attack(&format!("{of}{index}"), bytes, tensor, 0);
            assert!(why.contains("nothing was published"), "{of} {claim}: {why}");
        }
    }
    let why = attack("long", 4096, [0, 256, 256], (256 << 20) + 1);
    assert!(why.contains("but the maximum is"), "{why}");
    let listed = user.run(["ls", "--json"]).expect(0).json();
    assert_eq!(listed, serde_json::json!([]));
}

#[test]
fn tokens_come_from_files_standard_input_and_a_variable() {
    let sandbox = Sandbox::new();
    let _pair = Pair::start(&sandbox);
    let file = model(&sandbox, "m.safetensors", 1000);
    let token = |name: &str| {
        let path = sandbox.file(name, format!("{name}-word\n").as_bytes());
        text(&path).to_owned()
    };
    let (read, write, admin) = (token("read"), token("write"), token("admin"));
    let files = ["--read-token-file", &read, "--write-token-file", &write];
    let load = [&["load", text(&file), "--name", "m"], &files[..]].concat();
    let load = [&load[..], &["--admin-token-file", &admin]].concat();
    sandbox.run(load).expect(0);
    // The correct token is required, from any source.
    sandbox.run(["verify", "m"]).expect(1);
    let warned = sandbox
        .run(["verify", "m", "--token", "read-word"])
        .expect(0);
    assert!(warned.stderr.contains("--token-file"), "{}", warned.stderr);
    let quiet = sandbox
        .run(["verify", "m", "--token-file", &read])
        .expect(0);
    assert_eq!(quiet.stderr, "");
    let with = |arguments: &[&str], variable: &str, input: &str| {
        let mut command = sandbox.command(arguments);
        command.env("CROSSHANDLE_TOKEN", variable);
        let script = sandbox.file("input", input.as_bytes());
        let mut running = Running::start_with(command, fs::File::open(script).expect("a file"));
        running.stdout.rest();
        running.finish()
    };
    with(&["verify", "m"], "read-word", "").expect(0);
    with(&["verify", "m"], "wrong", "").expect(1);
    // An option overrides the variable.
    with(&["verify", "m", "--token-file", &read], "wrong", "").expect(0);
    let from_input = ["verify", "m", "--stay", "--token-file", "-"];
    with(&from_input, "", "read-word\nagain\n").expect(0);
    with(&["verify", "m", "--token-file", "-"], "", "\n").expect(1);
    for (command, file, code) in [
        (&["pin", "m"][..], &write, 1),
        (&["pin", "m"], &admin, 0),
        (&["pin", "m", "--undo"], &admin, 0),
        (&["revoke", "m"], &read, 1),
        // On a machine that starts many processes, proving the end of a writer takes a while.
        (&["revoke", "m", "--wait", "30s"], &admin, 0),
        (&["rm", "m"], &write, 1),
        (&["rm", "m"], &admin, 0),
    ] {
        let command = [command, &["--token-file", file]].concat();
        sandbox.run(command).expect(code);
    }
}

#[test]
fn revoking_begins_an_epoch() {
    let sandbox = Sandbox::new();
    let pair = Pair::start(&sandbox);
    let file = sandbox.file("bytes", &contents(5000));
    sandbox
        .run(["share", text(&file), "--name", "region"])
        .expect(0);
    let listed = sandbox.run(["ls", "--json"]).expect(0).json();
    assert_eq!(listed[0]["epoch"], 0);
    for epoch in 1..=2 {
        let revoked = sandbox.run(["revoke", "region"]).expect(0);
        let expected = format!("region epoch {epoch}: no process writes\n");
        assert_eq!(revoked.text(), expected);
        // The successor continues the count of epochs.
        kill(pair.await_safe().0);
    }
    pair.await_safe();
    // A running program has claimed the name.
    let holder = crosshandle::holder::Holder::new().socket_dir(sandbox.sockets());
    let lease = holder
        .claim("region", &crosshandle::holder::ClaimOptions::new())
        .expect("claimed");
    assert_eq!(lease.epoch(), 3);
    let refused = sandbox.run(["revoke", "region"]).expect(1);
    assert!(
        refused.stderr.contains("has not ended"),
        "{}",
        refused.stderr
    );
    let listed = sandbox.run(["ls"]).expect(0);
    let state = format!("epoch 3 of {}", std::process::id());
    assert!(listed.text().contains(&state), "{}", listed.text());
    let forced = sandbox.run(["revoke", "region", "--force"]).expect(0);
    let expected = "region epoch 4: forced: the previous writer may still write\n";
    assert_eq!(forced.text(), expected);
    lease.end().expect_err("it has another writer by now");
    sandbox.run(["revoke", "absent"]).expect(1);
}

/// A holder continues when its terminal is closed, which sends SIGHUP to the processes of its
/// session.
#[test]
fn a_closed_terminal_ends_no_holder() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.start(["hold"]);
    let began = first.stderr.line();
    assert!(began.contains("holds in"), "{began}");
    let pair = Pair {
        sandbox: &sandbox,
        _first: first,
    };
    let (holder, successor) = pair.await_safe();
    // The session is read from `/proc`: `getsid` returns 0 for a session of another PID namespace,
    // which rustix rejects.
    let session = |pid: u32| -> u32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let (_, fields) = stat.rsplit_once(") ").expect("a command's name");
        let session = fields.split(' ').nth(3).expect("a session");
        session.parse().expect("a number")
    };
    assert_eq!(session(successor), successor, "a session of its own");
    assert_ne!(session(holder), successor);
    let file = sandbox.file("bytes", &contents(5000));
    sandbox
        .run(["share", text(&file), "--name", "bytes"])
        .expect(0);
    for pid in [holder, successor] {
        let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
        kill_process(pid, Signal::HUP).expect("it lives");
    }
    assert_eq!(pair.await_safe(), (holder, successor));
    kill(holder);
    let listed = sandbox.run(["ls"]).expect(0);
    assert!(listed.text().contains("bytes"), "{}", listed.text());
}

#[test]
fn a_detached_holder_outlives_its_command() {
    let sandbox = Sandbox::new();
    let detached = sandbox.run(["hold", "--detach"]).expect(0);
    let words: Vec<_> = detached.text().split(' ').collect();
    let pid: u32 = words[1].parse().expect("a process");
    // A second holder in the same directory reports why it cannot run.
    let second = sandbox.run(["hold", "--detach"]).expect(1);
    let begin = Instant::now();
    let mut checked = sandbox.run(["hold", "--check"]);
    while checked.code() != Some(0) {
        assert!(begin.elapsed() < STEP_TIMEOUT, "{}", checked.stderr);
        checked = sandbox.run(["hold", "--check"]);
    }
    let expected = format!("process {pid} holds");
    assert!(checked.text().starts_with(&expected), "{}", checked.text());
    sandbox.run(["hold", "--stop"]).expect(0);
    assert!(second.stderr.contains("already"), "{}", second.stderr);
}

#[test]
fn the_installed_program_takes_over() {
    let sandbox = Sandbox::new();
    let program = sandbox.path("crosshandle");
    let install = || {
        let new = sandbox.path("crosshandle.new");
        fs::copy(env!("CARGO_BIN_EXE_crosshandle"), &new).expect("copied");
        fs::rename(&new, &program).expect("installed");
    };
    let running = |pid: u32| {
        fs::metadata(format!("/proc/{pid}/exe"))
            .expect("a program")
            .ino()
    };
    install();
    let mut command = std::process::Command::new(&program);
    command
        .arg("hold")
        .env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets());
    let pair = Pair {
        sandbox: &sandbox,
        _first: Running::start(command),
    };
    let file = sandbox.file("bytes", &contents(5000));
    let (before, _) = pair.await_safe();
    sandbox
        .run(["share", text(&file), "--name", "bytes"])
        .expect(0);
    let old = running(before);
    install();
    let upgraded = sandbox.run(["hold", "--upgrade"]).expect(0);
    assert!(
        upgraded.text().contains("has replaced"),
        "{}",
        upgraded.text()
    );
    let (holder, successor) = pair.await_safe();
    let installed = fs::metadata(&program).expect("it is there").ino();
    assert_ne!(old, installed);
    assert_eq!(
        (running(holder), running(successor)),
        (installed, installed)
    );
    let listed = sandbox.run(["ls"]).expect(0);
    assert!(listed.text().contains("bytes"), "{}", listed.text());
}
