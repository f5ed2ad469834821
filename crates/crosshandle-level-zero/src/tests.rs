//! Tests of programs that also use the driver's own objects, with the stock loader and the
//! simulated driver.
//!
//! Each test runs itself again in a process that has both (see `simulated`), because a process
//! chooses its loader when it starts.

use super::driver::{Driver, DriverContext, Handle, description};
use crosshandle::native::NativeEvent;
use crosshandle::{Command, Context, Device, Event, EventOptions, Memory, MemoryRange, Queue};
use crosshandle_handle::MemoryHandle;
use crosshandle_types::error::Error;
use crosshandle_types::{NativeObject, Ownership, QueueOrder};
use level_zero_sys::{ze_event_handle_t, ze_result_t};
use std::path::Path;
use std::process::Command as Process;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const BYTES: usize = 64 << 10;
const ROLE: &str = "CROSSHANDLE_TEST_ROLE";
const HANDLE: &str = "CROSSHANDLE_TEST_HANDLE";

/// Returns whether the test should continue, because this process has the simulated driver.
/// Otherwise runs the test in such a process, once with each loader.
fn simulated(name: &str) -> bool {
    if std::env::var_os(ROLE).is_some() {
        return true;
    }
    let loaders = std::env::var_os("ZE_LOADER_LIB_DIRS").filter(|value| !value.is_empty());
    let loaders = loaders.expect(
        "ZE_LOADER_LIB_DIRS is not set: run this test with `cargo xtask test`, which sets it",
    );
    for loader in std::env::split_paths(&loaders) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("xhu-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(unique);
        let driver = std::env::current_exe().unwrap();
        let driver = driver.with_file_name("libze_sim.so");
        assert!(driver.is_file(), "there is no {}", driver.display());
        let output = again(name)
            .env("LD_LIBRARY_PATH", &loader)
            .env("ZE_ENABLE_ALT_DRIVERS", driver)
            .env("CROSSHANDLE_SOCKET_DIR", &directory)
            .output()
            .unwrap();
        let _ = std::fs::remove_dir_all(&directory);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("MISUSE"), "{said}");
        let counted = String::from_utf8_lossy(&output.stdout);
        assert!(counted.contains("1 passed"), "{counted}{said}");
    }
    false
}

/// Returns a command that runs one test of this program in a process with the simulated driver.
fn again(name: &str) -> Process {
    let mut process = Process::new(std::env::current_exe().unwrap());
    let path = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    process
        .args([&path, "--exact", "--include-ignored", "--nocapture"])
        .env(ROLE, "1");
    process
}

fn context() -> Context {
    Context::new(&Device::find("level_zero:0").unwrap()).unwrap()
}

fn native(value: usize) -> NativeObject {
    NativeObject::new(crosshandle_handle::BackendKind::LevelZero, value)
}

/// Returns the driver's context behind a context.
fn core_of(context: &Context) -> Arc<DriverContext> {
    // The tests have their own copy of this crate next to the one behind `context`.
    let handle = Handle(ptr::with_exposed_provenance_mut(
        context.native().unwrap().raw(),
    ));
    // SAFETY: the context behind `context` lives at least as long as each test uses it.
    Arc::new(unsafe { DriverContext::adopt(&Driver::all().unwrap()[0], handle) })
}

/// An allocation of the program.
struct Theirs {
    core: Arc<DriverContext>,
    start: NonNull<u8>,
}

impl Theirs {
    fn new(context: &Context, len: usize) -> Self {
        let core = core_of(context);
        let device = context.device().native().unwrap();
        let device = ptr::with_exposed_provenance_mut(device.raw());
        let desc = description!(
            ze_device_mem_alloc_desc_t,
            ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
        );
        let mut start = ptr::null_mut();
        let allocate = core.driver.loader.zeMemAllocDevice;
        // SAFETY: a live context and device, with a live result.
        let code = unsafe { allocate(core.handle.0, &desc, len, 0, device, &mut start) };
        assert_eq!(code, ze_result_t::ZE_RESULT_SUCCESS);
        let start = NonNull::new(start.cast()).unwrap();
        Self { core, start }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: allocated above, and not used any more.
        unsafe { self.core.free(self.start) }.unwrap();
    }
}

/// Reads the first and the last byte of memory through a queue.
fn ends(queue: &Queue, memory: &crosshandle::Memory) -> [u8; 2] {
    let mut found = [0; 2];
    for (byte, place) in found.iter_mut().zip([0, memory.len() - 1]) {
        // SAFETY: a live local variable. The test waits for the copy below.
        let to = unsafe {
            MemoryRange::from_raw_parts(
                NonNull::from(byte),
                1,
                crosshandle_types::Access::ReadWrite,
            )
        };
        let copy = Command::copy(memory.range(place..place + 1).unwrap(), to).unwrap();
        queue.submit(copy).unwrap();
    }
    queue.finish_timeout(SOON).unwrap();
    // SAFETY: live local variables. The volatile read is needed because the device wrote them
    // without the compiler's knowledge.
    unsafe { (&raw const found).read_volatile() }
}

