//! Compiles programs in C and C++ with the system's compilers, and runs them.

use crosshandle::holder::{self, ServeOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Timeout of a compilation or a program in seconds, far longer than any needs.
const DEADLINE: i64 = 120;
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directory in which Cargo has built the libraries, next to the tests.
fn library_dir() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    test.parent().expect("a directory").to_owned()
}

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Static,
}

/// A compiler of the machine, the language that it compiles, and further options.
struct Compiler {
    program: OsString,
    is_cpp: bool,
    options: Vec<&'static str>,
}

impl Compiler {
    fn new(program: OsString, is_cpp: bool) -> Self {
        let options = vec![match is_cpp {
            true => "-std=c++17",
            false => "-std=c11",
        }];
        Self {
            program,
            is_cpp,
            options,
        }
    }

    fn c() -> Self {
        let program = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        Self::new(program, false)
    }

    fn cpp() -> Self {
        let program = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        Self::new(program, true)
    }

    /// Returns the default compilers, and clang if the machine has it.
    fn all() -> Vec<Self> {
        let mut all = vec![Self::c(), Self::cpp()];
        for (program, is_cpp) in [("clang", false), ("clang++", true)] {
            let found = Command::new(program).arg("--version").output();
            if found.is_ok_and(|output| output.status.success()) {
                all.push(Self::new(program.into(), is_cpp));
            }
        }
        all
    }

    /// Compiles a source in this compiler's language, and returns the program.
    fn build(&self, source: &Path, link: Link) -> PathBuf {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let name = source.file_stem().expect("a name").to_string_lossy();
        let compiler = Path::new(&self.program).file_name().expect("a name");
        let linked = match link {
            Link::Shared => "shared",
            Link::Static => "static",
        };
        let own = std::process::id();
        let name = format!("{name}-{}-{linked}-{own}", compiler.display());
        let program = directory.join(name);
        let mut command = Command::new(&self.program);
        command.args(&self.options);
        command
            .args(WARNINGS)
            .args(["-D_GNU_SOURCE", "-g", "-pthread"]);
        command.arg("-I").arg(crate_dir().join("include"));
        command.arg(source).arg("-o").arg(&program);
        let libraries = library_dir();
        match link {
            Link::Shared => {
                let mut path = OsString::from("-Wl,-rpath,");
                path.push(&libraries);
                command.arg("-L").arg(&libraries).arg(path);
                command.args(["-lcrosshandle_c", "-ldl"]);
            }
            Link::Static => {
                command.arg(libraries.join("libcrosshandle_c.a"));
                command.args(["-lm", "-ldl", "-lgcc_s"]);
            }
        }
        let output = run(&mut command);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        program
    }
}

/// A child and its own children, which are killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs a command to its end, with the deadline.
fn run(command: &mut Command) -> Output {
    command.process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut child = Killed(child);
    let ended = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).expect("its descriptor");
    let deadline = Timespec {
        tv_sec: DEADLINE,
        tv_nsec: 0,
    };
    // The programs print far less than a pipe can store.
    let ready = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&deadline));
    assert_eq!(ready.expect("a wait"), 1, "{command:?} is late");
    let status = child.0.wait().expect("it has ended");
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let take = |pipe: Option<&mut dyn std::io::Read>, to: &mut Vec<u8>| {
        pipe.expect("piped").read_to_end(to).expect("its output")
    };
    take(child.0.stdout.as_mut().map(|pipe| pipe as _), &mut stdout);
    take(child.0.stderr.as_mut().map(|pipe| pipe as _), &mut stderr);
    Output {
        status,
        stdout,
        stderr,
    }
}

/// A directory for the sockets of one program.
struct Sockets(PathBuf);

