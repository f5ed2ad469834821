//! `crosshandle load FILE… --name NAME`.

use crate::failure::{ErrorContext as _, Failure, Result};
use crate::input::token::{ShownToken, given};
use crate::output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::units::bytes;
use crosshandle::holder::HoldOptions;
use crosshandle::holder::HolderFault;
use crosshandle_store::{Error, Hash, LoadOptions, OpenOptions, Store};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Safetensors files, the index of a checkpoint of several files (`….index.json`), or a
    /// directory with either
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The name under which programs open the model
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The device: host, or another backend and its number, as in cuda:1
    #[arg(long, default_value = "host", value_name = "D")]
    device: String,
    /// Publish the next version of the name if it is already in use. Readers keep the version that
    /// they have open
    #[arg(long)]
    replace: bool,
    /// Load only the model with this hash
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    expect: Option<Hash>,
    /// Number of threads that read [default: the number of processors, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Read without the page cache, for storage that is faster than the page cache
    #[arg(long)]
    direct: bool,
    /// Resume a killed load of the same files under the same name
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    token: ShownToken,
    /// The token that readers must present
    #[arg(long, value_name = "TOKEN", conflicts_with = "read_token_file")]
    read_token: Option<String>,
    /// A file whose first line is the token that readers must present, or `-` for the next line of
    /// standard input
    #[arg(long, value_name = "FILE")]
    read_token_file: Option<PathBuf>,
    /// The token that writers must present
    #[arg(long, value_name = "TOKEN", conflicts_with = "write_token_file")]
    write_token: Option<String>,
    /// A file whose first line is the token that writers must present, or `-` for the next line of
    /// standard input
    #[arg(long, value_name = "FILE")]
    write_token_file: Option<PathBuf>,
    /// The token that `rm` and `pin` must present
    #[arg(long, value_name = "TOKEN", conflicts_with = "admin_token_file")]
    admin_token: Option<String>,
    /// A file whose first line is the token that `rm` and `pin` must present, or `-` for the next
    /// line of standard input
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The name of the model
    name: String,
    /// Fail unless the model has this hash
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    expect: Option<Hash>,
    /// Keep the model open, and verify it again for each line of standard input
    #[arg(long)]
    stay: bool,
    /// Restore the model in a later holder if the running holder and its successor die at the same
    /// moment
    #[arg(long, requires = "stay")]
    keep: bool,
    #[command(flatten)]
    token: ShownToken,
}

impl Args {
    /// Returns the options for the name, including its tokens.
    fn hold_options(&self) -> Result<HoldOptions> {
        let mut hold = HoldOptions::new().replaces(self.replace);
        let (token, file) = (&self.read_token, &self.read_token_file);
        if let Some(token) = given("--read-token", token.as_deref(), file.as_deref())? {
            hold = hold.read_token(token);
        }
        let (token, file) = (&self.write_token, &self.write_token_file);
        if let Some(token) = given("--write-token", token.as_deref(), file.as_deref())? {
            hold = hold.write_token(token);
        }
        let (token, file) = (&self.admin_token, &self.admin_token_file);
        if let Some(token) = given("--admin-token", token.as_deref(), file.as_deref())? {
            hold = hold.admin_token(token);
        }
        Ok(hold)
    }
}

fn parse_hash(text: &str) -> Result<Hash, String> {
    Hash::from_hex(text).map_err(|error| format!("a hash has 64 hexadecimal digits: {error}"))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Crosshandle(error) => error.into(),
            error => Self::error(error.to_string()),
        }
    }
}

fn store(settings: &Settings, token: Option<&str>) -> Store {
    let mut store = Store::new();
    if let Some(directory) = &settings.socket_dir {
        store = store.socket_dir(directory);
    }
    match token {
        Some(token) => store.token(token),
        None => store,
    }
}

/// Returns load options that show a progress bar.
fn with_progress(doing: &'static str) -> LoadOptions {
    let bar: Arc<OnceLock<Progress>> = Arc::default();
    LoadOptions::new().progress(move |bytes, all| {
        bar.get_or_init(|| Progress::bytes(all, doing))
            .advance(bytes);
    })
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let store = store(settings, args.token.get()?.as_deref());
    let hold = args.hold_options()?;
    // Check whether the name is in use before loading, which may take minutes.
    let fault = |error: &crosshandle::Error| match error {
        crosshandle::Error::Holder { fault, .. } => Some(*fault),
        _ => None,
    };
    match store.holder().open(&args.name) {
        Err(error) if fault(&error) == Some(HolderFault::NoSuchName) => {}
        Err(error) if fault(&error) != Some(HolderFault::NotAllowed) => return Err(error.into()),
        _ if args.replace => {}
        _ => {
            return Err(Failure::error(format!(
                "{} is in use; publish its next version with --replace, or take another name",
                args.name
            )));
        }
    }
    let mut options = with_progress("loading").direct(args.direct);
    if let Some(threads) = args.threads {
        options = options.threads(threads.into());
    }
    if let Some(hash) = args.expect {
        options = options.expecting(hash);
    }
    let begin = Instant::now();
    let (handed_over, manifest, hash, resumed) = if args.resume {
        let loaded = store.load_resumably(&args.device, &args.files, &args.name, &options, hold)?;
        let resumed = loaded.resumed_bytes;
        (loaded.handed_over, loaded.manifest, loaded.hash, resumed)
    } else {
        let loaded = store.load(&args.device, &args.files, &options)?;
        let handed_over = loaded.publish(&args.name, hold)?;
        (handed_over, loaded.manifest().clone(), loaded.hash(), 0)
    };
    drop(options);
    let took = begin.elapsed();
    let len = manifest.bytes;
    let resumed = match resumed {
        0 => String::new(),
        resumed => format!(", of which {} were already loaded", bytes(resumed)),
    };
    output::line(format_args!(
        "{} version {}: {} tensors, {}{resumed} in {:.2} s ({:.1} GB/s), hash {hash}",
        args.name,
        handed_over.version,
        manifest.tensors.len(),
        bytes(len),
        took.as_secs_f64(),
        len as f64 / took.as_secs_f64() / 1e9,
    ))?;
    if !handed_over.is_safe {
        settings.log("the holder has no successor: its objects are lost when it ends");
    }
    Ok(())
}

pub(crate) fn verify(args: &VerifyArgs, settings: &Settings) -> Result<()> {
    let store = store(settings, args.token.get()?.as_deref());
    let mut options = OpenOptions::new().back_up(args.keep);
    if let Some(hash) = args.expect {
        options = options.expecting(hash);
    }
    let model = store.open_with(&args.name, &options)?;
    let verify = || {
        let options = with_progress("verifying");
        let verified = model.verify(&options).map_err(Failure::from);
        verified.context(&args.name)?;
        output::line(format_args!(
            "{} version {}: {} tensors, {}, hash {}",
            args.name,
            model.version(),
            model.manifest().tensors.len(),
            bytes(model.manifest().bytes),
            model.hash()
        ))
    };
    verify()?;
    if args.stay {
        for line in std::io::stdin().lines() {
            line.context("reading standard input")?;
            verify()?;
        }
    }
    Ok(())
}
