//! A queue and its device. The queue takes numbers, and the device only writes and compares upper
//! halves.

use crate::event_protocol::Ticket;
use crate::world::Process;
use shuttle::thread::{JoinHandle, spawn, yield_now};

/// Returns whether a device's wait for `number` on the word of `word` is over.
pub(crate) fn reached(process: &Process, number: u32, word: u64) -> bool {
    let upper = process.slot().word_of(word).read_upper();
    upper.wrapping_sub(number) as i32 >= 0
}

/// Waits like a device. Its process is alive, and helps the device after any other process has
/// died.
pub(crate) fn device_wait(process: &Process, number: u64) {
    while !reached(process, number as u32, number) {
        if process.world.ledger.any_process_died() {
            process
                .slot()
                .help_device_wait(number, &*process.world.ledger);
        }
        yield_now();
    }
}

/// A stream, with the signals that its queue has submitted and the number of finished ones.
pub(crate) struct Stream {
    pub(crate) process: Process,
    pub(crate) tickets: Vec<(Ticket, bool)>,
    done: usize,
}

impl Stream {
    pub(crate) fn of(process: Process) -> Self {
        Self {
            process,
            tickets: Vec::new(),
            done: 0,
        }
    }

    /// Submits a signal after all earlier ones.
    pub(crate) fn submit(&mut self) {
        self.process.slot().mark_device_signals();
        let ticket = self.process.submit();
        let may_write = self.process.slot().may_write(ticket);
        self.tickets.push((ticket, may_write));
    }

    /// Writes the signals, as the device.
    pub(crate) fn run(&mut self) {
        let ledger = &self.process.world.ledger;
        let slot = self.process.slot();
        for (index, (ticket, may_write)) in self.tickets.iter().enumerate() {
            while !may_write && !reached(&self.process, ticket.previous, ticket.number) {
                if ledger.any_process_died() {
                    self.record_finished();
                    slot.help_device_wait(ticket.number - 7, &**ledger);
                }
                yield_now();
            }
            ledger.completing(*ticket);
            let word = slot.word_of(ticket.number);
            word.write_upper(ticket.number as u32);
            // A number that is written after its process's death may have been failed before.
            if !ledger.is_dead(self.process.owner) {
                ledger.completed(*ticket);
            }
            self.done = index + 1;
        }
    }

    /// Records the finished signals, as the queue does when it finds them done. The queue of a dead
    /// process records nothing.
    pub(crate) fn record_finished(&self) {
        if !self.process.world.ledger.is_dead(self.process.owner) {
            for (ticket, _) in &self.tickets[..self.done] {
                self.process.slot().record_finished(ticket.number);
            }
        }
    }
}

/// Starts a device of `process` on a stream with this many signals.
pub(crate) fn stream(process: &Process, signals: u64) -> JoinHandle<()> {
    let mut stream = Stream::of(process.world.process(process.owner.get()));
    for _ in 0..signals {
        stream.submit();
    }
    spawn(move || {
        stream.run();
        stream.record_finished();
    })
}
