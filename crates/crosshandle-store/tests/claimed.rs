//! Models that only one process at a time may write.

#[allow(dead_code, reason = "each program uses a part of it")]
mod holding;

use crosshandle::holder::{ClaimOptions, HoldOptions};
use crosshandle_store::LoadOptions;
use holding::common::{DEADLINE, Directory, Parent, is};
use holding::{holds, named, start, start_holder, store};

const CLAIMER: &str = "claimer";
const LOADER: &str = "loader";
const LARGE: usize = (18 << 20) + 12_345;
const SMALL: usize = 1000;

fn role() -> bool {
    if is(CLAIMER) {
        claimer();
        return true;
    }
    if is(LOADER) {
        loader();
        return true;
    }
    holds()
}

/// Publishes the model, and waits to be killed.
fn loader() {
    let (large, small) = (vec![1; LARGE], vec![1; SMALL]);
    let tensors = [named("large", &large), named("small", &small)];
    let store = store(&Directory::inherited());
    let loaded = store.load_tensors("host", tensors, &LoadOptions::new());
    let published = loaded.expect("loaded").publish("model", HoldOptions::new());
    published.expect("published");
    let mut parent = Parent::new();
    parent.say("published");
    parent.wait();
}

/// Claims the model, writes it once, and waits to be killed.
fn claimer() {
    let mut parent = Parent::new();
    let store = store(&Directory::inherited());
    let options = ClaimOptions::new().wait(DEADLINE);
    let mut updater = store.claim("model", &options).expect("claimed");
    let epoch = updater.epoch().expect("an epoch");
    let fill = 20 + epoch as u8;
    let (large, small) = (vec![fill; LARGE], vec![fill; SMALL]);
    let mut update = updater.begin(DEADLINE).expect("begun");
    let tensors = [named("large", &large), named("small", &small)];
    update.write(tensors).expect("written");
    update.finish().expect("finished");
    parent.say(format_args!("epoch {epoch}"));
    if parent.hear().is_some_and(|line| line == "end") {
        updater.end().expect("ended");
        parent.say("ended");
    }
    parent.wait();
}

#[test]
fn the_writer_that_has_claimed_a_model_updates_it() {
    const TEST: &str = "the_writer_that_has_claimed_a_model_updates_it";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    // The loader is another process, which is killed here, because a loader has the model open for
    // writing.
    start(TEST, LOADER, &directory, "published").kill();
    let model = store.open("model").expect("open");
    let first = start(TEST, CLAIMER, &directory, "epoch 1");
    model.stable(DEADLINE).expect("whole");
    let bytes = |fill: u8| {
        for (name, len) in [("large", LARGE), ("small", SMALL)] {
            let tensor = model.tensor(name).expect("it");
            let mut found = vec![0; len];
            tensor
                .bytes()
                .expect("of the host")
                .read(0, &mut found)
                .expect("readable");
            assert!(
                found.iter().all(|byte| *byte == fill),
                "{name} is not all {fill}"
            );
        }
    };
    bytes(21);
    // While the writer lives, no other process can write the model in either way.
    let refused = store.updater("model").expect_err("it has a writer");
    assert!(refused.has_writer(), "{refused}");
    let refused = store
        .claim("model", &ClaimOptions::new())
        .expect_err("it has a writer");
    assert!(refused.has_writer(), "{refused}");
    first.kill();
    let mut second = start(TEST, CLAIMER, &directory, "epoch 2");
    bytes(22);
    second.say("end");
    assert_eq!(second.hear(), "ended");
    let third = start(TEST, CLAIMER, &directory, "epoch 3");
    bytes(23);
    drop((second, third));
    model
        .verify(&LoadOptions::new())
        .expect("the last update's hash");
}
