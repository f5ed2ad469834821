//! Contexts and their options.

use crate::boundary::{entry, entry_object, given, list, optional_text, timeout};
use crate::device::crosshandle_device;
use crate::error::{Failure, Result, crosshandle_result};
use crate::object::{close, get, object};
use crosshandle::{Context, ContextOptions, PeerPolicy};
use std::ffi::c_char;

/// A device in use. A context allocates, exports and opens memory, and creates events and queues.
/// Any thread may use it.
pub struct crosshandle_context {}
object!(crosshandle_context, Context, 2, "context");

/// Only processes of the same user may open exports: a value of `peers`.
pub const CROSSHANDLE_PEERS_SAME_USER: u32 = 0;
/// The same user, and the users in `users`, may open exports: a value of `peers`.
pub const CROSSHANDLE_PEERS_USERS: u32 = 1;
/// Every user who can access the socket directory may open exports: a value of `peers`.
pub const CROSSHANDLE_PEERS_ANYONE: u32 = 2;

/// The options of a context. A structure of zeros, with `size` set, has the defaults:
/// `crosshandle_context_options options = {.size = sizeof options};`
#[repr(C)]
pub struct crosshandle_context_options {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// The name that tools show, or null. Other users may see it.
    pub name: *const c_char,
    /// The directory of the sockets, or null for the default, `$CROSSHANDLE_SOCKET_DIR` first.
    pub socket_dir: *const c_char,
    /// Whether each allocation has its own descriptor and pages. Memory that a holder takes over
    /// needs this.
    pub no_pooling: bool,
    /// Whether large host memory does without huge pages.
    pub no_huge_pages: bool,
    /// Whether one allocation may be larger than the memory that the machine has left.
    pub overcommit: bool,
    /// Which users may open exports: one of `CROSSHANDLE_PEERS_…`.
    pub peers: u32,
    /// The user ids for `CROSSHANDLE_PEERS_USERS`.
    pub users: *const u32,
    /// The number of user ids.
    pub user_count: usize,
    /// Maximum time in nanoseconds that opening a handle waits for its exporter. 0 is the default
    /// of 10 s.
    pub exchange_timeout_ns: u64,
}

/// Converts the options of a program, or returns the defaults for null.
pub(crate) unsafe fn read_options(
    options: *const crosshandle_context_options,
) -> Result<ContextOptions> {
    let mut chosen = ContextOptions::new();
    // SAFETY: promised by the caller.
    let Ok(options) = (unsafe { given(options) }) else {
        return Ok(chosen);
    };
    if options.size != size_of::<crosshandle_context_options>() {
        return Err(Failure::invalid(
            "set `size` to the size of crosshandle_context_options",
        ));
    }
    // SAFETY: promised by the caller.
    let (name, directory, users) = unsafe {
        (
            optional_text(options.name)?,
            optional_text(options.socket_dir)?,
            list(options.users, options.user_count)?,
        )
    };
    chosen = chosen
        .pooling(!options.no_pooling)
        .huge_pages(!options.no_huge_pages)
        .overcommit(options.overcommit)
        .peers(peers(options.peers, users)?);
    if let Some(name) = name {
        chosen = chosen.name(name);
    }
    if let Some(directory) = directory {
        chosen = chosen.socket_dir(directory);
    }
    if options.exchange_timeout_ns != 0 {
        chosen = chosen.exchange_timeout(timeout(options.exchange_timeout_ns));
    }
    Ok(chosen)
}

/// Converts one of `CROSSHANDLE_PEERS_…` and a list of users.
pub(crate) fn peers(peers: u32, users: &[u32]) -> Result<PeerPolicy> {
    match peers {
        CROSSHANDLE_PEERS_SAME_USER => Ok(PeerPolicy::SameUser),
        CROSSHANDLE_PEERS_USERS => Ok(PeerPolicy::Users(users.to_vec())),
        CROSSHANDLE_PEERS_ANYONE => Ok(PeerPolicy::Anyone),
        _ => Err(Failure::invalid("`peers` is none of CROSSHANDLE_PEERS_…")),
    }
}

/// Creates a context on a device. `options` may be null for the defaults.
///
/// Errors: those of the driver or the operating system. The caller closes the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_context_create(
    device: *const crosshandle_device,
    options: *const crosshandle_context_options,
    context: *mut *mut crosshandle_context,
) -> crosshandle_result {
    entry_object! { context;
        let options = read_options(options)?;
        Context::with_options(get(device)?, options)?
    }
}

/// Closes a context. Its memory, events and queues stay usable, and must be closed separately. Its
/// exports can no longer be opened when all of these are closed too. Closing null does nothing.
///
/// The call may block for a second or two until background threads have released objects of the
/// driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_context_close(
    context: *mut crosshandle_context,
) -> crosshandle_result {
    entry!(close(context).map(drop))
}