impl Sockets {
    fn new(program: &Path) -> Self {
        let name = program.file_name().expect("a name").display().to_string();
        let path = std::env::temp_dir().join(format!("xh-{name}"));
        fs::create_dir(&path).expect("a directory");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&path, private).expect("a mode");
        Self(path)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The exit code of an example that lacks a device.
const SKIPPED: i32 = 77;

/// Runs a program that checks its own results, and returns what it has printed.
fn succeed(program: &Path) -> String {
    succeed_in(program, &Sockets::new(program))
}

fn succeed_in(program: &Path, sockets: &Sockets) -> String {
    let mut command = Command::new(program);
    command.env("CROSSHANDLE_SOCKET_DIR", &sockets.0);
    // Cargo sets it for the tests, with a directory that may have an older library.
    command.env_remove("LD_LIBRARY_PATH");
    let output = run(&mut command);
    let _ = fs::remove_file(program);
    let [printed, errors] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let name = program.display();
    if output.status.code() == Some(SKIPPED) {
        let has_gpu = Path::new("/dev/nvidiactl").exists();
        assert!(
            !has_gpu,
            "{name} is skipped although there is a GPU: {printed}"
        );
        return printed.into_owned();
    }
    assert!(
        output.status.success(),
        "{name}: {}\n{printed}{errors}",
        output.status
    );
    printed.into_owned()
}

/// Returns the sources in a directory of this crate that have an extension.
fn sources(directory: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(crate_dir().join(directory)).expect("the directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension() == Some(OsStr::new(extension)))
        .collect();
    paths.sort();
    paths
}

#[test]
fn examples_succeed_with_every_compiler() {
    for compiler in Compiler::all() {
        let extension = if compiler.is_cpp { "cpp" } else { "c" };
        for source in sources("examples", extension) {
            let printed = succeed(&compiler.build(&source, Link::Shared));
            assert!(!printed.is_empty(), "{} says nothing", source.display());
        }
    }
}

/// Returns the blocks of the page about C and C++ that run, in a language.
fn page_blocks(language: &str) -> Vec<String> {
    let page = fs::read_to_string(crate_dir().join("../../docs/c.md")).expect("the page");
    let fence = match language {
        "c" => "c",
        _ => "cpp",
    };
    let start = format!("<!-- run: {language} -->\n```{fence}\n");
    let blocks = page.split(&start).skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().expect("a block").to_owned());
    blocks.collect()
}

/// Builds and runs a program that contains blocks of the page.
fn run_page(compiler: &Compiler, name: &str, program: &str) {
    let extension = if compiler.is_cpp { "cpp" } else { "c" };
    let name = format!("{name}-{}.{extension}", std::process::id());
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&source, program).expect("written");
    let built = compiler.build(&source, Link::Shared);
    fs::remove_file(&source).expect("removed");
    succeed(&built);
}

