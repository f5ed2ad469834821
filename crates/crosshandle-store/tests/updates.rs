//! Models that are updated in place while other processes have them open, and writers that die
//! during an update.

#[allow(dead_code, reason = "each program uses a part of it")]
mod holding;

use crosshandle::holder::HoldOptions;
use crosshandle::{AllocationOptions, ContextOptions, Device};
use crosshandle_store::{Error, LoadOptions, Model, OpenOptions, Store};
use holding::common::{DEADLINE, Directory, Parent, Process, is};
use holding::{holds, named, start, start_holder, store};
use safetensors::{Dtype, tensor::TensorView};
use std::time::Duration;

const WRITER: &str = "writer";
const READER: &str = "reader";
const AT: &str = "at";

/// Size in bytes of the larger tensor: several pieces that are hashed separately, and an incomplete
/// one.
const LARGE: usize = (36 << 20) + 12_345;
const SMALL: usize = 1000;
const SHORT: Duration = Duration::from_millis(50);

fn role() -> bool {
    if holds() {
        return true;
    } else if is(WRITER) {
        writer();
    } else if is(READER) {
        reader();
    } else if is(AT) {
        sleeper();
    } else {
        return false;
    }
    true
}

/// Returns the next order, or `None` at the end.
fn order(parent: &mut Parent) -> Option<String> {
    parent.hear().filter(|line| line != "end")
}

/// Tells a process to end, and waits for it.
fn end(mut process: Process) {
    process.say("end");
    process.end();
}

/// Updates the model as ordered. An order is the kind of update and the byte to write.
fn writer() {
    let mut parent = Parent::new();
    let mut updater = store(&Directory::inherited())
        .updater("model")
        .expect("held");
    parent.say("open");
    while let Some(line) = order(&mut parent) {
        let (what, fill) = line.split_once(' ').expect("two words");
        let fill: u8 = fill.parse().expect("a byte");
        let mut update = match updater.begin(DEADLINE) {
            Ok(update) => update,
            Err(error) => {
                parent.say(format_args!("refused: {error}"));
                continue;
            }
        };
        let (large, small) = tensors(fill);
        let result = match what {
            "begin" => {
                // Writes half of the update and then waits. The process is killed, or continues.
                let half = LARGE / 2;
                let written = update.write_part("large", 0, &large[..half]);
                parent.say(format_args!("begun {}", written.is_ok()));
                match parent.hear().as_deref() {
                    Some("drop") => {
                        drop(update);
                        parent.say("dropped");
                        continue;
                    }
                    _ => update
                        .write_part("large", half as u64, &large[half..])
                        .and_then(|()| update.finish()),
                }
            }
            "all" => update
                .write([named("large", &large), named("small", &small)])
                .and_then(|()| update.finish()),
            "small" => update
                .write([named("small", &small)])
                .and_then(|()| update.finish()),
            "unhashed" => update
                .write([named("small", &small)])
                .and_then(|()| update.finish_unhashed()),
            other => panic!("{other}?"),
        };
        match result {
            Ok(hash) => parent.say(hash),
            Err(error) => parent.say(format_args!("refused: {error}")),
        }
    }
}

/// Reads repeatedly while other processes write. Reports the number of consistent readings, and
/// fails if one is a mixture.
fn reader() {
    let mut parent = Parent::new();
    let model = store(&Directory::inherited()).open("model").expect("held");
    parent.say("open");
    let (mut whole, mut bytes) = (0, vec![0; LARGE]);
    while parent.hear().as_deref() == Some("read") {
        loop {
            let number = model.stable(DEADLINE).expect("a writer that ends");
            let read = |name: &str, bytes: &mut [u8]| {
                let tensor = model.tensor(name).expect("a tensor");
                tensor
                    .bytes()
                    .expect("on the host")
                    .read(0, bytes)
                    .expect("inside");
            };
            read("large", &mut bytes);
            if model.is_still(number).expect("words") {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
                whole += 1;
                break;
            }
        }
        parent.say(format_args!("{whole} {}", bytes[0]));
    }
}

