//! Models that readers restore.

#[allow(dead_code, reason = "each program uses a part of it")]
mod holding;

use crosshandle::holder::{HoldOptions, Recovered};
use crosshandle_store::{LoadOptions, OpenOptions};
use holding::common::{DEADLINE, Directory};
use holding::{holds, named, start_holder, store};
use std::time::Instant;

#[test]
fn a_model_comes_back_from_who_has_it_open() {
    const TEST: &str = "a_model_comes_back_from_who_has_it_open";
    if holds() {
        return;
    }
    let directory = Directory::new();
    let holder = start_holder(TEST, &directory);
    let store = store(&directory);
    let bytes: Vec<u8> = (0..3 << 20).map(|index| (index % 251) as u8).collect();
    let loaded = store.load_tensors("host", [named("w", &bytes)], &LoadOptions::new());
    let loaded = loaded.expect("loaded");
    let hash = loaded.hash();
    loaded
        .publish("model", HoldOptions::new())
        .expect("published");
    let options = OpenOptions::new().sleepable().back_up(true);
    let mut model = store.open_with("model", &options).expect("open");
    let back = || {
        let begin = Instant::now();
        loop {
            match store.holder().open("model") {
                Ok(held) => return held,
                Err(error) => assert!(begin.elapsed() < DEADLINE, "{error}"),
            }
            std::thread::yield_now();
        }
    };
    // The holder has no successor, so all its names are lost.
    holder.kill();
    let second = start_holder(TEST, &directory);
    let held = back();
    assert_eq!(held.recovered, Some(Recovered::SameFiles));
    assert_eq!((held.version, held.label), (1, hash.to_string()));
    let again = store.open_expecting("model", hash).expect("the same");
    again.verify(&LoadOptions::new()).expect("its bytes");
    let refused = store.updater("model").expect_err("it is for reading");
    assert!(
        refused.to_string().contains("publish its next version"),
        "{refused}"
    );
    // The model is also restored while it sleeps, and with its new contents after it wakes.
    model.sleep().expect("asleep");
    second.kill();
    let third = start_holder(TEST, &directory);
    assert_eq!(back().version, 1);
    let other = store.load_tensors("host", [named("w", &bytes[1..])], &LoadOptions::new());
    let replaced = HoldOptions::new().replaces(true);
    other
        .expect("loaded")
        .publish("model", replaced.clone())
        .expect("published");
    assert!(model.wake().is_err(), "it has another layout");
    let same = store.load_tensors("host", [named("w", &bytes)], &LoadOptions::new());
    let same = same
        .expect("loaded")
        .publish("model", replaced)
        .expect("published");
    assert!(model.wake().expect("awake"));
    third.kill();
    let _fourth = start_holder(TEST, &directory);
    assert_eq!(back().version, same.version);
    let woken = store.open_expecting("model", hash).expect("the same");
    woken.verify(&LoadOptions::new()).expect("its bytes");
}
