//! Models that one process loads, a holder keeps, and other processes open.

#[allow(dead_code, reason = "each program uses a part of it")]
mod holding;

use crosshandle::holder::HoldOptions;
use crosshandle::{Context, ContextOptions, Device};
use crosshandle_store::{Error, LoadOptions, NamedBytes, NamedRange};
use holding::common::{DEADLINE, Directory, Parent, Process, is};
use holding::{holds, start_holder, store};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use safetensors::{Dtype, tensor::TensorView};
use std::collections::HashMap;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

const LOADER: &str = "loader";
const READER: &str = "reader";

fn role() -> bool {
    if holds() {
        return true;
    } else if is(LOADER) {
        let mut parent = Parent::new();
        let file = parent.hear().expect("a file");
        let store = store(&Directory::inherited());
        let loaded = store.load("host", &[file.into()], &LoadOptions::new().threads(3));
        let loaded = loaded.expect("loaded");
        let options = HoldOptions::new().replaces(true);
        loaded.publish("model", options).expect("published");
        parent.say(loaded.hash());
    } else if is(READER) {
        let mut parent = Parent::new();
        let model = store(&Directory::inherited()).open("model").expect("held");
        while let Some(name) = parent.hear() {
            let tensor = model.tensor(&name).expect("a tensor");
            let mut bytes = vec![0; tensor.info.bytes as usize];
            tensor
                .bytes()
                .expect("on the host")
                .read(0, &mut bytes)
                .expect("inside");
            let hash = blake3::hash(&bytes);
            parent.say(format_args!(
                "{} {:?} {hash}",
                tensor.info.dtype, tensor.info.shape
            ));
        }
    } else {
        return false;
    }
    true
}

/// A tensor of a test: name, type, shape and bytes.
struct Made(String, Dtype, Vec<usize>, Vec<u8>);

fn made(name: &str, dtype: Dtype, shape: &[usize], seed: u8) -> Made {
    let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    let bytes = (0..len).map(|i| {
        (i as u8)
            .wrapping_mul(31)
            .wrapping_add((i >> 8) as u8 ^ seed)
    });
    Made(name.into(), dtype, shape.to_vec(), bytes.collect())
}

fn write(path: &Path, tensors: &[Made], metadata: &[(&str, &str)]) {
    let views = tensors.iter().map(|Made(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor");
        (name.clone(), view)
    });
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let metadata: HashMap<_, _> = metadata.iter().map(own).collect();
    safetensors::serialize_to_file(views, Some(metadata), path).expect("written");
}

/// A checkpoint of two files and an index. Its pieces are shared by several threads.
fn checkpoint(directory: &Directory, seed: u8) -> (PathBuf, Vec<Made>) {
    let files = directory.path().join(format!("files-{seed}"));
    fs::create_dir_all(&files).expect("a directory");
    let first = vec![
        made("embed", Dtype::BF16, &[3000, 1111], seed),
        made("scale", Dtype::F32, &[], seed + 1),
        made("none", Dtype::U8, &[0, 7], seed),
        made("packed", Dtype::F4, &[6, 4], seed + 2),
    ];
    let second = vec![
        made("layers.0.w", Dtype::F8_E4M3, &[9_000_001], seed + 3),
        made("layers.1.w", Dtype::I64, &[300, 5, 1000], seed + 4),
    ];
    write(
        &files.join("a.safetensors"),
        &first,
        &[("quantization", "{\"bits\": 4}")],
    );
    write(&files.join("b.safetensors"), &second, &[("format", "pt")]);
    let name = |file: &str, tensors: &[Made]| -> Vec<String> {
        let entry = |Made(name, ..): &Made| format!("\"{name}\": \"{file}\"");
        tensors.iter().map(entry).collect()
    };
    let mut map = name("a.safetensors", &first);
    map.extend(name("b.safetensors", &second));
    let index = files.join("model.safetensors.index.json");
    fs::write(
        &index,
        format!("{{\"weight_map\": {{{}}}}}", map.join(", ")),
    )
    .expect("written");
    (index, first.into_iter().chain(second).collect())
}