/// Opens a model at its agreed address, and sleeps and wakes as ordered.
fn sleeper() {
    let mut parent = Parent::new();
    let store = store(&Directory::inherited());
    let mut model = store
        .open_with("model", &OpenOptions::new().agreed_address())
        .expect("free addresses");
    parent.say(model.address().expect("it has one"));
    while let Some(word) = order(&mut parent) {
        match word.as_str() {
            "sleep" => {
                model.sleep().expect("nothing uses it");
                assert!(matches!(model.tensor("small"), Err(Error::Asleep)));
                parent.say(mappings_of(&model));
            }
            "wake" => {
                let is_another = model.wake().expect("held");
                parent.say(format_args!(
                    "{is_another} {} {} {}",
                    model.address().expect("it has one"),
                    model.version(),
                    first_byte(&model)
                ));
            }
            other => panic!("{other}?"),
        }
    }
}

/// Returns the number of mappings of shared memory at the model's addresses.
fn mappings_of(model: &Model) -> usize {
    let start = model.address().expect("it has one");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let begins = |line: &&str| {
        let (first, last) = line
            .split_once(' ')
            .and_then(|(range, _)| range.split_once('-'))?;
        let of = |text| usize::from_str_radix(text, 16).ok();
        Some(of(first)? <= start && start < of(last)?)
    };
    let around = maps.lines().filter(|line| begins(line) == Some(true));
    around.filter(|line| line.contains("memfd")).count()
}

fn verify(model: &Model) {
    let same = model.verify(&LoadOptions::new());
    same.expect("as it was written");
}

fn first_byte(model: &Model) -> u8 {
    let mut byte = [0];
    let tensor = model.tensor("small").expect("a tensor");
    tensor
        .bytes()
        .expect("on the host")
        .read(0, &mut byte)
        .expect("inside");
    byte[0]
}

fn tensors(fill: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![fill; LARGE], vec![fill; SMALL])
}

fn load(store: &Store, fill: u8) -> crosshandle_store::Loaded {
    let (large, small) = tensors(fill);
    let all = [named("large", &large), named("small", &small)];
    let loaded = store.load_tensors("host", all, &LoadOptions::new());
    loaded.expect("loaded")
}

fn publish(store: &Store, fill: u8) -> String {
    let loaded = load(store, fill);
    let options = HoldOptions::new().replaces(true);
    loaded.publish("model", options).expect("published");
    loaded.hash().to_string()
}

#[test]
fn an_update_in_place_is_seen_and_has_the_hash_of_a_load() {
    const TEST: &str = "an_update_in_place_is_seen_and_has_the_hash_of_a_load";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    publish(&store, 1);
    let mut model = store.open("model").expect("held");
    let before = model.stable(DEADLINE).expect("nobody writes");
    let mut writer = start(TEST, WRITER, &directory, "open");

    // An update of all tensors has the same hash as a load.
    let expected = load(&store, 2).hash().to_string();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| model.next_update(before, DEADLINE));
        writer.say("all 2");
        assert_eq!(writer.hear(), expected);
        assert!(waiting.join().expect("no panic").expect("told") > before);
    });
    assert!(!model.is_still(before).expect("words"));
    assert_eq!(first_byte(&model), 2, "the same mapping");
    model.refresh(DEADLINE).expect("nobody writes");
    assert_eq!(model.hash().to_string(), expected);
    assert_eq!(model.version(), 1);
    verify(&model);
    store
        .open_expecting("model", model.hash())
        .expect("this one");

    // After an update of one tensor only its pieces are hashed again, and the result is the hash of
    // the whole contents.
    writer.say("small 3");
    let delta = writer.hear();
    model.refresh(DEADLINE).expect("nobody writes");
    assert_eq!((model.hash().to_string(), first_byte(&model)), (delta, 3));
    verify(&model);
    let own = [3; SMALL];
    let (large, _) = tensors(2);
    let loaded = store.load_tensors(
        "host",
        [named("large", &large), named("small", &own)],
        &LoadOptions::new(),
    );
    assert_eq!(loaded.expect("loaded").hash(), model.hash());

    // Without a hash the contents cannot be verified, until a later update computes it.
    writer.say("unhashed 4");
    let unhashed = writer.hear();
    model.refresh(DEADLINE).expect("nobody writes");
    assert_eq!(model.hash().to_string(), unhashed);
    assert_eq!(model.manifest().data_hash, None);
    let refused = model.verify(&LoadOptions::new());
    assert!(matches!(refused, Err(Error::NoHash)), "{refused:?}");
    writer.say("all 2");
    assert_eq!(writer.hear(), expected);
    verify(&model);
    end(writer);
}

