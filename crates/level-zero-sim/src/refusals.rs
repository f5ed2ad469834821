//! Calls that are to be refused, with codes that a driver in order would not answer.
//!
//! The switch says so for all of a process's life; the exported function for as long as a test wants
//! it.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use level_zero_sys::ze_result_t;

use crate::switches::switches;

type Rule = (String, ze_result_t);

struct Refusals {
    /// There are rules; without any, calls take no lock.
    any: AtomicBool,
    rules: Mutex<Vec<Rule>>,
}

static REFUSALS: LazyLock<Refusals> = LazyLock::new(|| {
    let rules = parse(switches().refuse.as_deref().unwrap_or_default());
    Refusals {
        any: AtomicBool::new(!rules.is_empty()),
        rules: Mutex::new(rules),
    }
});

/// `FUNCTION:CODE`, with commas between; codes are hexadecimal.
fn parse(text: &str) -> Vec<Rule> {
    let rule = |text: &str| {
        let (function, code) = text.split_once(':')?;
        let code = u32::from_str_radix(code.trim_start_matches("0x"), 16).ok()?;
        Some((function.to_owned(), ze_result_t(code as _)))
    };
    text.split(',').filter_map(rule).collect()
}

/// Returns the code that a function is to answer instead of doing anything.
pub(crate) fn of(function: &str) -> Option<ze_result_t> {
    let refusals = &*REFUSALS;
    if !refusals.any.load(Ordering::Relaxed) {
        return None;
    }
    let rules = refusals
        .rules
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let rule = rules.iter().find(|(refused, _)| refused == function);
    rule.map(|(_, code)| *code)
}

/// Refuses these calls from now on, and no others; with an empty text or none, no calls at all.
///
/// # Safety
///
/// `text` is null, or ends with a zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn crosshandle_sim_refuse(text: *const c_char) {
    let rules = if text.is_null() {
        Vec::new()
    } else {
        // SAFETY: as promised.
        parse(&unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    let refusals = &*REFUSALS;
    let mut place = refusals
        .rules
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    refusals.any.store(!rules.is_empty(), Ordering::Relaxed);
    *place = rules;
}