#[test]
fn a_model_is_opened_by_others_when_its_loader_has_ended() {
    const TEST: &str = "a_model_is_opened_by_others_when_its_loader_has_ended";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let load = |index: &Path| {
        let mut loader = Process::start(TEST, LOADER, &directory);
        loader.say(index.to_str().expect("text"));
        let hash = loader.hear();
        loader.end();
        hash
    };
    let (index, tensors) = checkpoint(&directory, 1);
    let hash = load(&index);
    let mut reader = Process::start(TEST, READER, &directory);
    for Made(name, dtype, shape, bytes) in &tensors {
        reader.say(name);
        let dtype = serde_json::to_value(dtype).expect("a name");
        let expected = format!(
            "{} {shape:?} {}",
            dtype.as_str().expect("text"),
            blake3::hash(bytes)
        );
        assert_eq!(reader.hear(), expected, "{name}");
    }
    let store = store(&directory);
    let model = store.open("model").expect("held");
    assert_eq!(model.hash().to_string(), hash);
    assert_eq!(model.manifest().metadata["quantization"], "{\"bits\": 4}");
    assert_eq!(store.holder().open("model").expect("held").label, hash);
    assert!(
        model
            .manifest()
            .tensors
            .values()
            .all(|tensor| tensor.offset % 256 == 0)
    );
    model
        .verify(&LoadOptions::new().threads(2))
        .expect("as it was loaded");
    store
        .open_expecting("model", model.hash())
        .expect("this one");
    let other = store
        .open_expecting("model", blake3::hash(b""))
        .expect_err("another one");
    assert!(matches!(other, Error::OtherModel { .. }), "{other}");
    assert!(matches!(model.tensor("no"), Err(Error::NoTensor(_))));

    // The next version exists next to the one that is open.
    let (next, next_tensors) = checkpoint(&directory, 9);
    let (hash_of_next, found) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.await_next(&model, DEADLINE));
        (
            load(&next),
            waiting.join().expect("no panic").expect("told"),
        )
    });
    assert_eq!(
        (found.version(), found.hash().to_string()),
        (2, hash_of_next)
    );
    assert_ne!(found.hash(), model.hash());
    for (model, tensors) in [(&model, &tensors), (&found, &next_tensors)] {
        let Made(name, .., expected) = &tensors[0];
        let tensor = model.tensor(name).expect("a tensor");
        let mut bytes = vec![0; expected.len()];
        tensor
            .bytes()
            .expect("on the host")
            .read(0, &mut bytes)
            .expect("inside");
        assert!(bytes == *expected);
    }
    // The same contents have the same hash, with any number of threads.
    let loaded = store
        .load("host", &[index], &LoadOptions::new().threads(1))
        .expect("loaded");
    assert_eq!(loaded.hash().to_string(), hash);

    // A process with write access can change the bytes, and verification detects that.
    let held = store.holder().open_to_write("model").expect("held");
    let handle = held
        .part("data")
        .and_then(|part| part.handle)
        .expect("a handle");
    let options = ContextOptions::new().socket_dir(directory.path());
    let device = Device::find("host").expect("there is always a host");
    let context = crosshandle::Context::with_options(&device, options).expect("a context");
    context
        .open_memory(&handle)
        .expect("opened")
        .write(12_345, &[0xA5, 0x5A])
        .expect("written");
    let changed = found
        .verify(&LoadOptions::new())
        .expect_err("two bytes are others");
    assert!(matches!(changed, Error::Changed { .. }), "{changed}");
}

