//! Tests with the program's own contexts, streams and events next to this library's.

use super::super::driver::sys;
use crosshandle::native::NativeEvent;
use crosshandle::{
    Command, Context, ContextOptions, Device, Event, EventOptions, Memory, MemoryRange, Queue,
};
use crosshandle_handle::BackendKind;
use crosshandle_types::error::Error;
use crosshandle_types::{NativeObject, Ownership};
use std::ptr::{self, NonNull};
use std::time::Duration;

pub(super) const SOON: Duration = Duration::from_secs(10);
pub(super) const BYTES: usize = 1 << 20;

pub(super) fn context() -> Context {
    Context::new(&Device::find("cuda").unwrap()).unwrap()
}

pub(super) fn native(value: usize) -> NativeObject {
    NativeObject::new(BackendKind::Cuda, value)
}

/// Makes a context current on this thread, as programs do.
pub(super) fn make_current(context: NativeObject) {
    // SAFETY: the context is live.
    let code = unsafe { sys::cuCtxSetCurrent(context.raw() as sys::CUcontext) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

fn current() -> usize {
    let mut current = ptr::null_mut();
    // SAFETY: the result is live.
    let code = unsafe { sys::cuCtxGetCurrent(&mut current) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    current as usize
}

/// A stream of the program, in the current context.
pub(super) struct Theirs(sys::CUstream);

impl Theirs {
    pub(super) fn new() -> Self {
        let mut stream = ptr::null_mut();
        // SAFETY: the result is live.
        let code = unsafe { sys::cuStreamCreate(&mut stream, 1) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        Self(stream)
    }

    pub(super) fn handle(&self) -> NativeObject {
        native(self.0 as usize)
    }

    fn fill(&self, memory: &Memory, byte: u8) {
        let start = memory.as_ptr() as sys::CUdeviceptr;
        // SAFETY: the memory is live, and the tests keep it until the stream has finished.
        let code = unsafe { sys::cuMemsetD8Async(start, byte, memory.len(), self.0) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }

    /// Makes the stream wait until a word is no longer 0. The device can access the word's memory.
    pub(super) fn wait_for(&self, word: &Memory) {
        let word = word.as_ptr() as sys::CUdeviceptr;
        // SAFETY: the memory is live, and the tests keep it until the stream has finished.
        let code = unsafe { sys::cuStreamWaitValue32_v2(self.0, word, 1, 0) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }

    pub(super) fn begin_capture(&self) {
        // SAFETY: the stream is live, and zero is a capture mode.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.0, std::mem::zeroed()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }

    pub(super) fn end_capture(&self) {
        let mut graph = ptr::null_mut();
        // SAFETY: the stream and the result are live.
        let code = unsafe { sys::cuStreamEndCapture(self.0, &mut graph) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }

    fn wait(&self, event: NativeObject) {
        // SAFETY: the stream and the event are live.
        let code = unsafe { sys::cuStreamWaitEvent(self.0, event.raw() as sys::CUevent, 0) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }
}

/// Reads the first and the last byte of some memory, through a queue.
pub(super) fn ends(queue: &Queue, memory: &Memory) -> [u8; 2] {
    let mut found = [0; 2];
    let places = [0, memory.len() - 1];
    for (byte, place) in found.iter_mut().zip(places) {
        // SAFETY: the byte is a live local, and the queue finishes below before it is read.
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
    // SAFETY: the bytes are a live local. The compiler does not see that the device wrote them.
    unsafe { (&raw const found).read_volatile() }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_stream_of_the_program_runs_both_sides_commands_in_order() {
    let context = context();
    make_current(context.native().unwrap());
    let stream = Theirs::new();
    // SAFETY: the stream lives until the end of the test.
    let queue = unsafe { Queue::adopt(&context, stream.handle(), Ownership::Borrowed).unwrap() };
    assert_eq!(queue.native(), Some(stream.handle()));
    let memory = context.allocate(BYTES).unwrap();
    let gate = context.create_event().unwrap();
    let done = context.create_event().unwrap();
    queue
        .submit(Command::barrier().after_value(&gate, 1))
        .unwrap();
    queue
        .submit(Command::fill(memory.all(), &[1]).unwrap())
        .unwrap();
    stream.fill(&memory, 2);
    queue.signal(&done).unwrap();
    stream.fill(&memory, 3);
    assert!(!queue.is_idle() && !done.try_wait().unwrap());
    gate.signal().unwrap();
    done.wait_timeout(SOON).unwrap();
    // This also waits for the program's own work.
    queue.finish_timeout(SOON).unwrap();
    assert_eq!(ends(&queue, &memory), [3, 3]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_stream_of_the_program_may_go_when_it_is_done() {
    let context = context();
    make_current(context.native().unwrap());
    let memory = context.allocate(BYTES).unwrap();
    for _ in 0..10 {
        let stream = Theirs::new();
        // SAFETY: the stream lives until all its work has finished.
        let queue = unsafe { Queue::adopt(&context, stream.handle(), Ownership::Borrowed) };
        let queue = queue.unwrap();
        let [gate, done] = [(); 2].map(|()| context.create_event().unwrap());
        let fill = Command::fill(memory.all(), &[1]).unwrap();
        queue
            .submit(fill.after_value(&gate, 1).signal(&done))
            .unwrap();
        drop(queue);
        gate.signal().unwrap();
        // SAFETY: the stream is live, and not used after this.
        unsafe {
            let code = sys::cuStreamSynchronize(stream.0);
            assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
            sys::cuStreamDestroy_v2(stream.0);
        }
        done.wait_timeout(SOON).unwrap();
    }
    // The scheduler tends the queue in this time.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!memory.is_in_use());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_queue_shows_its_stream_and_counts_what_others_submit() {
    let context = context();
    make_current(context.native().unwrap());
    let queue = context.create_queue().unwrap();
    let shown = Theirs(queue.native().unwrap().raw() as sys::CUstream);
    let memory = context.allocate(BYTES).unwrap();
    let gate = context.create_event().unwrap();
    queue
        .submit(Command::barrier().after_value(&gate, 1))
        .unwrap();
    shown.fill(&memory, 7);
    assert!(!queue.is_idle());
    gate.signal().unwrap();
    queue.finish_timeout(SOON).unwrap();
    assert_eq!(ends(&queue, &memory), [7, 7]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_command_of_the_program_has_its_place_among_ours() {
    let context = context();
    make_current(context.native().unwrap());
    for order in [
        crosshandle_types::QueueOrder::InOrder,
        crosshandle_types::QueueOrder::OutOfOrder,
    ] {
        let queue = context.create_queue_with(order).unwrap();
        let memory = context.allocate(BYTES).unwrap();
        let [gate, done] = [(); 2].map(|()| context.create_event().unwrap());
        let start = memory.as_ptr() as sys::CUdeviceptr;
        // SAFETY: the function only submits work, on memory that lives until the end of the test.
        let command = unsafe {
            Command::native(move |queue| {
                let code = sys::cuMemsetD8Async(start, 9, BYTES, queue as sys::CUstream);
                (code == sys::CUresult::CUDA_SUCCESS)
                    .then_some(())
                    .ok_or("refused")
            })
        };
        queue
            .submit(command.after_value(&gate, 1).signal(&done))
            .unwrap();
        assert!(!done.try_wait().unwrap());
        gate.signal().unwrap();
        done.wait_timeout(SOON).unwrap();
        assert_eq!(ends(&queue, &memory), [9, 9]);
        // SAFETY: the function does nothing.
        let refused = unsafe { Command::native(|_| Err("no, thank you")) };
        assert!(
            queue
                .submit(refused)
                .unwrap_err()
                .to_string()
                .contains("no, thank you")
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn events_cross_both_ways() {
    let context = context();
    make_current(context.native().unwrap());
    let stream = Theirs::new();
    let memory = context.allocate(BYTES).unwrap();
    let queue = context.create_queue().unwrap();
    for byte in 1..20 {
        let [gate, filled] = [(); 2].map(|()| context.create_event().unwrap());
        // The driver waits for an event of this library whose signal is submitted later.
        queue
            .submit(Command::barrier().after_value(&gate, 1).signal(&filled))
            .unwrap();
        let native_filled = NativeEvent::new(&context, &filled).unwrap();
        stream.wait(native_filled.native());
        stream.fill(&memory, byte);
        // This library adopts an event of the driver.
        let mut recorded = ptr::null_mut();
        // SAFETY: the result and the stream are live.
        let code = unsafe {
            let code = sys::cuEventCreate(&mut recorded, 2);
            assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
            sys::cuEventRecord(recorded, stream.0)
        };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        let given = if byte % 2 == 0 {
            Ownership::Owned
        } else {
            Ownership::Borrowed
        };
        // SAFETY: the event is live, and is destroyed only once.
        let done: Event = unsafe {
            let recorded = native(recorded as usize);
            Event::adopt(&context, recorded, given, EventOptions::new()).unwrap()
        };
        assert!(!done.try_wait().unwrap(), "{byte}");
        gate.signal().unwrap();
        done.wait_timeout(SOON).unwrap();
        assert_eq!(ends(&queue, &memory), [byte; 2]);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_cannot_be_adopted_is_refused() {
    let context = context();
    make_current(context.native().unwrap());
    // SAFETY: the handles are live streams, or are refused before they are used.
    let adopt = |value| unsafe { Queue::adopt(&context, native(value), Ownership::Borrowed) };
    assert!(
        matches!(adopt(2), Err(Error::Unsupported(_))),
        "a thread's default stream"
    );
    let of_host = NativeObject::new(BackendKind::Host, 2);
    // SAFETY: the handle is refused before it is used.
    let refused = unsafe { Queue::adopt(&context, of_host, Ownership::Borrowed) };
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    for default in [0, 1] {
        let queue = adopt(default).unwrap();
        let done = context.create_event().unwrap();
        queue.signal(&done).unwrap();
        done.wait_timeout(SOON).unwrap();
        queue.finish_timeout(SOON).unwrap();
    }
    let stream = Theirs::new();
    let queue = adopt(stream.0 as usize).unwrap();
    let event = context.create_event().unwrap();
    stream.begin_capture();
    let refused = queue.signal(&event);
    stream.end_capture();
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("captured"), "{message}");
    queue.signal(&event).unwrap();
    event.wait_timeout(SOON).unwrap();
    queue.finish_timeout(SOON).unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_context_of_the_program_works_and_can_be_destroyed_afterwards() {
    let device = Device::find("cuda").unwrap();
    let ordinary = context();
    make_current(ordinary.native().unwrap());
    let mut made = ptr::null_mut();
    // SAFETY: the result is live.
    let code = unsafe { sys::cuCtxCreate_v2(&mut made, 0, device.native().unwrap().raw() as i32) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    let stream = Theirs::new();
    make_current(ordinary.native().unwrap());

    let made = native(made as usize);
    // SAFETY: the stream lives until all objects in its context are dropped.
    let refused = unsafe { Queue::adopt(&ordinary, stream.handle(), Ownership::Borrowed) };
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "a stream of another context"
    );
    let event = ordinary.create_event().unwrap();
    {
        // SAFETY: the context lives until all objects in it are dropped.
        let inside = unsafe { Context::adopt(&device, made, ContextOptions::new()).unwrap() };
        assert_eq!(inside.native(), Some(made));
        // SAFETY: ownership of the stream is passed on.
        let adopted = unsafe { Queue::adopt(&inside, stream.handle(), Ownership::Owned).unwrap() };
        for queue in [adopted, inside.create_queue().unwrap()] {
            let memory = inside.allocate(BYTES).unwrap();
            let host = inside
                .allocate_with(
                    crosshandle_types::AllocationOptions::new(64)
                        .kind(crosshandle_types::MemoryKind::Host),
                )
                .unwrap();
            queue
                .submit(Command::fill(memory.all(), &[5]).unwrap())
                .unwrap();
            queue
                .submit(Command::fill(host.all(), &[4]).unwrap())
                .unwrap();
            let profiled = inside
                .create_event_with(EventOptions::new().profiling(true))
                .unwrap();
            queue.submit(Command::barrier().signal(&profiled)).unwrap();
            queue.signal(&event).unwrap();
            event.wait_timeout(SOON).unwrap();
            profiled.wait_timeout(SOON).unwrap();
            let times = profiled.profile().unwrap();
            assert!(times.submitted <= times.started && times.started <= times.ended);
            assert_eq!(ends(&queue, &memory)[0], 5);
            let mut found = [0; 64];
            host.read(0, &mut found).unwrap();
            assert_eq!(found, [4; 64]);
            queue.finish_timeout(SOON).unwrap();
        }
        assert_eq!(current(), ordinary.native().unwrap().raw());
    }
    // Pinned memory is released when no stream waits, which may be after the end of the context.
    let waiting = ordinary.create_queue().unwrap();
    waiting
        .submit(Command::barrier().after_value(&event, event.submitted() + 1))
        .unwrap();
    // SAFETY: the context lives until all objects in it are dropped.
    let inside = unsafe { Context::adopt(&device, made, ContextOptions::new()).unwrap() };
    let pinned =
        crosshandle_types::AllocationOptions::new(64).kind(crosshandle_types::MemoryKind::Host);
    drop(inside.allocate_with(pinned).unwrap());
    drop(inside);
    // The driver destroys no context while a stream of the device waits, even one of another
    // context.
    let opener = {
        let event = event.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            event.signal().unwrap();
        })
    };
    // SAFETY: nothing uses the context any more.
    let code = unsafe { sys::cuCtxDestroy_v2(made.raw() as sys::CUcontext) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    opener.join().unwrap();
    waiting.finish_timeout(SOON).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    // Memory that was registered in the meantime can still be used.
    let queue = ordinary.create_queue().unwrap();
    queue.signal(&event).unwrap();
    event.wait_timeout(SOON).unwrap();
}