#[test]
fn readers_wait_for_an_update_and_never_take_a_mixture() {
    const TEST: &str = "readers_wait_for_an_update_and_never_take_a_mixture";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    publish(&store, 1);
    let model = store.open("model").expect("held");
    let mut writer = start(TEST, WRITER, &directory, "open");
    let mut other = start(TEST, WRITER, &directory, "open");
    let mut readers: Vec<_> = (0..2)
        .map(|_| start(TEST, READER, &directory, "open"))
        .collect();
    for round in 2..8 {
        writer.say(&format!("begin {round}"));
        assert_eq!(writer.hear(), "begun true");
        // Until the update ends, consistent reads fail and no other process can write.
        let waited = model.stable(SHORT).expect_err("it is under way");
        assert!(waited.is_timeout(), "{waited}");
        let mut own = store.updater("model").expect("held");
        let refused = own.begin(SHORT).expect_err("another one writes");
        assert!(refused.is_timeout(), "{refused}");
        for reader in &mut readers {
            reader.say("read");
        }
        other.say(&format!("small {round}"));
        writer.say("go on");
        assert_eq!(writer.hear().len(), 64, "a hash");
        assert_eq!(other.hear().len(), 64, "a hash");
        for reader in &mut readers {
            assert_eq!(reader.hear(), format!("{} {round}", round - 1));
        }
    }
    verify(&model);
}

#[test]
fn a_writer_that_dies_leaves_the_model_torn_until_all_of_it_is_written() {
    const TEST: &str = "a_writer_that_dies_leaves_the_model_torn_until_all_of_it_is_written";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    publish(&store, 1);
    let mut model = store.open("model").expect("held");
    for round in 0..6 {
        let mut writer = start(TEST, WRITER, &directory, "open");
        writer.say(&format!("begin {round}"));
        assert_eq!(writer.hear(), "begun true");
        std::thread::scope(|scope| {
            // A reader that waits for the end of the update gets an error.
            let waiting = scope.spawn(|| model.stable(DEADLINE));
            match round % 2 {
                0 => writer.kill(),
                _ => {
                    writer.say("drop");
                    assert_eq!(writer.hear(), "dropped");
                    end(writer);
                }
            }
            let torn = waiting.join().expect("no panic");
            assert!(matches!(torn, Err(Error::Torn)), "{torn:?}");
        });
        let refused = store.open("model").expect_err("torn");
        assert!(matches!(refused, Error::Torn), "{refused}");
        assert!(matches!(
            model.verify(&LoadOptions::new()),
            Err(Error::Torn)
        ));
        let mut writer = start(TEST, WRITER, &directory, "open");
        // An update of one tensor does not repair the model, and neither does a second one.
        for _ in 0..2 {
            writer.say("small 9");
            let refused = writer.hear();
            assert!(refused.contains("tensor large"), "{refused}");
            assert!(matches!(model.stable(DEADLINE), Err(Error::Torn)));
        }
        writer.say(&format!("all {round}"));
        let hash = writer.hear();
        end(writer);
        model.refresh(DEADLINE).expect("mended");
        assert_eq!(model.hash().to_string(), hash);
        assert_eq!(first_byte(&model), round);
        verify(&model);
    }
    // Publishing the next version also repairs the name.
    let mut writer = start(TEST, WRITER, &directory, "open");
    writer.say("begin 7");
    writer.hear();
    writer.kill();
    publish(&store, 8);
    assert_eq!(first_byte(&store.open("model").expect("whole")), 8);
    assert!(matches!(model.stable(DEADLINE), Err(Error::Torn)));
}

