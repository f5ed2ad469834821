//! What a queue and its device do: the one takes numbers, the other writes upper halves and
//! compares them, and knows nothing else.

use crate::event_protocol::Ticket;
use crate::world::Process;
use shuttle::thread::{JoinHandle, spawn, yield_now};

/// Whether a wait of a device for a number is over.
pub(crate) fn reached(process: &Process, number: u32, word: u64) -> bool {
    let upper = process.slot().word_of(word).read_upper();
    upper.wrapping_sub(number) as i32 >= 0
}

/// Waits as a device does. Its process lives and looks after it once somebody has died.
pub(crate) fn device_wait(process: &Process, number: u64) {
    while !reached(process, number as u32, number) {
        if process.world.ledger.anybody_died() {
            process
                .slot()
                .help_device_wait(number, &*process.world.ledger);
        }
        yield_now();
    }
}

/// A stream as its queue sees it: what was submitted, and how much of that is done.
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

    /// Submits a signal, after the others.
    pub(crate) fn submit(&mut self) {
        self.process.slot().mark_device_signals();
        let ticket = self.process.submit();
        let may_write = self.process.slot().may_write(ticket);
        self.tickets.push((ticket, may_write));
    }

    /// What the device does.
    pub(crate) fn run(&mut self) {
        let ledger = &self.process.world.ledger;
        let slot = self.process.slot();
        for (index, (ticket, may_write)) in self.tickets.iter().enumerate() {
            while !may_write && !reached(&self.process, ticket.previous, ticket.number) {
                if ledger.anybody_died() {
                    self.record_finished();
                    slot.help_device_wait(ticket.number - 7, &**ledger);
                }
                yield_now();
            }
            ledger.completing(*ticket);
            let word = slot.word_of(ticket.number);
            word.write_upper(ticket.number as u32);
            // What is written after its process's death may have been failed before.
            if !ledger.is_dead(self.process.owner) {
                ledger.completed(*ticket);
            }
            self.done = index + 1;
        }
    }

    /// What its queue does once it finds signals done; a dead one's doesn't.
    pub(crate) fn record_finished(&self) {
        if !self.process.world.ledger.is_dead(self.process.owner) {
            for (ticket, _) in &self.tickets[..self.done] {
                self.process.slot().record_finished(ticket.number);
            }
        }
    }
}

/// A stream of `process` with so many signals.
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
