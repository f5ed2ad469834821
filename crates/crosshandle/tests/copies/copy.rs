//! The copies of crosshandle in a process: one in this program, and further ones in shared
//! libraries.

use crate::actor::Actor;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

type Take = extern "C" fn(*mut c_void, *const u8, usize);
type Act = unsafe extern "C" fn(*const u8, usize, Take, *mut c_void);

/// All copies of this process.
#[derive(Default)]
pub(crate) struct Copies {
    own: Actor,
    loaded: Vec<Act>,
}

impl Copies {
    /// Passes a line to copy `number`. Copy 0 is in this program.
    pub(crate) fn act(&mut self, number: usize, line: &str) -> String {
        let Some(place) = number.checked_sub(1) else {
            return self.own.act(line);
        };
        while self.loaded.len() <= place {
            self.loaded.push(load());
        }
        let mut answer = String::new();
        // SAFETY: the library stays loaded, `line` is text, and `take` receives a pointer to a
        // `String`.
        unsafe {
            let target = (&raw mut answer).cast();
            self.loaded[place](line.as_ptr(), line.len(), take, target);
        }
        answer
    }
}

extern "C" fn take(target: *mut c_void, bytes: *const u8, len: usize) {
    // SAFETY: `Copies::act` passes a pointer to a `String`, and the library passes the bytes of
    // another `String`.
    let (answer, bytes) = unsafe {
        (
            &mut *target.cast::<String>(),
            std::slice::from_raw_parts(bytes, len),
        )
    };
    answer.push_str(std::str::from_utf8(bytes).expect("text"));
}

/// Loads the library once more. It uses a new copy of the file, because the linker loads each file
/// only once.
fn load() -> Act {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const SYMBOL: &CStr = c"second_copy_act";
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("xh-copy-{}-{number}.so", std::process::id());
    let file = std::env::temp_dir().join(name);
    let built = built();
    if let Err(error) = std::fs::copy(&built, &file) {
        panic!(
            "{}: {error}; run `cargo build --package crosshandle --examples` first",
            built.display()
        );
    }
    let name = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: the library runs no code when it is loaded, and its file is not needed afterwards.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let _ = std::fs::remove_file(&file);
    assert!(!library.is_null(), "{} does not load", built.display());
    // SAFETY: the library stays loaded.
    let symbol = unsafe { libc::dlsym(library, SYMBOL.as_ptr()) };
    assert!(
        !symbol.is_null(),
        "{} has no such function",
        built.display()
    );
    // SAFETY: the function has this type in `second_copy.rs`.
    unsafe { std::mem::transmute::<*mut c_void, Act>(symbol) }
}

/// Returns the path of the library, which Cargo builds next to the directory of the tests.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let profile = test.parent().and_then(Path::parent).expect("a directory");
    profile.join("examples/libsecond_copy.so")
}

/// Forks a child that lives until it is killed, and returns its number. The child does not run
/// another program.
pub(crate) fn fork_and_stay() -> libc::pid_t {
    // SAFETY: the child only sleeps, and ends without running the parent's code.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::sleep(60);
            libc::_exit(0);
        }
        child
    }
}
