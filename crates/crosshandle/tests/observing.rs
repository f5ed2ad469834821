//! Tests what a program observes of sharing: events and spans of `tracing`, and with the feature
//! `metrics` counters and gauges.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, alone, is};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{Context, Error, Event, Memory};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

const LEN: usize = 4096;

/// An event, or the start of a span.
#[derive(Clone, Debug)]
struct Told {
    name: String,
    level: Level,
    fields: BTreeMap<String, String>,
}

impl Told {
    fn new(metadata: &Metadata<'_>) -> Self {
        Self {
            name: metadata.name().to_owned(),
            level: *metadata.level(),
            fields: BTreeMap::new(),
        }
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").expect("memory");
        let text = text.trim_matches('"').to_owned();
        self.fields.insert(field.name().to_owned(), text);
    }
}

/// A subscriber that forwards all events and spans of this library.
struct Watcher {
    told: Mutex<Sender<Told>>,
    spans: AtomicU64,
}

impl Subscriber for Watcher {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "crosshandle"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut told = Told::new(span.metadata());
        span.record(&mut told);
        let _ = self.told.lock().expect("no panic").send(told);
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut told = Told::new(event.metadata());
        event.record(&mut told);
        let _ = self.told.lock().expect("no panic").send(told);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// All events and spans of this process, in order.
struct Log {
    receiver: Receiver<Told>,
    seen: Vec<Told>,
}

impl Log {
    fn start() -> Self {
        let (told, receiver) = channel();
        let watcher = Watcher {
            told: Mutex::new(told),
            spans: AtomicU64::new(0),
        };
        tracing::subscriber::set_global_default(watcher).expect("the only one");
        Self {
            receiver,
            seen: Vec::new(),
        }
    }

    /// Waits for an event or span with this name and these fields. All earlier ones are kept.
    fn find(&mut self, name: &str, fields: &[(&str, &str)]) -> Told {
        let end = Instant::now() + DEADLINE;
        let matches = |told: &Told| {
            told.name == name && fields.iter().all(|(of, value)| told.field(of) == *value)
        };
        if let Some(told) = self.seen.iter().find(|told| matches(told)) {
            return told.clone();
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(told) = self.receiver.recv_timeout(left) else {
                panic!("no {name} with {fields:?} among {:#?}", self.seen);
            };
            self.seen.push(told.clone());
            if matches(&told) {
                return told;
            }
        }
    }

    /// Returns how many events and spans of this name there were so far.
    fn count(&mut self, name: &str) -> usize {
        self.seen.extend(self.receiver.try_iter());
        self.seen.iter().filter(|told| told.name == name).count()
    }

