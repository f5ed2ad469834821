//! A test in which a Rust program opens the memory, the physical memory and the event of a UR
//! program.

use crate::process::Program;
use crate::runtime::Runtime;
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{
    Context, ContextOptions, Device, EventHandle, MemoryHandle,
    virtual_memory::PhysicalMemoryHandle,
};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Receives one handle from a client. The format is `struct bytes` in `clients/include/peer.h`.
fn receive(link: &mut UnixStream) -> Vec<u8> {
    let (mut size, mut data) = ([0; 8], [0; 256]);
    link.read_exact(&mut size).expect("a size");
    link.read_exact(&mut data).expect("a handle");
    data[..usize::from_ne_bytes(size)].to_vec()
}

pub(crate) fn opens_what_a_ur_program_shares() {
    let runtime = Runtime::find();
    // The client exports one object of each kind, and exits when its socket is closed.
    let mut exporter = Program::new(&runtime.client("hostile_handles"), &runtime);
    let (mut link, theirs) = UnixStream::pair().expect("a pair of sockets");
    link.set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout");
    exporter.argument("exporter");
    let options = ContextOptions::new().socket_dir(exporter.socket_directory());
    let running = exporter.start(OwnedFd::from(theirs), None);

    let device = Device::find("host").expect("there is always a host");
    let context = Context::with_options(&device, options).expect("a context");
    let memory = MemoryHandle::from_bytes(&receive(&mut link)).expect("a handle to memory");
    let memory = context.open_memory(&memory).expect("memory");
    let mut words = [0; 8];
    memory.read(0, &mut words).expect("its content");
    // The values of `word_of(1, 0)` and `word_of(1, 1)` in `clients/include/ur.h`.
    let expected = [1_u32, 2].map(|place| place.wrapping_mul(2_654_435_761) ^ 40_503);
    assert_eq!(
        words,
        [expected[0].to_ne_bytes(), expected[1].to_ne_bytes()].concat()[..]
    );

    let physical = PhysicalMemoryHandle::from_bytes(&receive(&mut link)).expect("a handle");
    PhysicalMemory::open(&context, &physical).expect("physical memory");
    let event = EventHandle::from_bytes(&receive(&mut link)).expect("a handle to an event");
    let event = context.open_event(&event).expect("an event");
    event
        .wait_submitted()
        .expect("nothing was submitted, so Unified Runtime's rule has nothing to wait for");
    event.signal().expect("a signal");
    drop(link);
    running.end();
}
