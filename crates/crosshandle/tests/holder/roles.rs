//! The roles of the second processes.

use crate::common::{Directory, Parent};
use crate::place::{Place, now_us};
use crate::{alone, check, holder_of, make_memory, open_held, place};
use crosshandle::holder::{ClaimOptions, HoldOptions};
use crosshandle::kernel::Program;
use crosshandle::{
    Command, Memory, MemoryHandle,
    handle::BackendKind,
    kernel::{KernelArguments, LaunchShape, ProgramImage},
};
use std::time::{Duration, Instant};

/// Number of threads of the kernel that writes. `WRITTEN` is the number of bytes that all of them
/// write.
const THREADS: usize = 256;
const WRITTEN: usize = 16 * THREADS;

/// A kernel in which each thread writes increasing numbers to a word and `epoch` to the next word,
/// without end.
const ENDLESS: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 words, .param .u64 epoch)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    ld.param.u64 %d0, [words];
    cvta.to.global.u64 %d0, %d0;
    mul.wide.u32 %d1, %r3, 16;
    add.u64 %d0, %d0, %d1;
    ld.param.u64 %d2, [epoch];
    mov.u64 %d3, 0;
again:
    add.u64 %d3, %d3, 1;
    st.volatile.global.u64 [%d0], %d3;
    st.volatile.global.u64 [%d0+8], %d2;
    bra again;
}
";

/// Allocates memory and hands it over, by the commands `make SEED`, `hand-over SEED NAME`,
/// `publish SEED NAME` and `drop SEED`.
pub(crate) fn make() {
    let directory = Directory::inherited();
    let (place, holder) = (alone(&directory), holder_of(&directory));
    let mut parent = Parent::new();
    let mut all = std::collections::BTreeMap::new();
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        let seed: u64 = words[1].parse().expect("a number");
        match words[0] {
            "make" => {
                let memory = make_memory(&place, seed);
                parent.say(memory.handle().expect("a handle"));
                all.insert(seed, memory);
            }
            "handles" => {
                let memory = all.entry(seed).or_insert_with(|| make_memory(&place, seed));
                let writes = memory.handle().expect("a handle");
                let reads = memory.handle_read_only().expect("a handle");
                parent.say(format_args!("{writes} {reads}"));
            }
            "drop" => {
                all.remove(&seed);
                parent.say("dropped");
            }
            verb => {
                let memory = all.entry(seed).or_insert_with(|| make_memory(&place, seed));
                let options = HoldOptions::new()
                    .label(words[1])
                    .replaces(verb == "publish");
                let done = holder.hand_over(words[2], &[("memory", memory)], options);
                match done {
                    Ok(done) => parent.say(format_args!("held {} {}", done.version, done.is_safe)),
                    Err(error) => parent.say(format_args!("refused {error}")),
                }
            }
        }
    }
}

/// Claims a name and writes, by the commands `claim NAME WAIT_MS FORCE`, `fill` (until it is
/// killed), `fork`, `end` and `drop`.
pub(crate) fn write() {
    let directory = Directory::inherited();
    let (place, holder) = (place(&directory), holder_of(&directory));
    let mut parent = Parent::new();
    let mut claimed = None;
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "claim" => {
                let wait = Duration::from_millis(words[2].parse().expect("a number"));
                let options = ClaimOptions::new().wait(wait).force(words[3] == "true");
                match holder.claim(words[1], &options) {
                    Ok(lease) => {
                        let granted = now_us();
                        let handle = lease.held().parts[0].handle.expect("for writing");
                        let memory = place.open_memory(&handle).expect("opened");
                        parent.say(format_args!("epoch {} {handle} {granted}", lease.epoch()));
                        claimed = Some((Some(lease), Some(memory)));
                    }
                    Err(error) => parent.say(format_args!("refused {error}")),
                }
            }
            "fill" => {
                let (lease, memory) = claimed.take().expect("claimed");
                let (epoch, memory) = (lease.expect("it").epoch(), memory.expect("it"));
                // The last write of the previous writer must stay, because no other process writes.
                await_silence(&place, &memory);
                fill(&place, &memory, epoch, || parent.say("filling"));
            }
            "fork" => {
                // SAFETY: the child calls only pause(2) and _exit(2).
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: both calls are safe in a forked child.
                    unsafe {
                        libc::pause();
                        libc::_exit(0);
                    }
                }
                assert!(child > 0, "a child");
                parent.say(child);
            }
            "end" => {
                let (lease, _) = claimed.as_mut().expect("claimed");
                lease.take().expect("not ended").end().expect("ended");
                parent.say("ended");
            }
            _ => {
                claimed = None;
                parent.say("dropped");
            }
        }
    }
}