    fn check_fields(&mut self) {
        const KNOWN: &[&str] = &[
            "bytes",
            "context",
            "error",
            "kind",
            "message",
            "name",
            "owner",
            "pid",
            "program",
            "reason",
            "record",
            "side",
            "suppressed",
        ];
        self.seen.extend(self.receiver.try_iter());
        for told in &self.seen {
            let unknown = told.fields.keys().find(|field| !KNOWN.contains(&&***field));
            assert_eq!(unknown, None, "{told:?}");
        }
    }
}

/// One object of each kind: memory, an event, and physical memory whose handle is stale.
struct Offer {
    memory: Memory,
    event: Event,
    handles: String,
}

impl Offer {
    fn new(context: &Context) -> Self {
        let memory = context.allocate(LEN).expect("memory");
        memory.set_name("weights");
        let event = context.create_event().expect("an event");
        // Only the exporter can detect that this handle is stale.
        let unit = context.device().info().granularity;
        let freed = PhysicalMemory::new(context, unit).expect("memory");
        let handles = format!(
            "{} {} {}",
            memory.handle().expect("a handle"),
            event.handle().expect("a handle"),
            freed.handle().expect("a handle"),
        );
        Self {
            memory,
            event,
            handles,
        }
    }
}

/// Opens the offered objects, and waits for one signal that completes and for one that does not.
fn open(context: &Context, handles: &str) -> (Memory, Event) {
    let handles: Vec<_> = handles.split(' ').collect();
    let [memory, event, freed] = handles[..] else {
        panic!("three handles");
    };
    let memory = context.open_memory(&memory.parse().expect("a handle"));
    let event = context.open_event(&event.parse().expect("a handle"));
    let event = event.expect("an event");
    event.wait_value_timeout(1, DEADLINE).expect("a signal");
    let late = event.wait_value_timeout(2, Duration::from_millis(10));
    assert!(late.is_err_and(|error| error.is_timeout()));
    let refused = PhysicalMemory::open(context, &freed.parse().expect("a handle"));
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    (memory.expect("memory"), event)
}

/// Runs the other process, an importer or an exporter, until the parent ends it or kills it.
fn other(directory: &Directory, role: &str) {
    let mut parent = Parent::new();
    let context = directory.context();
    if role == IMPORTER {
        let opened = open(&context, &parent.hear().expect("handles"));
        parent.say("opened");
        parent.hear().expect("the word to end");
        drop(opened);
        drop(context);
        parent.say("closed");
        return parent.wait();
    }
    let offer = Offer::new(&context);
    offer.event.signal().expect("a signal");
    parent.say(&offer.handles);
    parent.hear().expect("the word to end");
    drop((offer.memory, offer.event));
    drop(context);
    parent.say("closed");
    parent.wait();
}

const IMPORTER: &str = "importer";
const EXPORTER: &str = "exporter";

#[test]
fn exporters_are_told_of_their_importers() {
    const TEST: &str = "exporters_are_told_of_their_importers";
    if is(IMPORTER) {
        return other(&Directory::inherited(), IMPORTER);
    }
    alone(TEST, |directory| {
        let mut log = Log::start();
        let context = directory.context();
        let offer = Offer::new(&context);
        offer.event.signal().expect("a signal");
        let record = log.find("export", &[("kind", "memory"), ("bytes", "4096")]);
        log.find("export", &[("kind", "event")]);
        let freed = log.find("reclaim", &[]);
        assert_ne!(freed.field("record"), record.field("record"));

        let mut killed = Process::start(TEST, IMPORTER, directory);
        killed.say(&offer.handles);
        assert_eq!(killed.hear(), "opened");
        let pid = killed.id().to_string();
        let attached = log.find("attach", &[("side", "exporter"), ("pid", &pid)]);
        assert_eq!(attached.level, Level::DEBUG);
        assert_ne!(attached.field("program"), "");
        let refused = log.find("refuse", &[("side", "exporter"), ("pid", &pid)]);
        assert_eq!(refused.field("reason"), "stale");
        assert_eq!((log.count("death"), log.count("detach")), (0, 0));
        killed.kill();
        let death = log.find("death", &[("side", "exporter"), ("pid", &pid)]);
        assert_eq!(death.level, Level::INFO);
        assert_eq!(death.field("owner"), attached.field("owner"));

        let mut ended = Process::start(TEST, IMPORTER, directory);
        ended.say(&offer.handles);
        assert_eq!(ended.hear(), "opened");
        let pid = ended.id().to_string();
        drop(offer.memory);
        ended.say("end");
        assert_eq!(ended.hear(), "closed");
        log.find("detach", &[("side", "exporter"), ("pid", &pid)]);
        let reclaimed = record.field("record").to_owned();
        log.find("reclaim", &[("record", &reclaimed)]);
        assert_eq!(log.count("death"), 1);
        log.check_fields();
    });
}

#[test]
fn importers_are_told_of_their_exporters() {
    const TEST: &str = "importers_are_told_of_their_exporters";
    if is(EXPORTER) {
        return other(&Directory::inherited(), EXPORTER);
    }
    alone(TEST, |directory| {
        let mut log = Log::start();
        let context = directory.context();
        let mut killed = Process::start(TEST, EXPORTER, directory);
        let handles = killed.hear();
        // The third handle is stale, because the exporter freed its memory before it sent the
        // handles.
        let (_memory, event) = open(&context, &handles);
        let pid = killed.id().to_string();
        log.find("attach", &[("pid", &pid), ("owner", "")]);
        log.find("fetch", &[]);
        let attached = log.find("attach", &[("side", "importer"), ("pid", &pid)]);
        assert_ne!(attached.field("program"), "");
        let opened = log.find("open", &[("kind", "memory")]);
        assert_eq!(
            (opened.field("bytes"), opened.field("name")),
            ("4096", "weights")
        );
        log.find("open", &[("kind", "event")]);
        log.find("refuse", &[("side", "importer"), ("reason", "stale")]);
        killed.kill();
        let death = log.find("death", &[("side", "importer"), ("pid", &pid)]);
        assert_eq!(death.field("context"), attached.field("context"));
        let abandoned = event.wait_value_timeout(2, DEADLINE);
        assert!(abandoned.is_err_and(|error| error.is_peer_dead()));

        let mut ended = Process::start(TEST, EXPORTER, directory);
        let _opened = open(&context, &ended.hear());
        let pid = ended.id().to_string();
        ended.say("end");
        assert_eq!(ended.hear(), "closed");
        log.find("detach", &[("side", "importer"), ("pid", &pid)]);
        assert_eq!(log.count("death"), 1);
        log.check_fields();
    });
}

#[test]
fn a_flood_of_refusals_is_told_in_few_words() {
    const TEST: &str = "a_flood_of_refusals_is_told_in_few_words";
    const FLOOD: usize = 2_000;
    if is(IMPORTER) {
        let mut parent = Parent::new();
        let context = Directory::inherited().context();
        let handles = parent.hear().expect("handles");
        let stale = handles.split(' ').nth(2).expect("three handles");
        let stale = stale.parse().expect("a handle");
        for _ in 0..FLOOD {
            assert!(PhysicalMemory::open(&context, &stale).is_err());
        }
        parent.say("refused");
        return parent.wait();
    }
    alone(TEST, |directory| {
        let mut log = Log::start();
        let context = directory.context();
        let offer = Offer::new(&context);
        let begin = Instant::now();
        let mut process = Process::start(TEST, IMPORTER, directory);
        process.say(&offer.handles);
        assert_eq!(process.hear(), "refused");
        let seconds = begin.elapsed().as_secs() as usize + 2;
        let told = log.count("refuse");
        assert!(
            told > 0 && told <= 16 * seconds,
            "{told} messages in {seconds} s"
        );
        process.say("end");
        drop(offer);
    });
}

#[cfg(feature = "metrics")]
mod counted {
    use super::*;
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Recorder, SharedString, Unit};
    use std::sync::Arc;