#[test]
fn what_does_not_fit_is_not_written() {
    const TEST: &str = "what_does_not_fit_is_not_written";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    publish(&store, 1);
    let model = store.open("model").expect("held");
    let mut updater = store.updater("model").expect("held");
    let mut update = updater.begin(DEADLINE).expect("nobody writes");
    let bytes = [7; SMALL];
    let short = update.write([named("small", &bytes[1..])]);
    assert!(matches!(short, Err(Error::Invalid(_))), "{short:?}");
    let unknown = update.write([named("no", &bytes)]);
    assert!(matches!(unknown, Err(Error::NoTensor(_))), "{unknown:?}");
    let beyond = update.write_part("small", 1, &bytes);
    assert!(matches!(beyond, Err(Error::Invalid(_))), "{beyond:?}");
    let huge = update.write_part("small", u64::MAX, &bytes);
    assert!(matches!(huge, Err(Error::Invalid(_))), "{huge:?}");
    // Nothing was written, so the model is not torn.
    drop(update);
    model.stable(DEADLINE).expect("as it was");
    model.verify(&LoadOptions::new()).expect("as it was");
    let mut update = updater.begin(DEADLINE).expect("nobody writes");
    // A copy on the device, and a part of a tensor.
    let options = ContextOptions::new().socket_dir(directory.path());
    let device = Device::find("host").expect("there is always a host");
    let context = crosshandle::Context::with_options(&device, options).expect("a context");
    let memory = context
        .allocate_with(AllocationOptions::new(10))
        .expect("memory");
    memory.write(0, &[5; 10]).expect("written");
    update.copy("small", 20, memory.all()).expect("copied");
    update.write_part("small", 40, &[6; 4]).expect("written");
    update.finish().expect("ended");
    let tensor = model.tensor("small").expect("a tensor");
    let mut found = [0; 64];
    let all = tensor.bytes().expect("on the host");
    all.read(0, &mut found).expect("inside");
    let expected: Vec<u8> = (0..64)
        .map(|at| match at {
            20..30 => 5,
            40..44 => 6,
            _ => 1,
        })
        .collect();
    assert_eq!(found[..], expected);
    verify(&model);
}

#[test]
fn a_write_that_fails_in_the_middle_leaves_the_model_torn() {
    const TEST: &str = "a_write_that_fails_in_the_middle_leaves_the_model_torn";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    publish(&store, 1);
    let model = store.open("model").expect("held");
    let path = directory.path().join("new.safetensors");
    let (large, small) = tensors(2);
    let mut updater = store.updater("model").expect("held");
    for is_hashed in [true, false] {
        let views = [("large", &large), ("small", &small)].map(|(name, bytes)| {
            let view = TensorView::new(Dtype::U8, vec![bytes.len()], bytes);
            (name, view.expect("its bytes"))
        });
        safetensors::serialize_to_file(views, None, &path).expect("written");
        // The file is truncated when its first piece has been written.
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("there");
        let options = LoadOptions::new().threads(1);
        let options = options.progress(move |_, _| file.set_len(LARGE as u64 / 2).expect("cut"));
        let update = updater.begin(DEADLINE).expect("nobody writes");
        let mut update = update.options(options);
        let failed = update.load(std::slice::from_ref(&path));
        failed.expect_err("the file is shorter than it says");
        // The program ignores the error. A later write does not repair the model either.
        update.write([named("small", &small)]).expect("written");
        let ended = match is_hashed {
            true => update.finish(),
            false => update.finish_unhashed(),
        };
        assert!(matches!(ended, Err(Error::Torn)), "{ended:?}");
        assert!(matches!(model.stable(DEADLINE), Err(Error::Torn)));
        let mut update = updater.begin(DEADLINE).expect("nobody writes");
        assert!(update.must_be_full());
        let all = [named("large", &large), named("small", &small)];
        update.write(all).expect("written");
        update.finish().expect("all of it");
        verify(&model);
    }
}

