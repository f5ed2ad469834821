//! `crosshandle top`.

mod keys;
mod rows;
mod sample;
mod screen;
mod view;

use super::ps::Answers;
use crate::failure::{ErrorContext, Failure, Result};
use crate::output;
use crate::settings::Settings;
use crate::units::parse_duration;
use keys::State;
use ratatui::crossterm::event::{self, Event};
use sample::Samples;
use screen::Screen;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

/// Maximum time that `top` waits for all processes to reply. A stopped process delays each update
/// by this time.
///
/// A reply takes a millisecond. With much less, a busy process could be reported as not replying.
const TOP_REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Minimum interval between two updates of `top`, and the interval between the first two.
///
/// Rates over a shorter time fluctuate too much.
const TOP_MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Interval at which `top` checks for new replies and signals while no key is pressed.
const TOP_KEY_INTERVAL: Duration = Duration::from_millis(50);

pub(super) const AFTER_HELP: &str = "\
Keys:
  Tab, 1 2 3 4   processes, contexts, events, channels
  ← →            sort by another column
  r              reverse the order
  /              filter lines by a text: Enter keeps the filter, Esc drops it
  ↑ ↓ PgUp PgDn  move
  Space          pause or resume updates
  q, Esc, Ctrl-C quit

Exit status:
  0  done
  1  an error, explained on standard error
  2  wrong usage";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Time between two updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// A wait of at least this length is shown as stuck
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    stuck: Duration,
    /// Show only lines with this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// The list to start with
    #[arg(long, value_enum, default_value_t)]
    view: keys::List,
    /// Print one snapshot as text. This is the default if standard output is not a terminal
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let mut state = State::new(args.view, &args.filter, args.stuck);
    let interval = args.interval.max(TOP_MIN_INTERVAL);
    if args.once || !io::stdout().is_terminal() {
        return print_once(&mut state, settings, interval);
    }
    // Catch signals before changing the terminal, so that no signal ends the program without
    // restoring it.
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&ended)).context("catching signals")?;
    }
    let looks = look_around(settings.clone(), interval);
    let mut screen = Screen::open().context("using the terminal")?;
    watch(&mut screen, &mut state, &looks, &ended)
}

/// Prints one snapshot. Rates need two samples.
fn print_once(state: &mut State, settings: &Settings, interval: Duration) -> Result<()> {
    let mut samples = Samples::default();
    samples.add(Answers::ask(settings, TOP_REPLY_TIMEOUT));
    thread::sleep(interval);
    samples.add(Answers::ask(settings, TOP_REPLY_TIMEOUT));
    for line in view::text(state, &samples) {
        output::line(line)?;
    }
    Ok(())
}

/// Starts a thread that queries all exporters repeatedly. An exporter that does not reply then
/// never delays the handling of keys.
fn look_around(settings: Settings, interval: Duration) -> Receiver<Answers> {
    // The channel holds only one sample, because older samples are not shown.
    let (sender, looks) = mpsc::sync_channel(1);
    thread::spawn(move || {
        // The first pause is short, because rates need two samples.
        let mut pause = TOP_MIN_INTERVAL;
        while sender
            .send(Answers::ask(&settings, TOP_REPLY_TIMEOUT))
            .is_ok()
        {
            thread::sleep(pause);
            pause = interval;
        }
    });
    looks
}

/// Shows each sample and handles each key, until the user or a signal ends the program.
fn watch(
    screen: &mut Screen,
    state: &mut State,
    looks: &Receiver<Answers>,
    ended: &AtomicBool,
) -> Result<()> {
    let mut samples = Samples::default();
    while !state.is_over() && !ended.load(Ordering::Relaxed) {
        screen
            .draw(|area, buffer| view::draw(state, &samples, area, buffer))
            .context("drawing")?;
        // Wait until a sample or a key arrives, or a signal ends the program.
        while !ended.load(Ordering::Relaxed) {
            match looks.try_recv() {
                Ok(answers) => {
                    if !state.is_held() {
                        samples.add(answers);
                    }
                    break;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::error(
                        "the thread that queries the processes has ended",
                    ));
                }
            }
            if event::poll(TOP_KEY_INTERVAL).context("waiting for a key")? {
                match event::read().context("reading a key")? {
                    Event::Key(key) => state.press(key),
                    Event::Resize(..) => {}
                    _ => continue,
                }
                break;
            }
        }
    }
    Ok(())
}