    /// A recorder that keeps all metrics in a map, with keys in Prometheus's text format.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>, Described);

    type Described = Arc<Mutex<BTreeMap<String, (Option<Unit>, String)>>>;

    impl Recorded {
        fn value(&self, key: &Key) -> Arc<AtomicU64> {
            let labels: String = key
                .labels()
                .map(|label| format!(" {}={}", label.key(), label.value()))
                .collect();
            let mut all = self.0.lock().expect("no panic");
            let value = all.entry(format!("{}{labels}", key.name()));
            Arc::clone(value.or_default())
        }

        fn counter(&self, name: &str) -> u64 {
            let all = self.0.lock().expect("no panic");
            let value = all.get(name).unwrap_or_else(|| panic!("no {name}"));
            value.load(Ordering::SeqCst)
        }

        fn gauge(&self, name: &str) -> f64 {
            f64::from_bits(self.counter(name))
        }

        /// Waits until another thread has raised a counter to `value`.
        fn await_counter(&self, name: &str, value: u64) {
            let end = Instant::now() + DEADLINE;
            while self.counter(name) < value {
                assert!(Instant::now() < end, "{name} is {}", self.counter(name));
                std::thread::yield_now();
            }
            assert_eq!(self.counter(name), value, "{name}");
        }
    }