#[test]
fn a_model_sleeps_and_wakes_at_the_addresses_that_all_have() {
    const TEST: &str = "a_model_sleeps_and_wakes_at_the_addresses_that_all_have";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    let loaded = load(&store, 1);
    let options = || HoldOptions::new().replaces(true);
    loaded.publish("model", options()).expect("published");
    // This also works in the loader, which has the model at another address.
    let wanted = OpenOptions::new().agreed_address();
    let first = store.open_with("model", &wanted).expect("they are free");
    let agreed = first.address().expect("it stays");
    assert_ne!(agreed, loaded.memory().as_ptr().addr());
    // The addresses are now in use in this process.
    let taken = store
        .open_with("model", &wanted)
        .expect_err("the first has them");
    assert!(
        matches!(taken, Error::AddressTaken { wanted } if wanted == agreed),
        "{taken}"
    );
    let other = store
        .open_with("model", &wanted.or_elsewhere(true))
        .expect("elsewhere");
    assert_ne!(other.address(), Some(agreed));
    assert_eq!(first_byte(&other), 1);
    let mut mapped = store.open("model").expect("held");
    let refused = mapped.sleep().expect_err("it has no addresses that stay");
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");

    let mut engines: Vec<_> = (0..2)
        .map(|_| Process::start(TEST, AT, &directory))
        .collect();
    for engine in &mut engines {
        assert_eq!(engine.hear(), agreed.to_string());
        engine.say("sleep");
        assert_eq!(engine.hear(), "0", "nothing is mapped there");
        engine.say("wake");
        assert_eq!(engine.hear(), format!("false {agreed} 1 1"));
        engine.say("sleep");
        assert_eq!(engine.hear(), "0");
    }
    // The next version has the same layout, and is mapped at the same place.
    publish(&store, 2);
    for engine in &mut engines {
        engine.say("wake");
        assert_eq!(engine.hear(), format!("true {agreed} 2 2"));
    }
    for engine in engines {
        end(engine);
    }
    // A model that is in use cannot sleep.
    let mut own = store
        .open_with("model", &OpenOptions::new().sleepable())
        .expect("held");
    let kept = std::sync::Arc::clone(own.memory().expect("awake"));
    assert!(matches!(own.sleep(), Err(Error::InUse)));
    assert_eq!(first_byte(&own), 2);
    let address = own.address();
    drop(kept);
    own.sleep().expect("nothing uses it");
    own.sleep().expect("it does already");
    assert!(own.is_asleep() && own.address() == address);
    own.wake().expect("held");
    assert_eq!((own.address(), first_byte(&own)), (address, 2));
}

#[test]
fn a_model_sleeps_in_other_memory_and_comes_back() {
    const TEST: &str = "a_model_sleeps_in_other_memory_and_comes_back";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    publish(&store, 5);
    let options = OpenOptions::new().agreed_address();
    let mut model = store.open_with("model", &options).expect("held");
    let (hash, address) = (model.hash(), model.address());
    let kept = std::sync::Arc::clone(model.memory().expect("awake"));
    let refused = model.sleep_to("host", &LoadOptions::new());
    assert!(matches!(refused, Err(Error::InUse)), "{refused:?}");
    drop(kept);
    let other = store.open("model").expect("held");
    model
        .sleep_to("host", &LoadOptions::new())
        .expect("nobody uses it");
    assert!(model.is_asleep());
    // Every process that opens the name now gets the other memory, with the same contents.
    let moved = store.open_expecting("model", hash).expect("held");
    assert_eq!((other.version(), moved.version()), (1, 2));
    assert_ne!(moved.handle(), other.handle());
    moved.verify(&LoadOptions::new()).expect("the same bytes");
    assert!(!model.wake().expect("held"), "nothing has changed");
    assert_eq!((model.hash(), model.address()), (hash, address));
    assert_eq!(first_byte(&model), 5);
    model.verify(&LoadOptions::new()).expect("the same bytes");
    // An update continues with the new memory.
    let mut updater = store.updater("model").expect("held");
    let (_, small) = tensors(6);
    let mut update = updater.begin(DEADLINE).expect("nobody writes");
    update.write([named("small", &small)]).expect("it fits");
    update.finish().expect("the hash");
    assert_eq!(first_byte(&model), 6);
    assert_eq!(first_byte(&other), 5);
}
