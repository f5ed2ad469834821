//! Costs of single driver calls, which explain other rows.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use crosshandle::Command;

use super::ours;
use super::rows::row;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::{clock_cost, nanoseconds, once, per_operation};
use crate::raw::cuda::{Event, Gpu, Memory, Operation, Page, Registered, Stream};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Target};

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-calls",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        call("cuda-calls.current", "cuCtxGetCurrent"),
        call("cuda-calls.query", "cuStreamQuery, stream idle"),
        call("cuda-calls.write-64", "cuStreamWriteValue64"),
        call("cuda-calls.write-32", "cuStreamWriteValue32"),
        call("cuda-calls.wait-64", "cuStreamWaitValue64, reached"),
        call("cuda-calls.wait-32", "cuStreamWaitValue32, reached"),
        call("cuda-calls.batch-write", "cuStreamBatchMemOp, one write"),
        call("cuda-calls.batch-two", "cuStreamBatchMemOp, wait and write"),
        call("cuda-calls.record", "cuEventRecord"),
        call("cuda-calls.blocked-query", "cuStreamQuery, stream waiting"),
        call("cuda-calls.copies", "16 copies of 64 MiB"),
        call(
            "cuda-calls.copies-marked",
            "16 copies of 64 MiB, cuStreamWriteValue64 after every fourth",
        ),
        call(REGISTER[0].1, "cuMemHostRegister, 4 KiB"),
        call(REGISTER[1].1, "cuMemHostRegister, 64 KiB"),
        call(REGISTER[2].1, "cuMemHostRegister, 2 MiB"),
        row(
            MARKER,
            "submit a command that does nothing",
            "none",
            Target::None,
        ),
        row(IS_IDLE, "ask a queue that is idle", "none", Target::None),
    ],
    leader: run_leader,
    follower: no_follower,
};

/// Describes a row that shows the cost of a driver call.
const fn call(id: &'static str, what: &'static str) -> RowSpec {
    row(id, what, "the call itself", Target::None)
}

const MARKER: &str = "cuda-calls.nothing";
const IS_IDLE: &str = "cuda-calls.is-idle";

/// Sizes of registered memory. The first wait for another process's event registers memory like
/// this.
const REGISTER: [(usize, &str); 3] = [
    (4 << 10, "cuda-calls.register-4KiB"),
    (64 << 10, "cuda-calls.register-64KiB"),
    (2 << 20, "cuda-calls.register-2MiB"),
];

const CALLS_PER_BATCH: usize = 32;
const COPIES: usize = 16;
const COPY_BYTES: usize = 64 << 20;

/// Offset on the page of the word that the host writes and that streams wait for, in bytes.
const RELEASE_OFFSET: usize = 0;
/// Offset on the page of the word that streams write, in bytes.
const WRITTEN_OFFSET: usize = 256;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let page = Page::register(&gpu, memfd::create(Page::LENGTH)?)?;
    let (release, host_release) = (
        page.device_word(RELEASE_OFFSET)?,
        page.word(RELEASE_OFFSET)?,
    );
    let written = page.device_word(WRITTEN_OFFSET)?;
    let stream = Stream::create(&gpu)?;
    let event = Event::create(&gpu)?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    participant.plan.pin(0)?;

    let mut recorder = Recorder::default();
    let mut time = |row, call: &dyn Fn() -> Result<()>| -> Result<()> {
        let elapsed = per_operation(CALLS_PER_BATCH, call)?;
        recorder.push(row, Side::Raw, elapsed);
        Ok(())
    };
    for number in 1..=participant.plan.pick(300_u32, 100) {
        let value = u64::from(number);
        time("cuda-calls.current", &|| gpu.query_current())?;
        time("cuda-calls.write-64", &|| stream.write(written, value))?;
        stream.synchronize()?;
        time("cuda-calls.query", &|| {
            stream.query();
            Ok(())
        })?;
        time("cuda-calls.write-32", &|| stream.write_32(written, number))?;
        stream.synchronize()?;
        time("cuda-calls.wait-64", &|| stream.wait(release, 0))?;
        stream.synchronize()?;
        time("cuda-calls.wait-32", &|| stream.wait_32(release, 0))?;
        stream.synchronize()?;
        time("cuda-calls.batch-write", &|| {
            stream.batch([Operation::Write(written, value)])
        })?;
        stream.synchronize()?;
        time("cuda-calls.batch-two", &|| {
            stream.batch([
                Operation::Wait(release, 0),
                Operation::Write(written, value),
            ])
        })?;
        stream.synchronize()?;
        time("cuda-calls.record", &|| stream.record(&event))?;
        stream.synchronize()?;
        stream.wait(release, value)?;
        time("cuda-calls.blocked-query", &|| {
            stream.query();
            Ok(())
        })?;
        host_release.store(value, Ordering::Release);
        stream.synchronize()?;
    }
    let clock = clock_cost();
    for _ in 0..participant.plan.pick(30, 10) {
        for (length, row) in REGISTER {
            let mapping = Mapping::shared(memfd::create(length)?, length)?;
            mapping.region().touch_pages(1);
            let register = || Registered::new(&gpu, &mapping, length);
            let (_registered, elapsed) = once(clock, register)?;
            recorder.push(row, Side::Raw, elapsed);
        }
    }
    let (to, from) = (
        Memory::allocate(&gpu, COPY_BYTES)?,
        Memory::allocate(&gpu, COPY_BYTES)?,
    );
    for _ in 0..participant.plan.pick(100, 30) {
        for (row, copies_per_write) in [
            ("cuda-calls.copies", COPIES),
            ("cuda-calls.copies-marked", COPIES / 4),
        ] {
            let start = Instant::now();
            for copy in 1..=COPIES {
                stream.copy(&to, &from, COPY_BYTES)?;
                if copy < COPIES && copy.is_multiple_of(copies_per_write) {
                    stream.write(written, 0)?;
                }
            }
            stream.synchronize()?;
            recorder.push(row, Side::Raw, nanoseconds(start.elapsed()));
        }
    }
    for _ in 0..participant.plan.pick(300, 100) {
        let elapsed = per_operation(CALLS_PER_BATCH, || queue.submit(Command::marker()))?;
        recorder.push(MARKER, Side::Ours, elapsed);
        queue.finish()?;
        let ask = || -> Result<()> {
            black_box(queue.is_idle());
            Ok(())
        };
        recorder.push(IS_IDLE, Side::Ours, per_operation(CALLS_PER_BATCH, ask)?);
    }
    Ok(recorder.finish())
}
