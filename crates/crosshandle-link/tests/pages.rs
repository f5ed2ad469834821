//! The parts of programs that `docs/hosts.md` shows, over the loopback interface. A test of the
//! command checks that the page's lines are here.

use crosshandle::{Context, ContextOptions, Device};
use crosshandle_link::{
    Data, Identity, Link, LinkOptions, Listener, NeighbourLink, SharedLink, Token,
};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const HELLO: &[u8] = b"hello";

/// Returns a context with sockets in a directory of its own. Both sides are in this process, so
/// they need two directories.
fn context(directory: &Path) -> Result<Context, Box<dyn Error>> {
    fs::DirBuilder::new().mode(0o700).create(directory)?;
    let options = ContextOptions::new().socket_dir(directory);
    Ok(Context::with_options(&Device::find("host")?, options)?)
}

#[test]
fn a_link_opens_objects_and_is_shared() -> Result<(), Box<dyn Error>> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let scratch = scratch.join(format!("pages-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&scratch)?;
    let file = scratch.join("token");
    let mut created = fs::File::options();
    let mut created = created
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)?;
    created.write_all(Token::generate()?.to_text().as_bytes())?;

    let owner = context(&scratch.join("owner"))?;
    let (owned, owned_event) = (owner.allocate(4096)?, owner.create_event()?);
    let (handle, event) = (owned.handle()?, owned_event.handle()?);
    let identity = Identity::Token(Token::from_file(&file)?);
    let options = LinkOptions::new(identity).data(Data::Tls);
    let listener = Listener::bind("127.0.0.1:0", &owner, &options)?;
    let address = listener.local_address().to_string();
    let accepted = std::thread::spawn(move || listener.accept_timeout(TIMEOUT));

    let context = context(&scratch.join("user"))?;
    let options = LinkOptions::new(Identity::Token(Token::from_file(&file)?));
    let options = options.data(Data::Tls);
    let link = Link::connect(&address, &context, &options)?;
    let memory = link.open_memory(&handle)?;
    let ready = link.open_event(&event)?;
    let signal = memory.write_and_signal(0, b"hello", &ready)?;
    assert_eq!(signal.wait()?, 1);
    owned_event.wait_value_timeout(1, TIMEOUT)?;
    let mut read = [0; HELLO.len()];
    owned.read(0, &mut read)?;
    assert_eq!(read, HELLO);

    let directory = scratch.join("user");
    let directory = Some(directory.as_path());
    let own = context.allocate(4096)?;
    own.write(0, b"again")?;
    let _shared = SharedLink::new(&link, "store", directory)?;
    let store = NeighbourLink::connect("store", &context, directory)?;
    let (memory, ready) = (store.open_memory(&handle)?, store.open_event(&event)?);
    memory.copy_from(0, &own, 0..own.len())?;
    ready.signal()?;
    owned_event.wait_value_timeout(2, TIMEOUT)?;
    owned.read(0, &mut read)?;
    assert_eq!(&read, b"again");

    drop((memory, ready, store, link));
    drop(accepted.join().expect("it accepts")?);
    fs::remove_dir_all(&scratch)?;
    Ok(())
}
