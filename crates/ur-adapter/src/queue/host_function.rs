//! Calls of the program's functions by queues, and waits that must not block inside such a
//! function.

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};

/// Minimum interval between two checks whether commands still use memory that is to be freed. The
/// commands cannot wake the waiting thread, so it polls.
const IN_USE_POLL_SHORTEST: Duration = Duration::from_micros(20);

/// Maximum interval between two checks whether commands still use memory. After a long command,
/// memory may be freed late by this much.
const IN_USE_POLL_LONGEST: Duration = Duration::from_millis(1);

/// Divisor for the interval between two checks whether commands still use memory. The interval is
/// the elapsed waiting time divided by this value. Memory is therefore freed at most about 13 %
/// late, and the number of checks grows logarithmically.
const IN_USE_POLL_DIVISOR: u32 = 8;

/// A function of the program, with the argument that it receives.
pub(crate) struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the data is only passed to the function, and the caller of `new` allowed the calls on any
// thread.
unsafe impl Send for HostFunction {}

// SAFETY: the caller of `new` allowed the calls at the same time on several threads, unless it
// calls the function only once.
unsafe impl Sync for HostFunction {}

thread_local! {
    /// Whether this thread is currently running a function for a queue.
    static IS_INSIDE_A_QUEUE: Cell<bool> = const { Cell::new(false) };
}

impl HostFunction {
    /// Wraps a function and its argument.
    ///
    /// # Safety
    /// The caller must ensure that the function may be called with this argument on any thread,
    /// once for each call of [`run`](Self::run). If several threads call `run`, the calls may
    /// overlap.
    pub(crate) unsafe fn new(
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Self {
        Self { function, data }
    }

    pub(crate) fn run(&self) -> Result<(), Infallible> {
        IS_INSIDE_A_QUEUE.set(true);
        // SAFETY: the caller of `new` allowed this call.
        unsafe { (self.function)(self.data) };
        IS_INSIDE_A_QUEUE.set(false);
        Ok(())
    }
}

/// Polls until no command uses an object. Inside a function that a queue calls, it returns
/// immediately, because the commands may depend on that function.
pub(crate) fn wait_while(is_in_use: impl Fn() -> bool) {
    let began = Instant::now();
    while is_in_use() && !IS_INSIDE_A_QUEUE.get() {
        let delay = began.elapsed() / IN_USE_POLL_DIVISOR;
        thread::sleep(delay.clamp(IN_USE_POLL_SHORTEST, IN_USE_POLL_LONGEST));
    }
}
