//! Measures the cost of a holder and a store on this machine's host device:
//! `cargo run --release -p crosshandle-store --example holder_figures [MIB] [TAKEOVERS]`.
//!
//! Each result is printed next to that of the raw technique, from the same run. The program also
//! runs itself as the holder and as its successors.

use crosshandle::holder::{self, HoldOptions, Holder, ServeOptions};
use crosshandle_store::{LoadOptions, Store};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const TENSORS: usize = 500;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let program = std::env::current_exe()?;
    let options = || ServeOptions::new().successor(&program, ["successor"]);
    match arguments.get(1).map(String::as_str) {
        Some("hold") => return Ok(holder::serve(options(), || println!("ready"))?),
        Some("successor") => return Ok(holder::serve_as_successor(options(), || ())?),
        _ => {}
    }
    let number = |at: usize, usual: usize| arguments.get(at).map_or(Ok(usual), |text| text.parse());
    let (mib, takeovers) = (number(1, 1024)?, number(2, 100)?);
    let place = std::env::temp_dir().join(format!("xh-figures-{}", std::process::id()));
    fs::create_dir_all(&place)?;
    let place = Place(place);
    let sockets = place.0.join("sockets");
    let mut first = Command::new(&program)
        .arg("hold")
        .env(crosshandle::report::SOCKET_DIR_VARIABLE, &sockets)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = [0; 6];
    first
        .stdout
        .take()
        .ok_or("no output")?
        .read_exact(&mut ready)?;
    let store = Store::new().socket_dir(&sockets);
    let measured = measure(&store, &place.0, mib << 20, takeovers);
    let _ = store.holder().stop();
    reap(&mut first);
    measured
}

/// A directory that is removed when the value is dropped.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn reap(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn gigabytes_per_second(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64() / 1e9
}

fn measure(store: &Store, place: &Path, bytes: usize, takeovers: usize) -> Result<()> {
    let file = place.join("model.safetensors");
    let each = bytes / TENSORS / 8 * 8;
    write_model(&file, each)?;
    // Fill the page cache first, as in the measurement of the raw technique.
    let read_once = || -> Result<Duration> {
        let mut file = File::open(&file)?;
        let mut buffer = vec![0; 1 << 20];
        let begin = Instant::now();
        while file.read(&mut buffer)? > 0 {}
        Ok(begin.elapsed())
    };
    read_once()?;
    for threads in [1, 2, 4] {
        let raw = read_once()?;
        let options = LoadOptions::new().threads(threads);
        let begin = Instant::now();
        let loaded = store.load("host", std::slice::from_ref(&file), &options)?;
        let took = begin.elapsed();
        println!(
            "load, {threads} thread(s), hash and first touch included: {:.2} GB/s; read(2) alone, one thread: {:.2} GB/s",
            gigabytes_per_second(bytes, took),
            gigabytes_per_second(bytes, raw)
        );
        loaded.publish("model", HoldOptions::new().replaces(true))?;
    }
    let fresh = || Store::new().socket_dir(place.join("sockets"));
    let mut opens = Vec::new();
    for _ in 0..200 {
        // Use a new store, which has no context and no connection, like a new process.
        let store = fresh();
        let begin = Instant::now();
        let model = store.open("model")?;
        let tensors = model.manifest().tensors.keys();
        let found = tensors.filter(|name| model.tensor(name).is_ok()).count();
        opens.push(begin.elapsed());
        assert_eq!(found, TENSORS);
    }
    println!(
        "open, {TENSORS} named tensors, contexts included: {}",
        spread(opens)
    );
    let model = store.open("model")?;
    let begin = Instant::now();
    model.verify(&LoadOptions::new())?;
    println!(
        "hash on demand: {:.2} GB/s",
        gigabytes_per_second(bytes, begin.elapsed())
    );
    println!("{}", cost_of(store.holder())?);
    let mut after_kill = Vec::new();
    for _ in 0..takeovers {
        let status = await_safe(store.holder())?;
        let mut word = [0; 8];
        let begin = Instant::now();
        kill(status.pid)?;
        let again = fresh().open("model")?;
        after_kill.push(begin.elapsed());
        again.memory()?.read(0, &mut word)?;
        model.memory()?.read(0, &mut word)?;
    }
    println!(
        "holder killed until the name is open again in a process with a store: {}",
        spread(after_kill)
    );
    model.verify(&LoadOptions::new())?;
    println!("the model that was open all along has the hash it had, after {takeovers} takeovers");
    Ok(())
}

fn write_model(path: &Path, each: usize) -> Result<()> {
    let mut header = String::from("{");
    for index in 0..TENSORS {
        let (begin, end) = (index * each, (index + 1) * each);
        let comma = if index == 0 { "" } else { "," };
        header += &format!(
            "{comma}\"layers.{index}.weight\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[{begin},{end}]}}",
            each / 2
        );
    }
    header.push('}');
    let mut file = std::io::BufWriter::new(File::create(path)?);
    use std::io::Write;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut part = vec![0_u8; each];
    for index in 0..TENSORS {
        for (at, byte) in part.iter_mut().enumerate() {
            *byte = (at ^ (at >> 8) ^ index) as u8;
        }
        file.write_all(&part)?;
    }
    Ok(file.flush()?)
}

fn await_safe(holder: &Holder) -> Result<holder::Status> {
    loop {
        let status = holder.status()?;
        if status.is_safe {
            return Ok(status);
        }
        std::thread::yield_now();
    }
}

fn kill(pid: u32) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(pid.try_into()?).ok_or("no process")?;
    Ok(rustix::process::kill_process(
        pid,
        rustix::process::Signal::KILL,
    )?)
}

/// Returns the memory and CPU time that both processes use while they are idle.
fn cost_of(holder: &Holder) -> Result<String> {
    let status = await_safe(holder)?;
    let successor = status.successor.ok_or("no successor")?;
    let private_kib = |pid: u32| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        Ok(of("Private_Dirty:") + of("Private_Clean:"))
    };
    let ticks = |pid: u32| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after = text.rsplit(')').next().unwrap_or_default();
        let fields: Vec<_> = after.split_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    };
    let before = ticks(status.pid)? + ticks(successor)?;
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(status.pid)? + ticks(successor)? - before;
    Ok(format!(
        "at rest: holder {} KiB, successor {} KiB of private memory; {used} clock ticks of 10 ms in 2 s",
        private_kib(status.pid)?,
        private_kib(successor)?
    ))
}

fn spread(mut all: Vec<Duration>) -> String {
    all.sort();
    let at = |part: f64| all[((all.len() - 1) as f64 * part) as usize];
    format!(
        "median {:?}, p99 {:?}, greatest {:?} of {}",
        at(0.5),
        at(0.99),
        at(1.0),
        all.len()
    )
}
