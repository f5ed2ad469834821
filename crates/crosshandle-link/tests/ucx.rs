//! Properties of UCX itself that `docs/hosts.md` states.

use crosshandle_link::bare::{Settings, Worker};

/// Over TCP, UCX checks only addresses and no keys. A peer that has the key of one allocation can
/// read another allocation that was never registered. If this test fails, UCX has become stricter,
/// and the table of threats in `docs/hosts.md` is out of date.
#[test]
#[ignore = "needs UCX; `cargo xtask test` runs it"]
fn over_tcp_keys_protect_nothing() {
    let settings = Settings {
        interface: Some("lo".into()),
        transports: Some("tcp".into()),
    };
    let [mut owner, mut user] = [(); 2].map(|()| Worker::new(&settings).expect("UCX"));
    let (mut registered, secret) = (vec![1u8; 4096], vec![42u8; 4096]);
    // SAFETY: the memory outlives both workers' use of it.
    let made = unsafe { owner.register(registered.as_mut_ptr(), 4096, false) }.unwrap();
    // SAFETY: the addresses and the key come from UCX, in this process.
    let key = unsafe {
        user.connect(&owner.address().unwrap()).unwrap();
        owner.connect(&user.address().unwrap()).unwrap();
        user.unpack(&made.key).unwrap()
    };
    let mut read = vec![0u8; 4096];
    let from = secret.as_ptr().addr() as u64;
    // SAFETY: `read` outlives the request, and this worker unpacked the key.
    let mut request = unsafe { user.get(read.as_mut_ptr(), 4096, from, key) }.unwrap();
    while !user.is_done(&mut request).unwrap() {
        user.progress();
        owner.progress();
    }
    assert_eq!(read, secret);
    // SAFETY: the worker unpacked the key, and no request uses it.
    unsafe { user.destroy_key(key) };
    owner.unregister(&made);
}