    impl Recorder for Recorded {
        fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
            let mut all = self.1.lock().expect("no panic");
            all.insert(key.as_str().to_owned(), (unit, text.into_owned()));
        }

        fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
            self.describe_counter(key, unit, text);
        }

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> Counter {
            Counter::from_arc(self.value(key))
        }

        fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.value(key))
        }

        fn register_histogram(&self, _: &Key, _: &metrics::Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn sharing_is_counted_though_the_recorder_comes_late() {
        const TEST: &str = "counted::sharing_is_counted_though_the_recorder_comes_late";
        if is(IMPORTER) {
            return other(&Directory::inherited(), IMPORTER);
        }
        if is(EXPORTER) {
            return other(&Directory::inherited(), EXPORTER);
        }
        alone(TEST, |directory| {
            let context = directory.context();
            let offer = Offer::new(&context);
            offer.event.signal().expect("a signal");
            // The recorder is installed only now, so everything before was counted without it.
            let recorded = Recorded::default();
            metrics::set_global_recorder(recorded.clone()).expect("the only one");
            offer.event.wait().expect("a signal");

            assert_eq!(recorded.counter("crosshandle_signals_total"), 1);
            assert_eq!(recorded.gauge("crosshandle_exported_bytes"), LEN as f64);
            let objects = |name: &str, kind: &str| recorded.gauge(&format!("{name} kind={kind}"));
            assert_eq!(objects("crosshandle_exported_objects", "memory"), 1.0);
            assert_eq!(objects("crosshandle_exported_objects", "event"), 1.0);
            let waits = |outcome: &str| format!("crosshandle_waits_total outcome={outcome}");
            assert_eq!(recorded.counter(&waits("complete")), 1);

            let mut killed = Process::start(TEST, IMPORTER, directory);
            killed.say(&offer.handles);
            assert_eq!(killed.hear(), "opened");
            let refused = "crosshandle_refusals_total side=exporter reason=stale";
            recorded.await_counter(refused, 1);
            killed.kill();
            recorded.await_counter("crosshandle_deaths_total peer=importer", 1);

            let mut killed = Process::start(TEST, EXPORTER, directory);
            let (memory, event) = open(&context, &killed.hear());
            assert_eq!(recorded.counter(&waits("complete")), 2);
            assert_eq!(recorded.counter(&waits("timed_out")), 1);
            assert_eq!(recorded.counter("crosshandle_opens_total kind=memory"), 1);
            assert_eq!(recorded.counter("crosshandle_opens_total kind=event"), 1);
            assert_eq!(objects("crosshandle_opened_objects", "memory"), 1.0);
            assert!(recorded.gauge("crosshandle_imported_bytes") >= LEN as f64);
            let refused = "crosshandle_refusals_total side=importer reason=stale";
            assert_eq!(recorded.counter(refused), 1);
            killed.kill();
            recorded.await_counter("crosshandle_deaths_total peer=exporter", 1);
            assert!(event.wait_value_timeout(2, DEADLINE).is_err());
            assert_eq!(recorded.counter(&waits("peer_died")), 1);
            assert_eq!(
                recorded.counter("crosshandle_deaths_total peer=importer"),
                1
            );

            drop((memory, event, offer.memory, offer.event, context));
            for gauge in ["exported_bytes", "imported_bytes"] {
                assert_eq!(
                    recorded.gauge(&format!("crosshandle_{gauge}")),
                    0.0,
                    "{gauge}"
                );
            }
            for kind in ["memory", "event"] {
                assert_eq!(objects("crosshandle_exported_objects", kind), 0.0, "{kind}");
                assert_eq!(objects("crosshandle_opened_objects", kind), 0.0, "{kind}");
            }
            let described = recorded.1.lock().expect("no panic");
            for name in recorded.0.lock().expect("no panic").keys() {
                let name = name.split(' ').next().expect("a name");
                let (unit, _) = described.get(name).expect("it is described");
                assert_eq!(
                    *unit == Some(Unit::Bytes),
                    name.ends_with("_bytes"),
                    "{name}"
                );
            }
        });
    }
}
