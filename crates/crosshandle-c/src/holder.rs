//! Holders, which keep memory under names after its exporter has ended.

use crate::boundary::{
    entry, entry_object, entry_value, given, list, optional_text, place, put, put_text,
};
use crate::boundary::{text, timeout};
use crate::context::peers;
use crate::error::{Failure, Result, crosshandle_result};
use crate::handle::crosshandle_memory_handle;
use crate::memory::{access, crosshandle_memory};
use crate::object::{close, get, object};
use crosshandle::holder::{HeldName, HoldOptions, Holder};
use crosshandle::{Access, Memory};
use std::ffi::c_char;

/// A client of the holder, which is started with the command `crosshandle hold`. Any thread may use
/// it.
pub struct crosshandle_holder {}
object!(crosshandle_holder, Holder, 9, "holder");

/// A name that a holder keeps, as one call has returned it. Any thread may use it.
pub struct crosshandle_held {}
object!(crosshandle_held, HeldName, 10, "held name");

/// The role of memory that is the only memory of its name.
const WHOLE: &str = "memory";

/// The options of a holder's client. A structure of zeros, with `size` set, has the defaults.
#[repr(C)]
pub struct crosshandle_holder_options {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// The directory of the holder's socket, or null for the default directories.
    pub socket_dir: *const c_char,
    /// The token that calls present, or null.
    pub token: *const c_char,
    /// Maximum time in nanoseconds that a call waits for the holder. 0 is the default of 30 s.
    pub timeout_ns: u64,
    /// The users as which the holder may run: one of `CROSSHANDLE_PEERS_…`.
    pub peers: u32,
    /// The user ids for `CROSSHANDLE_PEERS_USERS`.
    pub users: *const u32,
    /// The number of user ids.
    pub user_count: usize,
}

/// The options of a hand-over. A structure of zeros, with `size` set, has the defaults.
#[repr(C)]
pub struct crosshandle_hold_options {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// A text of at most 4,096 bytes for programs that open the name, or null.
    pub label: *const c_char,
    /// Whether the memory becomes the next version of a name that is in use.
    pub replaces: bool,
    /// The token that programs must present to read, or null.
    pub read_token: *const c_char,
    /// The token that programs must present to write or to replace the name, or null.
    pub write_token: *const c_char,
    /// The token that programs must present to remove or pin the name, or null.
    pub admin_token: *const c_char,
}

/// Memory and its role under a name.
#[repr(C)]
pub struct crosshandle_part {
    /// The role. No other part of the name has the same one. Null is the role `memory`.
    pub role: *const c_char,
    /// The memory, from a context with `no_pooling`.
    pub memory: *const crosshandle_memory,
}

unsafe fn read_holder_options(options: &crosshandle_holder_options) -> Result<Holder> {
    if options.size != size_of::<crosshandle_holder_options>() {
        return Err(Failure::invalid(
            "set `size` to the size of crosshandle_holder_options",
        ));
    }
    // SAFETY: promised by the caller.
    let (directory, token, users) = unsafe {
        (
            optional_text(options.socket_dir)?,
            optional_text(options.token)?,
            list(options.users, options.user_count)?,
        )
    };
    let mut holder = Holder::new().peers(peers(options.peers, users)?);
    if let Some(directory) = directory {
        holder = holder.socket_dir(directory);
    }
    if let Some(token) = token {
        holder = holder.token(token);
    }
    if options.timeout_ns != 0 {
        holder = holder.timeout(timeout(options.timeout_ns));
    }
    Ok(holder)
}

pub(crate) unsafe fn read_hold_options(
    options: *const crosshandle_hold_options,
) -> Result<HoldOptions> {
    let mut chosen = HoldOptions::new();
    // SAFETY: promised by the caller.
    let Ok(options) = (unsafe { given(options) }) else {
        return Ok(chosen);
    };
    if options.size != size_of::<crosshandle_hold_options>() {
        return Err(Failure::invalid(
            "set `size` to the size of crosshandle_hold_options",
        ));
    }
    // SAFETY: promised by the caller.
    let [label, read, write, admin] = unsafe {
        [
            optional_text(options.label)?,
            optional_text(options.read_token)?,
            optional_text(options.write_token)?,
            optional_text(options.admin_token)?,
        ]
    };
    chosen = chosen.replaces(options.replaces);
    if let Some(label) = label {
        chosen = chosen.label(label);
    }
    if let Some(token) = read {
        chosen = chosen.read_token(token);
    }
    if let Some(token) = write {
        chosen = chosen.write_token(token);
    }
    if let Some(token) = admin {
        chosen = chosen.admin_token(token);
    }
    Ok(chosen)
}

/// Creates a client of the holder. `options` may be null for the defaults. No request is sent.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT`. The caller closes the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_create(
    options: *const crosshandle_holder_options,
    holder: *mut *mut crosshandle_holder,
) -> crosshandle_result {
    entry_object! { holder;
        match options.is_null() {
            true => Holder::new(),
            false => read_holder_options(given(options)?)?,
        }
    }
}

