//! Loads that are killed, and loads that continue them.

#[allow(dead_code, reason = "each program uses a part of it")]
mod holding;

use crosshandle::holder::HoldOptions;
use crosshandle_store::{Error, LoadOptions};
use holding::common::{DEADLINE, Directory, Parent, Process, is};
use holding::{holds, start_holder, store};
use safetensors::{Dtype, tensor::TensorView};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

const LOADER: &str = "loader";
/// Size in bytes of a piece, and of the pieces whose hashes are recorded at a time.
const PIECE: usize = 16 << 20;
const NOTED: usize = 8 * PIECE;
/// Size of the model in bytes: more than is noted at a time, and with an incomplete piece.
const LEN: usize = NOTED + PIECE + 4_321;

/// Loads with one thread. Reports each finished piece, and waits for a line before it continues.
fn loader() {
    let parent = Mutex::new(Parent::new());
    let directory = Directory::inherited();
    let options = LoadOptions::new().threads(1).progress(move |_, _| {
        let mut parent = parent.lock().expect("no panic");
        parent.say("piece");
        parent.hear();
    });
    let files = [file(&directory)];
    let _ = store(&directory).load_resumably("host", &files, "model", &options, hold());
}

fn hold() -> HoldOptions {
    HoldOptions::new().replaces(true)
}

fn file(directory: &Directory) -> PathBuf {
    directory.path().join("model.safetensors")
}

fn write(path: &Path, seed: u8) {
    let bytes: Vec<u8> = (0..LEN)
        .map(|i| (i as u8) ^ (i >> 11) as u8 ^ seed)
        .collect();
    let view = TensorView::new(Dtype::U8, vec![LEN], &bytes).expect("a tensor");
    safetensors::serialize_to_file([("t", view)], None, path).expect("written");
}

/// Starts a loader, and lets it load this number of pieces.
fn begin(test: &str, directory: &Directory, pieces: usize) -> Process {
    let mut loader = Process::start(test, LOADER, directory);
    for piece in 1..=pieces {
        assert_eq!(loader.hear(), "piece");
        if piece < pieces {
            loader.say("go on");
        }
    }
    loader
}

#[test]
fn a_load_that_was_killed_goes_on_where_it_was() {
    const TEST: &str = "a_load_that_was_killed_goes_on_where_it_was";
    if is(LOADER) {
        return loader();
    }
    if holds() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    write(&file(&directory), 1);
    let files = [file(&directory)];
    let store = store(&directory);
    let load =
        |options: &LoadOptions| store.load_resumably("host", &files, "model", options, hold());
    let expected = store
        .load("host", &files, &LoadOptions::new())
        .expect("loaded")
        .hash();

    // The ninth piece was finished when the loader was killed, but its hash was not recorded yet.
    let loader = begin(TEST, &directory, 9);
    let refused = load(&LoadOptions::new()).expect_err("another one loads");
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    let options = crosshandle_store::OpenOptions::new().patience(Duration::from_millis(50));
    let refused = store
        .open_with("model+loading", &options)
        .expect_err("it is not there yet");
    assert!(refused.is_timeout(), "{refused}");
    loader.kill();
    let refused = store.open("model+loading").expect_err("nor ever");
    assert!(matches!(refused, Error::Torn), "{refused}");
    let loaded = load(&LoadOptions::new()).expect("the rest");
    assert_eq!(loaded.resumed_bytes, NOTED as u64);
    assert_eq!(loaded.hash, expected);
    assert_eq!(loaded.handed_over.version, 1);
    let model = store.open_expecting("model", expected).expect("published");
    model.verify(&LoadOptions::new()).expect("the same bytes");
    let names = store.holder().list().expect("a holder");
    let names: Vec<_> = names.iter().map(|name| name.name.as_str()).collect();
    assert_eq!(names, ["model"]);

    // A piece that does not match its recorded hash is read again. A finished load is not resumed.
    begin(TEST, &directory, 9).kill();
    let held = store.holder().open_to_write("model+loading").expect("held");
    let context = directory.context();
    let data = held.part("data").and_then(|part| part.handle);
    let data = context
        .open_memory(&data.expect("a handle"))
        .expect("memory");
    data.write(3 * PIECE + 5, b"not this").expect("inside");
    let loaded = load(&LoadOptions::new().expecting(expected)).expect("the rest");
    assert_eq!(loaded.resumed_bytes, (NOTED - PIECE) as u64);
    assert_eq!(loaded.handed_over.version, 2);
    let again = load(&LoadOptions::new()).expect("anew");
    assert_eq!((again.resumed_bytes, again.hash), (0, expected));
    model
        .verify(&LoadOptions::new())
        .expect("the first version is as it was");

    // A load of other files does not resume this load.
    begin(TEST, &directory, 9).kill();
    fs::remove_file(file(&directory)).expect("it was there");
    write(&file(&directory), 2);
    let other = load(&LoadOptions::new()).expect("anew");
    assert_eq!(other.resumed_bytes, 0);
    assert_ne!(other.hash, expected);
    let model = store.await_next(&model, DEADLINE).expect("a later version");
    model.verify(&LoadOptions::new()).expect("the same bytes");

    // A load with an unexpected hash is not kept.
    let refused = load(&LoadOptions::new().expecting(expected)).expect_err("another model");
    assert!(matches!(refused, Error::OtherModel { .. }), "{refused}");
    assert_eq!(store.holder().list().expect("a holder").len(), 1);
}