#[test]
fn tensors_of_the_programs_own_are_held() {
    const TEST: &str = "tensors_of_the_programs_own_are_held";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    let bytes: Vec<u8> = (0..96).collect();
    let tensor = |name: &str, dtype: &str, shape: &[u64]| NamedBytes {
        name: name.into(),
        dtype: dtype.into(),
        shape: shape.to_vec(),
        bytes: &bytes,
    };
    let all = [tensor("a", "F32", &[4, 6]), tensor("b", "F64", &[12])];
    let loaded = store
        .load_tensors("host", all, &LoadOptions::new())
        .expect("loaded");
    loaded
        .publish("own", HoldOptions::new())
        .expect("published");
    let hash = loaded.hash();
    drop(loaded);
    let model = store.open_expecting("own", hash).expect("held");
    let read = model
        .tensor("b")
        .expect("a tensor")
        .bytes()
        .expect("on the host");
    assert_eq!(read.typed::<f64>().expect("aligned").len(), 12);
    for bad in [
        vec![tensor("a", "F32", &[5, 6])],
        vec![tensor("a", "XYZ", &[96])],
        vec![tensor("a", "U8", &[96]), tensor("a", "U8", &[96])],
        vec![tensor("a", "U8", &[u64::MAX, 2])],
        vec![],
    ] {
        let refused = store.load_tensors("host", bad, &LoadOptions::new());
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    // The device copies the tensors, and the hash is the same.
    let options = ContextOptions::new().socket_dir(directory.path());
    let device = Device::find("host").expect("there is always a host");
    let context = Context::with_options(&device, options).expect("a context");
    let memory = context.allocate(bytes.len()).expect("memory");
    memory.write(0, &bytes).expect("inside");
    let range = |name: &str, dtype: &str, shape: &[u64], range| NamedRange {
        name: name.into(),
        dtype: dtype.into(),
        shape: shape.to_vec(),
        range,
    };
    let all = [
        range("a", "F32", &[4, 6], Some(memory.all())),
        range("none", "F32", &[0], None),
        range("b", "F64", &[12], Some(memory.all())),
    ];
    let copied = store.copy_tensors("host", all, &LoadOptions::new());
    let copied = copied.expect("copied").manifest().data_hash;
    assert_eq!(copied, model.manifest().data_hash);
    let short = [range("a", "F32", &[4, 6], memory.range(..95).ok())];
    let refused = store.copy_tensors("host", short, &LoadOptions::new());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    // Memory that another program handed over is not a model.
    let options = ContextOptions::new()
        .socket_dir(directory.path())
        .pooling(false);
    let device = Device::find("host").expect("there is always a host");
    let context = crosshandle::Context::with_options(&device, options).expect("a context");
    let memory = context.allocate(4096).expect("memory");
    memory
        .hand_over(store.holder(), "bytes")
        .expect("handed over");
    let refused = store.open("bytes").expect_err("no model");
    assert!(matches!(refused, Error::NotAModel { .. }), "{refused}");
    let parts = [
        ("data", &memory),
        ("manifest", &context.allocate(64).expect("memory")),
    ];
    store
        .holder()
        .hand_over("zeros", &parts, HoldOptions::new())
        .expect("handed over");
    let refused = store.open("zeros").expect_err("no manifest");
    assert!(matches!(refused, Error::NotAModel { .. }), "{refused}");
    assert!(store.open("nothing").expect_err("no name").is_gone());
}

#[test]
fn a_model_whose_last_tensor_is_empty_opens() {
    const TEST: &str = "a_model_whose_last_tensor_is_empty_opens";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _holder = start_holder(TEST, &directory);
    let store = store(&directory);
    let path = directory.path().join("model.safetensors");
    // Lengths around a multiple of a tensor's alignment, and empty tensors at every place.
    for len in [1, 255, 256, 257] {
        let tensors = [
            made("a", Dtype::U8, &[0], 0),
            made("b", Dtype::U8, &[len], 1),
            made("c", Dtype::F32, &[3, 0], 0),
            made("z", Dtype::I64, &[0, 7], 0),
        ];
        write(&path, &tensors, &[]);
        let loaded = store.load("host", std::slice::from_ref(&path), &LoadOptions::new());
        let options = HoldOptions::new().replaces(true);
        let loaded = loaded.expect("loaded");
        loaded.publish("model", options).expect("published");
        let model = store.open_expecting("model", loaded.hash()).expect("held");
        for Made(name, _, shape, bytes) in &tensors {
            let tensor = model.tensor(name).expect("a tensor");
            let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
            assert_eq!(tensor.info.shape, shape);
            let mut found = vec![0; bytes.len()];
            let own = tensor.bytes().expect("on the host");
            own.read(0, &mut found).expect("inside");
            assert!(found == *bytes, "{name} of {len}");
        }
        model.verify(&LoadOptions::new()).expect("as it was loaded");
    }
}

#[test]
fn a_directory_stands_for_the_checkpoint_in_it() {
    let directory = Directory::new();
    let store = store(&directory);
    let (index, tensors) = checkpoint(&directory, 3);
    let load = |path: &Path| {
        let loaded = store.load("host", &[path.to_owned()], &LoadOptions::new());
        loaded.expect("loaded").hash()
    };
    let files = index.parent().expect("its directory");
    let by_index = load(&index);
    assert_eq!(load(files), by_index);
    // Files that the index of a directory does not name are ignored.
    write(&files.join("c.safetensors"), &tensors[..1], &[]);
    assert_eq!(load(files), by_index);
    fs::remove_file(files.join("c.safetensors")).expect("removed");
    fs::remove_file(&index).expect("removed");
    assert_eq!(
        load(files),
        by_index,
        "all files, in the order of their names"
    );
}

#[test]
fn files_that_are_no_safetensors_are_refused() {
    let directory = Directory::new();
    let store = store(&directory);
    let path = |name: &str| directory.path().join(name);
    let file = |name: &str, header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        fs::write(path(name), bytes).expect("written");
        path(name)
    };
    let one = |begin: usize, end: usize, shape: &str| {
        format!(r#"{{"t":{{"dtype":"U8","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    let good = file("good", &one(0, 4, "[4]"), 4);
    store
        .load("host", std::slice::from_ref(&good), &LoadOptions::new())
        .expect("it is one");
    fs::write(path("short"), [1, 2, 3]).expect("written");
    fs::write(path("huge"), u64::MAX.to_le_bytes()).expect("written");
    let index = |name: &str, text: &str| {
        fs::write(path(name), text).expect("written");
        path(name)
    };
    let bad = [
        path("missing"),
        path("short"),
        path("huge"),
        file("text", "no JSON", 4),
        file("cut", &one(0, 4, "[4]"), 3),
        file("longer", &one(0, 4, "[4]"), 5),
        file("gap", &one(1, 5, "[4]"), 5),
        file("shape", &one(0, 4, "[5]"), 4),
        file("overflow", &one(0, 4, "[18446744073709551615, 2]"), 4),
        file("negative", &one(0, 4, "[-1]"), 4),
        index("a.json", "[]"),
        index("b.json", r#"{"weight_map": {"t": "../good"}}"#),
        index("c.json", r#"{"weight_map": {"t": "/etc/passwd"}}"#),
        index("d.json", r#"{"weight_map": {"other": "good"}}"#),
        directory.path().to_owned(),
        path("fifo"),
        index("fifo.json", r#"{"weight_map": {"t": "fifo"}}"#),
        path("socket"),
        "/dev/zero".into(),
        path("empty"),
        path("two"),
    ];
    mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
    let _socket = UnixListener::bind(path("socket")).expect("a socket");
    for name in ["empty", "two"] {
        fs::create_dir(path(name)).expect("a directory");
    }
    for name in ["a", "b"] {
        index(&format!("two/{name}.safetensors.index.json"), "{}");
    }
    for path in bad {
        let refused = store.load("host", std::slice::from_ref(&path), &LoadOptions::new());
        let refused = refused.expect_err(path.to_str().expect("text"));
        let is_named = matches!(refused, Error::Io { .. } | Error::Format { .. });
        assert!(is_named, "{}: {refused}", path.display());
    }
    let twice = store.load("host", &[good.clone(), good], &LoadOptions::new());
    assert!(
        twice
            .expect_err("two tensors of one name")
            .to_string()
            .contains("two tensors")
    );
}
