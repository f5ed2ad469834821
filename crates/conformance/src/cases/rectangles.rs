//! Cases about copies and fills of rectangles with two and three dimensions.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::pattern::Random;
use crate::suite::PASSED;
use crate::{Transfer, pattern};
use crosshandle::{
    Command, Context, Error, Memory,
    memory::{Pitches, Region},
};

const LEN: usize = 200_000;

fn memory(context: &Context, transfer: &Transfer, seed: u64) -> Result<Memory, Failure> {
    let memory = context.allocate(LEN)?;
    transfer.write(&memory, 0, &pattern(seed, LEN))?;
    Ok(memory)
}

/// The start and the pitches of a rectangle in memory.
#[derive(Clone, Copy, Debug)]
struct Side {
    offset: usize,
    pitches: Pitches,
}

impl Side {
    /// Returns a random layout that fits a region into `LEN` bytes, with or without gaps.
    fn any(region: Region, random: &mut Random) -> Self {
        let gap = |random: &mut Random| random.below(3).saturating_sub(1) * random.below(9);
        let row = region.width + gap(random);
        let slice = row * (region.rows + gap(random));
        Self {
            offset: random.below(LEN - slice * region.slices),
            pitches: Pitches { row, slice },
        }
    }

    fn row(&self, slice: usize, row: usize) -> usize {
        self.offset + slice * self.pitches.slice + row * self.pitches.row
    }
}

/// Computes the expected bytes of the destination.
fn copied(region: Region, to: (Side, &mut [u8]), from: (Side, &[u8])) {
    for slice in 0..region.slices {
        for row in 0..region.rows {
            let (a, b) = (to.0.row(slice, row), from.0.row(slice, row));
            to.1[a..a + region.width].copy_from_slice(&from.1[b..b + region.width]);
        }
    }
}

/// Boxes of all shapes are copied into another process's memory, and back by that process's queue.
/// No other byte changes.
pub(crate) fn copies_cross(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let (queue, done) = (context.create_queue()?, context.create_event()?);
    let peer = harness.peer()?;
    peer.ask("queue q")?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    peer.ask(format!("allocate theirs {LEN}"))?;
    let handle = peer.ask("memory-handle theirs")?.remove(0).parse()?;
    let theirs = context.open_memory(&handle)?;
    let mine = memory(&context, &transfer, 1)?;
    peer.ask(format!("open-memory mine {}", mine.handle()?))?;
    let mut random = Random(7);
    let mut signals = 0;
    for round in 0..60 {
        // Some regions are larger than a submitting thread would copy at once.
        let most = if round % 10 == 9 { 40 } else { 9 };
        let region = Region {
            width: 1 + random.below(if round % 10 == 9 { 60 } else { 12 }),
            rows: 1 + random.below(most),
            slices: 1 + random.below(most),
        };
        let (a, b) = (
            Side::any(region, &mut random),
            Side::any(region, &mut random),
        );
        let (mut my_bytes, mut their_bytes) = (pattern(1, LEN), pattern(2, LEN));
        transfer.write(&mine, 0, &my_bytes)?;
        peer.ask(format!("write theirs 0 2 {LEN}"))?;

        copied(region, (a, &mut their_bytes), (b, &my_bytes));
        let command = Command::copy_rect(
            mine.range(b.offset..)?,
            b.pitches,
            theirs.range(a.offset..)?,
            a.pitches,
            region,
        )?;
        queue.submit(command.signal(&done))?;
        signals += 1;
        done.wait_value_timeout(signals, deadline())?;
        assert!(
            transfer.read(&theirs, 0, LEN)? == their_bytes,
            "there: {region:?} from {b:?} to {a:?}"
        );

        let Region {
            width,
            rows,
            slices,
        } = region;
        let side = |side: Side| {
            let Pitches { row, slice } = side.pitches;
            format!("{},{row},{slice}", side.offset)
        };
        copied(region, (b, &mut my_bytes), (a, &their_bytes));
        peer.ask(format!(
            "submit q copy-rect mine theirs {width},{rows},{slices} {} {} signal=done",
            side(b),
            side(a)
        ))?;
        signals += 1;
        done.wait_value_timeout(signals, deadline())?;
        assert!(
            transfer.read(&mine, 0, LEN)? == my_bytes,
            "back: {region:?} from {a:?} to {b:?}"
        );
    }
    PASSED
}

/// The rows of a matrix are copied to the rows of another one.
pub(crate) fn copies_rows(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let queue = context.create_queue()?;
    for (width, rows, to_pitch, from_pitch) in [
        (100, 50, 128, 300),
        (1_000, 150, 1_000, 1_300),
        (100, 50, 100, 100),
        (7, 1, 7, 7),
        (5, 0, 5, 5),
        (0, 5, 0, 3),
        (1, 2, LEN - 1, LEN - 1),
    ] {
        let (to, from) = (
            memory(&context, &transfer, 6)?,
            memory(&context, &transfer, 7)?,
        );
        let (mut wanted, source) = (pattern(6, LEN), pattern(7, LEN));
        for row in 0..rows {
            let (a, b) = (row * to_pitch, row * from_pitch);
            wanted[a..a + width].copy_from_slice(&source[b..b + width]);
        }
        let command = Command::copy_2d(from.all(), from_pitch, to.all(), to_pitch, width, rows)?;
        queue.submit(command)?;
        queue.finish_timeout(deadline())?;
        assert!(transfer.read(&to, 0, LEN)? == wanted, "{width} × {rows}");
    }
    PASSED
}

