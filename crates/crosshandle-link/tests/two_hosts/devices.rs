//! Memory of devices that the host cannot access.

use super::hosts::Peer;
use super::{TOKEN, words};

type Variables = Vec<(&'static str, String)>;

/// Returns the environment of processes with the simulated Level Zero driver, whose memory the host
/// cannot access.
fn simulated() -> Variables {
    let loaders = std::env::var("ZE_LOADER_LIB_DIRS").unwrap_or_default();
    let newest = loaders.split(':').next_back();
    let loader = newest.filter(|path| !path.is_empty()).expect(
        "ZE_LOADER_LIB_DIRS is not set: run this test with `cargo xtask test`, which sets it",
    );
    let driver = std::env::current_exe().unwrap();
    let driver = driver.with_file_name("libze_sim.so");
    assert!(driver.is_file(), "there is no {}", driver.display());
    vec![
        ("CROSSHANDLE_LINK_DEVICE", "level_zero:0".into()),
        ("LD_LIBRARY_PATH", loader.to_owned()),
        ("ZE_ENABLE_ALT_DRIVERS", driver.display().to_string()),
    ]
}

/// Device memory is copied over a link. With `staged`, it is copied through host memory on both
/// sides.
fn memory_of_devices_crosses(variables: &Variables, data: &str, staged: &str) {
    let (mut owner, mut user) = (Peer::with(variables), Peer::with(variables));
    let interface = if data.contains(":-:") { "-" } else { "lo" };
    let options = format!("{TOKEN} {data} {interface} 10000");
    let address = owner.ask(&format!("listen 127.0.0.1:0 {options}"));
    user.ask(&format!("connect {address} {options}"));
    owner.ask("accept 10000");
    // The length is more than the staging buffer can hold, and not a multiple of its parts.
    let len = 30_000_001;
    let handles = owner.ask(&format!("allocate {len}"));
    let handles = words(&handles);
    let event = owner.ask("create_event");
    assert_eq!(
        user.ask(&format!("open_memory {}", handles[0])),
        format!("{len} ReadWrite{staged}")
    );
    assert_eq!(
        user.ask(&format!("open_memory {}", handles[1])),
        format!("{len} ReadOnly{staged}")
    );
    user.ask(&format!("open_event {event}"));
    owner.ask("fill 0 3");
    assert_eq!(user.ask(&format!("remote_holds 1 3 0 {len}")), "true");
    user.ask("remote_write 0 5 0 29000000");
    assert_eq!(owner.ask("holds 0 5 0 29000000"), "true");
    owner.ask("fill 0 6");
    assert_eq!(user.ask("remote_read_many 1 6 100 64"), "true");
    // Copy from device memory to device memory and back, by queue commands.
    assert_eq!(user.ask("queue_copies 0 0 77"), "true");
    assert_eq!(owner.ask(&format!("holds 0 77 0 {len}")), "true");
    owner.ask("wait 0 1 10000");
    // A write and its signal.
    assert_eq!(user.ask("remote_write_and_signal 0 9 0 1000"), "2");
    owner.ask("wait 0 2 10000");
    assert_eq!(owner.ask("holds 0 9 0 1000"), "true");
    let error = user.try_ask("remote_write 1 5 0 10").unwrap_err();
    assert!(error.contains("read-only"), "{error}");
    println!(
        "{data} ({}): {} MB/s there and back, by commands of a queue",
        user.ask("transports"),
        user.ask("copy_rate 0 10")
    );
    owner.ask("close");
    let error = user.try_ask("remote_write 0 5 0 10").unwrap_err();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn memory_of_devices_crosses_over_tls() {
    memory_of_devices_crosses(&simulated(), "tls", " staged");
}

#[test]
#[ignore = "needs a Level Zero loader and UCX; `cargo xtask test` runs it"]
fn memory_of_devices_crosses_over_ucx() {
    memory_of_devices_crosses(&simulated(), "ucx", " staged");
}

mod on_a_gpu {
    use super::*;

    fn gpu() -> Variables {
        vec![("CROSSHANDLE_LINK_DEVICE", "cuda:0".into())]
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn memory_crosses_over_tls() {
        memory_of_devices_crosses(&gpu(), "tls", " staged");
    }

    /// UCX itself moves memory of CUDA GPUs: over TCP by its own copies, and within a host by
    /// CUDA's.
    #[test]
    #[ignore = "needs an NVIDIA GPU and UCX"]
    fn memory_is_moved_by_ucx_alone() {
        memory_of_devices_crosses(&gpu(), "ucx", " staged");
        memory_of_devices_crosses(&gpu(), "ucx:tcp,cuda_copy,self:needed", "");
        memory_of_devices_crosses(&gpu(), "ucx:-:needed", "");
    }
}
