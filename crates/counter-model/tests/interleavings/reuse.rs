//! A slot is not reused while any process has it open, as open counts and generations ensure.

use crate::check::check;
use crate::platform::{self, AtomicU32, AtomicU64, pick};
use crosshandle_events::open_count::{close, end_generation, is_open, start_generation, try_open};
use shuttle::thread::{spawn, yield_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64 as Plain, Ordering};

/// Number of importing processes.
const IMPORTERS: usize = 3;
/// The number of a kind of object, which the lowest two bits of each generation hold.
const KIND: u64 = 3;
/// The difference between the generations of two successive objects.
const STEP: u64 = 4;

/// A record that the exporter and its importers share.
struct Record {
    generation: AtomicU64,
    /// The open count in each importer's ledger.
    counts: [AtomicU32; IMPORTERS],
    /// The true content of the record's slot, which is the generation that it was last prepared
    /// for.
    content: Plain,
    /// Generations below this value are retired or being retired.
    retiring: Plain,
    /// A handle of the second object, or 0 before it exists.
    sent: Plain,
    /// Importers whose connection hung up, so that their ledgers are discarded.
    gone: [AtomicBool; IMPORTERS],
}

impl Record {
    fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            counts: std::array::from_fn(|_| AtomicU32::new(0)),
            // One step less than the first object's generation.
            content: Plain::new(KIND),
            retiring: Plain::new(KIND + 1),
            sent: Plain::new(0),
            gone: Default::default(),
        }
    }

    /// Puts a new object into the record, as the exporter.
    fn begin(&self) -> u64 {
        self.content.fetch_add(STEP, Ordering::Relaxed);
        let generation = start_generation(&self.generation, KIND);
        assert_eq!(generation % STEP, KIND);
        generation
    }

    /// Frees the object, as the exporter, and waits until no importer has it open.
    fn free(&self) {
        self.retiring.fetch_add(STEP, Ordering::Relaxed);
        end_generation(&self.generation);
        let held = |index: usize| {
            !self.gone[index].load(Ordering::Relaxed) && is_open(&self.counts[index])
        };
        while (0..IMPORTERS).any(held) {
            yield_now();
        }
    }

    /// Opens the object, uses it, and closes it, as an importer.
    fn open(&self, importer: usize, generation: u64) {
        let count = &self.counts[importer];
        if try_open(count, &self.generation, generation) {
            for _ in 0..2 {
                let content = self.content.load(Ordering::Relaxed);
                assert_eq!(content, generation, "reused while it was open");
                yield_now();
            }
            close(count);
        } else {
            let retiring = self.retiring.load(Ordering::Relaxed);
            assert!(generation < retiring, "refused, and it is not stale");
        }
    }
}

#[test]
fn of_open_records() {
    check(2000, || {
        let record = Arc::new(Record::new());
        let first = record.begin();
        // Two threads of one importing process share its count.
        let importers = [0, 0, 1, 2].map(|importer| {
            let record = record.clone();
            spawn(move || {
                let mortal = importer == 2;
                let life = || {
                    for _ in 0..2 {
                        record.open(importer, first);
                        // A handle of the second object, once it exists.
                        let sent = record.sent.load(Ordering::Relaxed);
                        if sent != 0 {
                            record.open(importer, sent);
                        }
                    }
                };
                if mortal {
                    let _ = platform::live_for(pick(12) as u32, life);
                    record.gone[importer].store(true, Ordering::Relaxed);
                } else {
                    life();
                }
            })
        });
        let exporter = {
            let record = record.clone();
            spawn(move || {
                record.free();
                let second = record.begin();
                assert_eq!(second, first + STEP);
                record.sent.store(second, Ordering::Relaxed);
                record.free();
                assert_eq!(record.begin(), first + 2 * STEP);
            })
        };
        for process in importers.into_iter().chain([exporter]) {
            process.join().unwrap();
        }
        for count in &record.counts[..2] {
            assert!(!is_open(count), "an open is counted still");
        }
    });
}