/// Patterns start again in every row, and bytes between the rows stay unchanged.
pub(crate) fn fills_rows(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let (queue, done) = (context.create_queue()?, context.create_event()?);
    let memory = memory(&context, &transfer, 3)?;
    peer.ask("queue q")?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    let mut wanted = pattern(3, LEN);
    for (number, (pattern_len, times, rows, pitch)) in [
        (1, 10, 5, 13),
        (3, 7, 100, 40),
        (4, 3, 3, 12),
        (16, 100, 80, 2_000),
        (17, 1, 1, 17),
        (2, 5, 0, 10),
        (5, 0, 9, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let (bytes, width) = (pattern(9, pattern_len), pattern_len * times);
        for row in 0..rows {
            let start = 11 + row * pitch;
            for (place, byte) in wanted[start..start + width]
                .iter_mut()
                .zip(bytes.iter().cycle())
            {
                *place = *byte;
            }
        }
        if number % 2 == 0 {
            let to = memory.range(11..)?;
            queue.submit(Command::fill_2d(to, pitch, width, rows, &bytes)?.signal(&done))?;
        } else {
            let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
            peer.ask(format!(
                "submit q fill-2d memory 11,{pitch},{width},{rows} {} signal=done",
                bytes.join(",")
            ))?;
        }
        done.wait_value_timeout(number as u64 + 1, deadline())?;
        assert!(
            transfer.read(&memory, 0, LEN)? == wanted,
            "{rows} rows of {width} bytes"
        );
    }
    PASSED
}

/// Rectangles that are outside, overlap or overflow are refused before any byte changes.
pub(crate) fn bad_ones_are_refused(harness: &Harness) -> Verdict {
    const MAX: usize = usize::MAX;
    let context = harness.context()?;
    let memory = context.allocate(LEN)?;
    let invalid =
        |result: Result<Command, Error>| matches!(result.map(drop), Err(Error::InvalidArgument(_)));
    for (size, pitches) in [
        ((10, 2, 1), (9, 0)),
        ((1, 3, 1), (LEN, 0)),
        ((10, 3, 1), (MAX, 0)),
        ((10, MAX, 1), (10, 0)),
        ((10, 10, 10), (10, 99)),
        ((10, 10, 10), (10, 105)),
        ((10, 1, 2), (10, 15)),
        ((10, 10, 10), (10, 0)),
        ((10, 10, MAX), (10, 100)),
        ((MAX, 1, 1), (MAX, 0)),
        ((10, MAX, MAX), (MAX, MAX)),
        ((LEN, 1, 2), (LEN, LEN)),
        ((1, 2, 2), (LEN / 3, LEN / 3 * 3)),
        ((LEN + 1, 1, 1), (LEN + 1, 0)),
    ] {
        let region = Region {
            width: size.0,
            rows: size.1,
            slices: size.2,
        };
        let bad = Pitches {
            row: pitches.0,
            slice: pitches.1,
        };
        // The layout fits any region, so that only the other side is invalid.
        let good = Pitches::tight(region);
        for (to, from) in [(bad, good), (good, bad)] {
            let refused = Command::copy_rect(memory.all(), from, memory.all(), to, region);
            assert!(invalid(refused), "{region:?} {bad:?}");
        }
        if region.slices == 1 {
            let refused = Command::fill_2d(memory.all(), bad.row, size.0, size.1, &[1]);
            assert!(invalid(refused), "{region:?} {bad:?}");
        }
    }
    for (width, pattern) in [(10, &[1, 2, 3][..]), (10, &[])] {
        let refused = Command::fill_2d(memory.all(), width, width, 2, pattern);
        assert!(invalid(refused));
    }
    // An empty rectangle is always inside.
    for (width, rows, slices) in [(0, MAX, MAX), (MAX, 0, 1), (1, MAX, 0)] {
        let region = Region {
            width,
            rows,
            slices,
        };
        let pitches = Pitches { row: 0, slice: 1 };
        let command = Command::copy_rect(memory.all(), pitches, memory.all(), pitches, region)?;
        let queue = context.create_queue()?;
        queue.submit(command)?;
        queue.finish_timeout(deadline())?;
    }
    if context.device().info().capabilities.read_only_memory {
        let peer = harness.peer()?;
        peer.ask("allocate theirs 4096")?;
        let handle = peer
            .ask("memory-handle theirs read-only=yes")?
            .remove(0)
            .parse()?;
        let theirs = context.open_memory_read_only(&handle)?;
        let (region, pitches) = (Region::new_2d(8, 2), Pitches::new_2d(16));
        let into = Command::copy_rect(memory.all(), pitches, theirs.all(), pitches, region);
        assert!(matches!(into.map(drop), Err(Error::ReadOnly)));
        let into = Command::fill_2d(theirs.all(), 16, 8, 2, &[0]);
        assert!(matches!(into.map(drop), Err(Error::ReadOnly)));
        let _ = Command::copy_rect(theirs.all(), pitches, memory.all(), pitches, region)?;
    }
    PASSED
}
