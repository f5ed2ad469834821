//! Exporters that delay importers, or try to. An open must still end within its timeout.

use super::hostile::exporter;
use super::impostor::Impostor;
use super::stopped::Stopped;
use crate::attackers::descriptors::NastyAnswers;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::peer::Refused;
use crate::raw::{self, ARENA, ATTACH, CHUNK, MEMORY, Socket, attached, fetched, sent};
use crate::suite::Outcome;
use crate::tamper::{at, with};
use crate::{Peer, Pending};
use crosshandle::{EventHandle, MemoryHandle};
use std::time::{Duration, Instant};

/// The importer's timeout.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time by which an open may exceed the timeout on a busy machine. A delaying descriptor
/// blocks for longer ([`HOLD`](crate::attackers::descriptors::HOLD)).
const SLACK: Duration = Duration::from_millis(1_500);

/// Waits for an open that must fail. Returns its error and its duration since `began`.
fn failed(pending: Pending<'_>, began: Instant) -> Result<(Refused, Duration), Failure> {
    match pending.reply(deadline()) {
        Err(refused) if refused.kind != "Ended" => Ok((refused, began.elapsed())),
        other => Err(Failure::new(format!("refused expected, but {other:?}"))),
    }
}

fn check_in_time(what: &str, taken: Duration) -> Result<(), Failure> {
    match taken <= (TIMEOUT + SLACK) * crate::slowdown() {
        true => Ok(()),
        false => Err(Failure::new(format!("{what}: the open took {taken:?}"))),
    }
}

fn hasty(harness: &Harness) -> Result<Peer, Failure> {
    let importer = harness.peer()?;
    let timeout = (TIMEOUT * crate::slowdown()).as_millis();
    importer.ask(format!("context hasty timeout={timeout}"))?;
    Ok(importer)
}

/// Replies honestly until the request `question` arrives. Returns the connection and that request.
fn lead_to(
    question: u16,
    impostor: &Impostor,
    connection: Socket,
    attach: Vec<u8>,
) -> Result<(Socket, Vec<u8>), Failure> {
    let mut asked = attach;
    while raw::operation(&asked) != question {
        let serial = raw::serial(&asked);
        match raw::operation(&asked) {
            ATTACH => {
                let books = impostor.books()?;
                connection.send(&attached(2, serial), &raw::borrowed(&books))?;
            }
            MEMORY => {
                let file = raw::memfd(SEGMENT, true)?;
                connection.send(
                    &fetched(impostor.segment(), SEGMENT, serial),
                    &raw::borrowed(&[file]),
                )?;
            }
            other => return Err(Failure::new(format!("question {other}"))),
        }
        (asked, _) = connection.receive()?;
    }
    Ok((connection, asked))
}

/// The requests that get a harmful reply.
const QUESTIONS: [u16; 4] = [ATTACH, MEMORY, ARENA, CHUNK];
/// Size of the impostor's memory, in bytes.
const SEGMENT: u64 = 8 << 20;