/// Waits until an event of the driver has happened, for at most `timeout`. Returns whether it has.
fn has_happened(context: &Context, event: NativeObject, timeout: Duration) -> bool {
    let wait = core_of(context).driver.loader.zeEventHostSynchronize;
    let event: ze_event_handle_t = ptr::with_exposed_provenance_mut(event.raw());
    // SAFETY: a live event.
    match unsafe { wait(event, timeout.as_nanos() as u64) } {
        ze_result_t::ZE_RESULT_NOT_READY => false,
        code => code == ze_result_t::ZE_RESULT_SUCCESS,
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn memory_of_the_program_is_shared() {
    if let Ok(handle) = std::env::var(HANDLE) {
        return open(&handle.parse().unwrap());
    }
    if !simulated("memory_of_the_program_is_shared") {
        return;
    }
    let context = context();
    let theirs = Theirs::new(&context, 4 * BYTES);
    let place = theirs.start.map_addr(|start| start.saturating_add(BYTES));
    // SAFETY: the allocation lives until the end of the test.
    let adopt = |place, len| unsafe { Memory::adopt(&context, place, len) };
    let queue = context.create_queue().unwrap();
    for byte in [10, 20] {
        let memory = adopt(place, 2 * BYTES).unwrap();
        let fill = Command::fill(memory.all(), &[byte]).unwrap();
        queue.submit(fill).unwrap();
        queue.finish_timeout(SOON).unwrap();
        let handle = memory.handle().unwrap().to_string();
        let mut peer = again("memory_of_the_program_is_shared");
        let peer = peer.env(HANDLE, handle).output().unwrap();
        let said = String::from_utf8_lossy(&peer.stderr);
        assert!(peer.status.success() && !said.contains("MISUSE"), "{said}");
        assert_eq!(ends(&queue, &memory), [byte + 1; 2]);
    }
    let refused = |refused: crosshandle_types::error::Result<_>, text: &str| {
        let error = refused.map(|_: crosshandle::Memory| ()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    // SAFETY: the allocation lives until the end of the test. A transfer of ownership is refused.
    let whole = |ownership| unsafe { Memory::adopt_allocation(&context, place, ownership) };
    assert_eq!(whole(Ownership::Borrowed).unwrap().len(), 3 * BYTES);
    refused(whole(Ownership::Owned), "by its start");
    refused(adopt(place, 4 * BYTES), "one allocation");
    refused(adopt(NonNull::from(&context).cast(), 1), "no device memory");
    refused(adopt(place, 0), "no bytes");
    let options =
        crosshandle_types::AllocationOptions::new(BYTES).kind(crosshandle_types::MemoryKind::Host);
    let host = context.allocate_with(options).unwrap();
    refused(
        adopt(NonNull::new(host.as_ptr()).unwrap(), 1),
        "no device memory",
    );
}

/// Opens memory and writes to it, in the other process.
fn open(handle: &MemoryHandle) {
    let context = context();
    let queue = context.create_queue().unwrap();
    let memory = context.open_memory(handle).unwrap();
    let [byte, same] = ends(&queue, &memory);
    assert_eq!(byte, same);
    let fill = Command::fill(memory.all(), &[byte + 1]).unwrap();
    queue.submit(fill).unwrap();
    queue.finish_timeout(SOON).unwrap();
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn an_event_of_the_driver_happens_also_if_ours_has_failed() {
    if !simulated("an_event_of_the_driver_happens_also_if_ours_has_failed") {
        return;
    }
    let context = context();
    let queue = context.create_queue().unwrap();
    let [gate, event] = [(); 2].map(|()| context.create_event().unwrap());
    let command = Command::call(|| Err::<(), _>("no"));
    queue
        .submit(command.after_value(&gate, 1).signal(&event))
        .unwrap();
    let theirs = NativeEvent::new(&context, &event).unwrap();
    assert!(!has_happened(&context, theirs.native(), Duration::ZERO));
    gate.signal().unwrap();
    assert!(has_happened(&context, theirs.native(), SOON));
    assert!(event.wait_timeout(SOON).is_err());
    // Adopt the event again. It tells that it happened, but not with which result.
    // SAFETY: the event lives until the end of the test.
    let adopted = unsafe {
        let options = EventOptions::new();
        Event::adopt(&context, theirs.native(), Ownership::Borrowed, options)
    };
    adopted.unwrap().wait_timeout(SOON).unwrap();
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn a_command_of_the_program_that_fails_takes_nothing_along() {
    if !simulated("a_command_of_the_program_that_fails_takes_nothing_along") {
        return;
    }
    let context = context();
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = context.create_queue_with(order).unwrap();
        let memory = context.allocate(BYTES).unwrap();
        let [gate, done] = [(); 2].map(|()| context.create_event().unwrap());
        // SAFETY: the function does nothing.
        let refused = unsafe { Command::native(|_| Err("no, thank you")) };
        let error = queue.submit(refused.after_value(&gate, 1)).unwrap_err();
        assert!(error.to_string().contains("no, thank you"), "{error}");
        let fill = Command::fill(memory.all(), &[9]).unwrap();
        // SAFETY: the function does nothing.
        let nothing = unsafe { Command::native(|_| Ok::<_, &str>(())) };
        queue.submit(fill.after_value(&gate, 1)).unwrap();
        queue.submit(nothing.after_earlier().signal(&done)).unwrap();
        assert!(!done.try_wait().unwrap() && !queue.is_idle());
        gate.signal().unwrap();
        done.wait_timeout(SOON).unwrap();
        queue.finish_timeout(SOON).unwrap();
        assert!(queue.is_idle() && !memory.is_in_use());
        assert_eq!(ends(&queue, &memory), [9; 2]);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn what_a_refused_command_used_is_kept_until_the_list_is_past_it() {
    if !simulated("what_a_refused_command_used_is_kept_until_the_list_is_past_it") {
        return;
    }
    let context = context();
    let queue = context.create_queue().unwrap();
    // From now on, all commands go to the list that the program may append to.
    queue.native().unwrap();
    let memory = context.allocate(BYTES).unwrap();
    let [gates, done] = [(); 2].map(|()| context.create_event().unwrap());
    for value in [1, 2] {
        let fill = Command::fill(memory.all(), &[9]).unwrap();
        let fill = fill.after_value(&gates, value).signal(&done);
        queue.submit(fill).unwrap();
    }
    let used = Arc::new(());
    let kept = Arc::downgrade(&used);
    // SAFETY: the function does nothing.
    let refused = unsafe {
        Command::native(move |_| {
            let _ = &used;
            Err("no, thank you")
        })
    };
    queue.submit(refused).unwrap_err();
    gates.signal().unwrap();
    done.wait_value_timeout(1, SOON).unwrap();
    // The list has ended a command, but has not passed the refused one yet.
    assert!(kept.upgrade().is_some());
    gates.signal().unwrap();
    queue.finish_timeout(SOON).unwrap();
    assert!(kept.upgrade().is_none());
}

/// Returns whether a thread of this process sleeps in the kernel.
fn is_asleep(thread: rustix::process::Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    status.rsplit_once(") ").unwrap().1.starts_with('S')
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn finish_waits_for_nothing_that_comes_later() {
    if !simulated("finish_waits_for_nothing_that_comes_later") {
        return;
    }
    let context = context();
    let orders = [QueueOrder::InOrder, QueueOrder::OutOfOrder];
    for (order, is_shared) in orders
        .iter()
        .flat_map(|order| [(*order, false), (*order, true)])
    {
        let queue = context.create_queue_with(order).unwrap();
        if is_shared {
            queue.native().unwrap();
        }
        let [gate, later] = [(); 2].map(|()| context.create_event().unwrap());
        let after = |event| Command::barrier().after_value(event, 1);
        queue.submit(after(&gate)).unwrap();
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let queue = &queue;
            let finishing = scope.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                queue.finish_timeout(SOON)
            });
            let thread = told.recv_timeout(SOON).unwrap();
            let end = Instant::now() + SOON;
            // A sleep on a lock is short, so the thread must be seen asleep several times in a row.
            let mut looks = 0;
            while looks < 5 {
                assert!(Instant::now() < end, "it does not wait");
                looks = if is_asleep(thread) { looks + 1 } else { 0 };
                std::thread::sleep(Duration::from_millis(1));
            }
            queue.submit(after(&later)).unwrap();
            gate.signal().unwrap();
            finishing.join().unwrap().unwrap();
        });
        assert!(!queue.is_idle());
        later.signal().unwrap();
        queue.finish_timeout(SOON).unwrap();
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn what_is_another_drivers_is_refused() {
    if !simulated("what_is_another_drivers_is_refused") {
        return;
    }
    let (context, device) = (context(), Device::find("level_zero:0").unwrap());
    let of_host = NativeObject::new(crosshandle_handle::BackendKind::Host, 64);
    let options = crosshandle::ContextOptions::new();
    // SAFETY: the objects are refused before they are used.
    unsafe {
        assert!(Queue::adopt(&context, of_host, Ownership::Borrowed).is_err());
        assert!(Context::adopt(&device, of_host, options.clone()).is_err());
        let same = Context::adopt(&device, context.native().unwrap(), options).unwrap();
        assert_eq!(same.native(), context.native());
    }
    let driver = device.native_driver().unwrap();
    assert_eq!(driver, native(Driver::all().unwrap()[0].handle.0.addr()));
    assert!(Path::new(&std::env::var("ZE_ENABLE_ALT_DRIVERS").unwrap()).is_file());
    assert_eq!(Device::find("host").unwrap().native_driver(), None);
}
