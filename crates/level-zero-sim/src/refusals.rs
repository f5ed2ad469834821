//! Calls that the driver refuses with codes that a working driver would not return.
//!
//! The switch `REFUSE` sets the rules for the life of the process. The exported function replaces
//! them while a test runs.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use level_zero_sys::ze_result_t;

use crate::switches::switches;

type Rule = (String, ze_result_t);

struct Refusals {
    /// Whether any rules exist. Without rules, calls take no lock.
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

/// Parses rules of the form `FUNCTION:CODE`, separated by commas. Codes are hexadecimal.
fn parse(text: &str) -> Vec<Rule> {
    let rule = |text: &str| {
        let (function, code) = text.split_once(':')?;
        let code = u32::from_str_radix(code.trim_start_matches("0x"), 16).ok()?;
        Some((function.to_owned(), ze_result_t(code as _)))
    };
    text.split(',').filter_map(rule).collect()
}

/// Returns the code that a function must return instead of doing its work.
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

/// Replaces the rules. From now on the driver refuses exactly these calls. An empty or null text
/// refuses none.
///
/// # Safety
///
/// `text` must be null or end with a zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn crosshandle_sim_refuse(text: *const c_char) {
    let rules = if text.is_null() {
        Vec::new()
    } else {
        // SAFETY: the caller guarantees a terminated string.
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
