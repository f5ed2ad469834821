//! `crosshandle gc`.

use crate::failure::{ErrorContext, Result};
use crate::output;
use crate::settings::Settings;
use crosshandle::Error;
use crosshandle::report::{dead_sockets, remove_dead};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    let directories = settings.socket_directories();
    let mut count = 0;
    for directory in &directories {
        let dead = if args.dry_run {
            dead_sockets(directory)
        } else {
            remove_dead(directory)
        };
        let dead = match dead {
            // Skip a default directory that cannot be used, but report an error in a directory that
            // the user has named.
            Err(error @ Error::Unsupported(_)) if directories.len() > 1 => {
                settings.log(error);
                continue;
            }
            dead => dead.context(format_args!("cleaning up {}", directory.display()))?,
        };
        count += dead.len();
        for found in dead {
            output::line(format_args!("{verb} {}", found.socket.display()))?;
        }
    }
    if count == 0 {
        settings.log("dead processes have left nothing behind");
    }
    Ok(())
}