/// Opens and checks memory, by the commands `open HANDLE SEED`, `check`, `names`, `keep NAME`,
/// `await NAME VERSION`, `offer` and `forget`.
pub(crate) fn read() {
    let directory = Directory::inherited();
    let mut parent = Parent::new();
    let place = place(&directory);
    let mut open: Vec<(u64, Memory)> = Vec::new();
    let mut backups = Vec::new();
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "open" => {
                let handle: MemoryHandle = words[1].parse().expect("a handle");
                match place.open_memory_read_only(&handle) {
                    Ok(memory) => {
                        open.push((words[2].parse().expect("a number"), memory));
                        parent.say("opened");
                    }
                    Err(error) => parent.say(format_args!("refused {error:#?}")),
                }
            }
            "keep" => {
                let holder = holder_of(&directory);
                let held = holder.open(words[1]).expect("held");
                backups.push(holder.back_up(&held).expect("a backup"));
                open.push((
                    held.label.parse().expect("a number"),
                    open_held(&place, &held).expect("opened"),
                ));
                parent.say("kept");
            }
            "await" => {
                let version = words[2].parse().expect("a number");
                parent.say("waits");
                let holder = holder_of(&directory);
                match holder.await_version(words[1], version, crate::DEADLINE) {
                    Ok(held) => parent.say(format_args!("version {}", held.version)),
                    Err(error) => parent.say(format_args!("refused {error}")),
                }
            }
            "offer" => {
                let backup = backups.last().expect("one is kept");
                match backup.offer() {
                    Ok(()) => parent.say("taken"),
                    Err(error) => parent.say(format_args!("refused {error}")),
                }
            }
            "forget" => {
                backups.clear();
                parent.say("forgotten");
            }
            "names" => {
                let names = holder_of(&directory).list().expect("names");
                for name in names {
                    // The name may be removed or replaced by now.
                    if let Ok(held) = holder_of(&directory).open(&name.name)
                        && let Ok(memory) = open_held(&place, &held)
                    {
                        open.push((held.label.parse().expect("a number"), memory));
                    }
                }
                parent.say("opened");
            }
            _ => {
                for (seed, memory) in &open {
                    check(&place, memory, *seed);
                }
                parent.say("good");
            }
        }
    }
}

/// Reads memory repeatedly, and checks that its bytes do not change.
fn await_silence(place: &Place, memory: &Memory) {
    let last = place.read(memory, 0, WRITTEN);
    // A GPU's writes continue for about 10 ms after their process was killed.
    let until = Instant::now() + Duration::from_millis(if place.is_cuda() { 12 } else { 0 });
    let mut looks = 0;
    while looks < 200 || Instant::now() < until {
        std::thread::yield_now();
        let now = place.read(memory, 0, WRITTEN);
        assert!(now == last, "another process writes");
        looks += 1;
    }
}

/// Writes until this process is killed, and calls `writes` after the first write. On a GPU, a
/// kernel writes.
fn fill(place: &Place, memory: &Memory, epoch: u64, writes: impl FnOnce()) -> ! {
    let word = |index: usize| {
        let bytes = place.read(memory, 8 * index, 8);
        u64::from_le_bytes(bytes.try_into().expect("a word"))
    };
    if place.device().info().backend == BackendKind::Cuda {
        let before = word(0);
        let queue = place.create_queue().expect("a queue");
        let program = Program::new(place, ProgramImage::text(ENDLESS)).expect("a program");
        let kernel = program.kernel("fill").expect("a kernel");
        let arguments = KernelArguments::new().with(&memory.all()).value(epoch);
        let shape = LaunchShape::covering(THREADS, 32).expect("a shape");
        // SAFETY: each thread writes 16 bytes, all inside the memory.
        let launch = unsafe { Command::launch(&kernel, shape, arguments) };
        queue.submit(launch.expect("a launch")).expect("submitted");
        while word(0) == before || word(1) != epoch {
            std::thread::yield_now();
        }
        writes();
        loop {
            assert_eq!(word(1), epoch, "another epoch's writer");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    place.write(memory, 8, &epoch.to_le_bytes());
    writes();
    for count in 0_u64.. {
        place.write(memory, 0, &count.to_le_bytes());
        assert_eq!(word(1), epoch, "another epoch's writer");
    }
    unreachable!("so many writes")
}