/// Descriptors that come with a reply, requested or not, must not delay the importer. This holds
/// for the open itself and for opens from other exporters at the same time.
pub(crate) fn nasty_answers_hold_up_nobody(harness: &Harness) -> Verdict {
    let (honest, memory) = exporter(harness)?;
    honest.ask("event e")?;
    let event: EventHandle = honest.ask("event-handle e")?.remove(0).parse()?;
    // A record in another chunk, which the importer must request.
    let far = with(memory.as_bytes(), at::RECORD, &1500_u32.to_le_bytes());
    let far = MemoryHandle::from_bytes(&far)?;
    let program = harness.program().with_file_name("conformance");
    // All importers start before a delaying file exists, because each new process would have to
    // close it.
    let importers: Result<Vec<_>, _> = (0..QUESTIONS.len() * NastyAnswers::MOST)
        .map(|_| hasty(harness))
        .collect();
    let mut importers = importers?;
    let answers = NastyAnswers::new(&program);
    let (mut slowest, mut rounds, mut ends) = (Duration::ZERO, 0, Vec::new());
    // Chunks are requested after the memory is mapped, and the impostor has only host memory.
    let has_files = harness.is_host();
    let questions = QUESTIONS.into_iter().filter(|of| *of != CHUNK || has_files);
    for question in questions {
        for kind in answers.kinds() {
            let what = format!("{kind}, question {question}");
            let impostor = match question {
                ARENA => Impostor::of_event(harness, &event)?,
                CHUNK => Impostor::new(harness, &far)?,
                _ => Impostor::new(harness, &memory)?,
            };
            let importer = importers.pop().ok_or(Failure::new("no importer"))?;
            let (pending, connection, attach) = impostor.lure(&importer)?;
            let (connection, asked) = lead_to(question, &impostor, connection, attach)?;
            let nasty = answers.make(kind, &connection.0)?;
            let serial = raw::serial(&asked);
            let (answer, count) = match question {
                ATTACH => (attached(2, serial), 2),
                MEMORY => (fetched(impostor.segment(), SEGMENT, serial), 1),
                _ => (sent(serial), 2),
            };
            // The reply has as many descriptors as requested, or too many.
            let count = (kind != "253 files").then_some(count);
            // The importer is stopped meanwhile, so that it is the last process that has them.
            let stopped = Stopped::new(&importer)?;
            let began = Instant::now();
            nasty
                .answer(&connection.0, &answer, count)
                .map_err(|errno| Failure::new(format!("{what}: {errno}")))?;
            drop(stopped);
            let (_, taken) = failed(pending, began)?;
            check_in_time(&what, taken)?;
            slowest = slowest.max(taken);
            // Objects of another exporter must open while the importer disposes of the descriptors.
            // Afterwards everything ends.
            let began = Instant::now();
            importer
                .ask(format!("open-memory n {memory} context=hasty"))
                .map_err(|refused| Failure::new(format!("{what}, then: {refused}")))?;
            importer.ask("check n 0 1 100")?;
            importer.ask("close n hasty")?;
            check_in_time(&what, began.elapsed())?;
            std::fs::remove_file(&impostor.path)?;
            rounds += 1;
            // The process's end is delayed, because the kernel closes the descriptors for it.
            ends.push(std::thread::spawn(move || drop(importer)));
        }
    }
    for end in ends {
        let _ = end.join();
    }
    Ok(Outcome::Passed(format!(
        "{rounds} opens, the slowest {slowest:?}"
    )))
}

/// One deadline covers everything that an open waits for. An exporter that replies late but in time
/// to each request, or that hangs up repeatedly, costs only the timeout.
pub(crate) fn one_deadline_for_a_whole_open(harness: &Harness) -> Verdict {
    let (_exporter, memory) = exporter(harness)?;
    let step = TIMEOUT * 7 / 10;
    // Each reply is late.
    let impostor = Impostor::new(harness, &memory)?;
    let importer = hasty(harness)?;
    let began = Instant::now();
    let (pending, connection, attach) = impostor.lure(&importer)?;
    std::thread::sleep(step * crate::slowdown());
    let (connection, _asked) = lead_to(MEMORY, &impostor, connection, attach)?;
    std::thread::sleep(step * crate::slowdown());
    assert!(
        pending.is_answered(),
        "an open with two late replies continues after {:?}",
        began.elapsed()
    );
    let (refused, taken) = failed(pending, began)?;
    assert_eq!(refused.kind, "TimedOut", "{refused}");
    let path = impostor.path.clone();
    drop((connection, impostor));
    std::fs::remove_file(path)?;
    let importer = hasty(harness)?;
    // The exporter sends messages in time again and again, but never the reply.
    let impostor = Impostor::new(harness, &memory)?;
    let began = Instant::now();
    let (pending, connection, _) = impostor.lure(&importer)?;
    while !pending.is_answered() && began.elapsed() < 3 * TIMEOUT * crate::slowdown() {
        // The send fails when the importer stops listening.
        let _ = connection.send(&sent(77), &[]);
        std::thread::sleep(TIMEOUT / 20);
    }
    let (refused, talked) = failed(pending, began)?;
    assert_eq!(refused.kind, "TimedOut", "{refused}");
    check_in_time("answers to other questions", talked)?;
    drop(connection);
    // The exporter hangs up before each reply.
    let began = Instant::now();
    let (pending, connection, _) = impostor.lure(&importer)?;
    drop(connection);
    while !pending.is_answered() && began.elapsed() < 3 * TIMEOUT * crate::slowdown() {
        if let Some(connection) = impostor.accept_soon(TIMEOUT / 20)? {
            std::thread::sleep(TIMEOUT / 20);
            drop(connection);
        }
    }
    let (_, hung_up) = failed(pending, began)?;
    check_in_time("hang-ups", hung_up)?;
    Ok(Outcome::Passed(format!(
        "late answers {taken:?}, other answers {talked:?}, hang-ups {hung_up:?}"
    )))
}