/// Hands `count` pieces of memory over to the holder under a name. From then on the holder serves
/// the memory, and earlier handles stay valid. This process may continue to use the memory, close
/// it, or end. `options` may be null for the defaults.
///
/// Stores the version of the name in `version`, and in `is_safe` whether the memory outlives the
/// holder too. Both may be null.
///
/// Errors: `CROSSHANDLE_PEER_DIED` if no holder runs, `CROSSHANDLE_NAME_TAKEN`,
/// `CROSSHANDLE_PERMISSION_DENIED` without the name's token, `CROSSHANDLE_TIMED_OUT`, and
/// `CROSSHANDLE_UNSUPPORTED` for memory that cannot be handed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_hand_over(
    holder: *const crosshandle_holder,
    name: *const c_char,
    parts: *const crosshandle_part,
    count: usize,
    options: *const crosshandle_hold_options,
    version: *mut u64,
    is_safe: *mut bool,
) -> crosshandle_result {
    entry! {
        let mut given_parts: Vec<(&str, &Memory)> = Vec::new();
        for part in list(parts, count)? {
            let role = optional_text(part.role)?.unwrap_or(WHOLE);
            given_parts.push((role, get(part.memory)?));
        }
        let options = read_hold_options(options)?;
        let done = get(holder)?.hand_over(text(name)?, &given_parts, options)?;
        put(version, done.version);
        put(is_safe, done.is_safe);
        Ok(())
    }
}

/// Opens a name. `access` is `CROSSHANDLE_READ_ONLY` or `CROSSHANDLE_READ_WRITE`.
///
/// Errors: `CROSSHANDLE_PEER_DIED` if no holder runs, `CROSSHANDLE_NO_SUCH_NAME`,
/// `CROSSHANDLE_PERMISSION_DENIED` without the name's token, and `CROSSHANDLE_TIMED_OUT`. The
/// caller closes the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_open(
    holder: *const crosshandle_holder,
    name: *const c_char,
    access: u32,
    held: *mut *mut crosshandle_held,
) -> crosshandle_result {
    entry_object! { held;
        let (holder, name) = (get(holder)?, text(name)?);
        match self::access(access)? {
            Access::ReadOnly => holder.open(name)?,
            Access::ReadWrite => holder.open_to_write(name)?,
        }
    }
}

/// Waits for at most `timeout_ns` nanoseconds until a name has a later version than `version`, and
/// opens it for reading.
///
/// Errors: those of `crosshandle_holder_open`, also if the name is removed during the wait. The
/// caller closes the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_await_version(
    holder: *const crosshandle_holder,
    name: *const c_char,
    version: u64,
    timeout_ns: u64,
    held: *mut *mut crosshandle_held,
) -> crosshandle_result {
    entry_object! { held;
        let holder = get(holder)?;
        holder.await_version(text(name)?, version, timeout(timeout_ns))?
    }
}

/// Removes a name, so that it can no longer be opened. Processes that have its memory open keep it.
///
/// Errors: those of `crosshandle_holder_open`, and `CROSSHANDLE_INVALID_ARGUMENT` if the name is
/// pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_remove(
    holder: *const crosshandle_holder,
    name: *const c_char,
) -> crosshandle_result {
    entry!(Ok(get(holder)?.remove(text(name)?)?))
}

/// Sets or clears the protection of a name against removal and replacement.
///
/// Errors: those of `crosshandle_holder_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_pin(
    holder: *const crosshandle_holder,
    name: *const c_char,
    pinned: bool,
) -> crosshandle_result {
    entry!(Ok(get(holder)?.pin(text(name)?, pinned)?))
}

/// Closes the client. The holder keeps its names. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_holder_close(
    holder: *mut crosshandle_holder,
) -> crosshandle_result {
    entry!(close(holder).map(drop))
}

/// Returns the version of the name, counted from 1. Returns 0 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_held_version(held: *const crosshandle_held) -> u64 {
    entry_value!(or 0; Ok(get(held)?.version))
}

/// Copies the label of the name. The arguments are those of `crosshandle_device_name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_held_label(
    held: *const crosshandle_held,
    label: *mut c_char,
    size: usize,
    length: *mut usize,
) -> crosshandle_result {
    entry! {
        put_text(&get(held)?.label, label, size, length);
        Ok(())
    }
}

/// Returns the number of pieces of memory under the name. Returns 0 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_held_part_count(held: *const crosshandle_held) -> usize {
    entry_value!(or 0; Ok(get(held)?.parts.len()))
}

/// Copies the role of the piece of memory number `index`. The other arguments are those of
/// `crosshandle_device_name`.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` if the index is not below `crosshandle_held_part_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_held_role(
    held: *const crosshandle_held,
    index: usize,
    role: *mut c_char,
    size: usize,
    length: *mut usize,
) -> crosshandle_result {
    entry! {
        let part = get(held)?.parts.get(index);
        let part = part.ok_or(Failure::invalid("the name has fewer parts"))?;
        put_text(&part.role, role, size, length);
        Ok(())
    }
}

/// Returns a handle to the memory with this role. A null role is `memory`. The handle has the
/// access with which the name was opened.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` if the name has no such role.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_held_get_handle(
    held: *const crosshandle_held,
    role: *const c_char,
    handle: *mut crosshandle_memory_handle,
) -> crosshandle_result {
    entry! {
        let place = place(handle)?;
        let role = optional_text(role)?.unwrap_or(WHOLE);
        let part = get(held)?.part(role);
        let part = part.ok_or(Failure::invalid("the name has no memory of this role"))?;
        let handle = part.handle.as_ref().or(part.read_only.as_ref());
        let handle = handle.ok_or(Failure::invalid("the holder sent no handle"))?;
        place.write(crosshandle_memory_handle::new(handle));
        Ok(())
    }
}

/// Closes the result of opening a name. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_held_close(held: *mut crosshandle_held) -> crosshandle_result {
    entry!(close(held).map(drop))
}