#[test]
fn blocks_of_the_page_run() {
    let blocks: [String; 2] = page_blocks("c").try_into().expect("two blocks in C");
    let [first, second] = &blocks;
    let (create, wait) = first.split_once("/* Send").expect("the place to send");
    // The second block runs on a second thread, which opens the handles as a process does.
    let program = format!(
        "#include <assert.h>\n#include <crosshandle.h>\n#include <pthread.h>\n#include <string.h>\n
         static crosshandle_context *shared;
         static crosshandle_memory_handle sent_buffer;
         static crosshandle_event_handle sent_event;
         static void *second(void *unused) {{
             (void)unused;
             crosshandle_context *context = shared;
             crosshandle_memory_handle buffer_handle = sent_buffer;
             crosshandle_event_handle filled_handle = sent_event;
             crosshandle_memory *buffer;
             crosshandle_event *filled;
             {second}
             return NULL;
         }}
         int main(void) {{
             {create}
             shared = context, sent_buffer = buffer_handle, sent_event = filled_handle;
             pthread_t thread;
             pthread_create(&thread, NULL, second, NULL);
             /* Send {wait}
             pthread_join(thread, NULL);
             return memcmp(crosshandle_memory_host_data(buffer), \"hello\", 6) != 0;
         }}"
    );
    run_page(&Compiler::c(), "page", &program);

    let blocks = page_blocks("c++");
    let [throwing, returning, channel] = blocks.try_into().expect("three blocks in C++");
    // No process signals.
    let [throwing, returning] =
        [throwing, returning].map(|block: String| block.replace("30s", "10ms"));
    let head = "#include <crosshandle.hpp>\n#include <cstring>\n#include <iostream>\n
                using namespace std::chrono_literals;\n";
    let program = format!("{head}int main() {{ {throwing} {channel} }}\n");
    run_page(&Compiler::cpp(), "page-throwing", &program);
    let program = format!(
        "#define CROSSHANDLE_NO_EXCEPTIONS\n{head}int main() {{
             auto context = *crosshandle::context::create(\"host\");
             auto filled = *context.create_event();
             {returning} }}\n"
    );
    run_page(&Compiler::cpp(), "page-returning", &program);
}

#[test]
fn the_static_library_is_complete() {
    let source = crate_dir().join("examples/share.c");
    succeed(&Compiler::c().build(&source, Link::Static));
}

#[test]
fn tests_in_c_succeed() {
    let mut tests = sources("tests", "c");
    // This program needs a holder.
    tests.retain(|source| !source.ends_with("holder.c"));
    assert!(tests.len() >= 3, "{tests:?}");
    for source in tests {
        succeed(&Compiler::c().build(&source, Link::Shared));
    }
}

#[test]
fn tests_in_cpp_succeed_in_every_standard() {
    let throwing = ("tests/throwing.cpp", vec!["-std=c++17"]);
    let returning = "tests/returning.cpp";
    let old = (returning, vec!["-std=c++17", "-fno-exceptions"]);
    let new = (returning, vec!["-std=c++20", "-fno-exceptions"]);
    let device_signals = ("tests/device_signals.cpp", vec!["-std=c++17"]);
    for (source, options) in [throwing, old, new, device_signals] {
        let mut compiler = Compiler::cpp();
        compiler.options = options;
        succeed(&compiler.build(&crate_dir().join(source), Link::Shared));
    }
}

#[test]
fn a_holder_keeps_memory_and_channels_of_c_programs() {
    let program = Compiler::c().build(&crate_dir().join("tests/holder.c"), Link::Shared);
    let sockets = Sockets::new(&program);
    let (stop, keep) = rustix::pipe::pipe().expect("a pipe");
    let options = ServeOptions::new()
        .socket_dir(&sockets.0)
        .stop_when_readable(stop);
    let (ready, is_ready) = mpsc::channel();
    let holder = thread::spawn(move || holder::serve(options, || ready.send(()).expect("heard")));
    is_ready
        .recv_timeout(Duration::from_secs(DEADLINE as u64))
        .expect("a holder");
    succeed_in(&program, &sockets);
    drop(keep);
    holder.join().expect("no panic").expect("it held");
}

#[test]
fn exported_symbols_have_the_prefix() {
    let library = library_dir().join("libcrosshandle_c.so");
    let output = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library));
    assert!(output.status.success(), "nm: {output:?}");
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<_> = listed
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    let header = fs::read_to_string(crate_dir().join("include/crosshandle.h")).expect("the header");
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(name.starts_with("crosshandle_"), "{name} has no prefix");
        assert!(header.contains(name), "{name} is not in the header");
    }
}

#[test]
fn the_loader_refuses_a_library_with_another_abi_version() {
    let source = crate_dir().join("examples/share.c");
    let program = Compiler::c().build(&source, Link::Shared);
    let directory = program.with_extension("other");
    fs::create_dir(&directory).expect("a directory");
    let other = directory.join("other.c");
    fs::write(&other, "const unsigned crosshandle_abi_2 = 2;").expect("written");
    let library = directory.join("libcrosshandle_c.so");
    let mut compile = Command::new(Compiler::c().program);
    compile
        .args(["-shared", "-fPIC", "-o"])
        .arg(library)
        .arg(other);
    let built = run(&mut compile);
    let refused = run(Command::new(&program).env("LD_LIBRARY_PATH", &directory));
    fs::remove_dir_all(&directory).expect("removed");
    fs::remove_file(&program).expect("removed");
    assert!(built.status.success(), "{built:?}");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{errors}");
    assert!(errors.contains("crosshandle_abi_1"), "{errors}");
}
