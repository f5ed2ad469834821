//! The workloads: lists of commands that the worker processes run.
//!
//! A line has the form `WORKER COMMAND…`, with a command of `crosshandle-peer`.
//! `WORKER name := COMMAND…` stores the first word of the answer, which later lines use as `$name`.
//! `WORKER &label COMMAND…` runs the command on its own thread, and `join label` waits for its
//! answer. `=> Kind` at the end of a line names the error that the command must give.
//! `check NAME OFFSET ? LEN` compares memory with the bytes that were written last.

use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Position of the line in the workload. The number stays the same in a shortened workload.
    pub(super) number: usize,
    pub(super) text: String,
    pub(super) action: Action,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Runs a command, and waits for its answer.
    Run {
        worker: char,
        command: String,
        /// The variable that stores the answer.
        variable: Option<String>,
        /// The error that the command must give if nothing else has failed.
        error: Option<String>,
    },
    /// Runs a command on its own thread.
    Begin {
        worker: char,
        label: String,
        command: String,
    },
    /// Waits for the answer of a command that was begun.
    Join { label: String },
}

/// Identifies an object by the worker that made it and the object's name there.
pub(super) type Origin = (char, String);

/// Returns the name of the object in a word of a command, such as `e` in `e:1` and in `signal=e`.
fn name_in(word: &str) -> &str {
    let word = word.split_once('=').map_or(word, |(_, value)| value);
    word.split_once(':').map_or(word, |(name, _)| name)
}

/// A list of commands for several processes.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) lines: Vec<Line>,
}

impl Workload {
    fn parse(name: &'static str, text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.enumerate().map(|(number, line)| Line {
            number: number + 1,
            text: line.to_owned(),
            action: action(line),
        });
        Self {
            name,
            lines: lines.collect(),
        }
    }

    /// Returns a copy of the workload without the line at `index`.
    pub(super) fn without(&self, index: usize) -> Self {
        let mut shorter = self.clone();
        shorter.lines.remove(index);
        shorter
    }

    /// Returns the highest number of a line.
    pub(super) fn last_line(&self) -> usize {
        self.lines.last().map_or(0, |line| line.number)
    }

    pub(super) fn made_by(&self, name: char, event: &str) -> bool {
        self.lines.iter().any(|line| match &line.action {
            Action::Run {
                worker, command, ..
            } => {
                let mut words = command.split(' ');
                *worker == name && words.next() == Some("event") && words.next() == Some(event)
            }
            _ => false,
        })
    }

    pub(super) fn origin(&self, worker: char, name: &str) -> Origin {
        let handle = self.runs().find_map(|(by, words, _)| match words[..] {
            [open, opened, handle, ..] if open.starts_with("open-") => {
                ((by, opened) == (worker, name)).then(|| handle.strip_prefix('$'))?
            }
            _ => None,
        });
        let made = handle.and_then(|handle| {
            self.runs().find_map(|(by, words, variable)| {
                (variable == Some(handle)).then(|| (by, words.get(1).copied().unwrap_or_default()))
            })
        });
        let (worker, name) = made.unwrap_or((worker, name));
        (worker, name.to_owned())
    }

    /// Returns the context in which an object was made, if its line names one.
    pub(super) fn context(&self, origin: &Origin) -> Option<Origin> {
        self.runs().find_map(|(by, words, _)| {
            let is_made = (by, *words.get(1)?) == (origin.0, origin.1.as_str());
            let context = words
                .iter()
                .find_map(|word| word.strip_prefix("context="))?;
            (is_made && !words[0].starts_with("open-")).then(|| (by, context.to_owned()))
        })
    }

    /// Returns the workers that have an object at any time.
    fn users(&self, origin: &Origin) -> BTreeSet<char> {
        let opens = self.runs().filter_map(|(by, words, _)| match words[..] {
            [open, name, ..] if open.starts_with("open-") => {
                (self.origin(by, name) == *origin).then_some(by)
            }
            _ => None,
        });
        opens.chain([origin.0]).collect()
    }

    /// Returns the objects that a command names, and the objects that are connected with them
    /// through queues.
    pub(super) fn objects(&self, worker: char, command: &str) -> BTreeSet<Origin> {
        let named = |worker: char, words: &[&str]| -> BTreeSet<Origin> {
            let names = words.iter().skip(1).map(|word| name_in(word));
            names.map(|name| self.origin(worker, name)).collect()
        };
        let words: Vec<_> = command.split(' ').collect();
        let mut objects = named(worker, &words);
        let submits: Vec<_> = self
            .runs()
            .filter(|(_, words, _)| words[0] == "submit")
            .map(|(by, words, _)| named(by, &words))
            .collect();
        loop {
            let before = objects.len();
            for submitted in &submits {
                if !submitted.is_disjoint(&objects) {
                    objects.extend(submitted.iter().cloned());
                }
            }
            if objects.len() == before {
                return objects;
            }
        }
    }

    pub(super) fn involved(&self, worker: char, command: &str) -> BTreeSet<char> {
        let objects = self.objects(worker, command);
        objects
            .iter()
            .flat_map(|origin| self.users(origin))
            .collect()
    }

    /// Returns the numbers of the lines that signal one of the objects.
    pub(super) fn signals<'a>(
        &'a self,
        objects: &'a BTreeSet<Origin>,
    ) -> impl Iterator<Item = usize> + 'a {
        self.lines.iter().filter_map(|line| {
            let Action::Run {
                worker, command, ..
            } = &line.action
            else {
                return None;
            };
            let words: Vec<_> = command.split(' ').collect();
            let signalled = match words[0] {
                "signal" => words.get(1).copied(),
                "submit" => words.iter().find_map(|word| word.strip_prefix("signal=")),
                _ => None,
            };
            let origin = self.origin(*worker, signalled?);
            objects.contains(&origin).then_some(line.number)
        })
    }

    /// Returns the commands of the lines, with their workers, words and variables.
    fn runs(&self) -> impl Iterator<Item = (char, Vec<&str>, Option<&str>)> {
        self.lines.iter().filter_map(|line| match &line.action {
            Action::Run {
                worker,
                command,
                variable,
                ..
            } => Some((*worker, command.split(' ').collect(), variable.as_deref())),
            _ => None,
        })
    }

    pub(super) fn workers(&self) -> BTreeSet<char> {
        let lines = self.lines.iter();
        lines.filter_map(|line| line.action.worker()).collect()
    }
}

impl Action {
    pub(super) fn worker(&self) -> Option<char> {
        match self {
            Self::Run { worker, .. } | Self::Begin { worker, .. } => Some(*worker),
            Self::Join { .. } => None,
        }
    }
}

fn action(line: &str) -> Action {
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    if first == "join" {
        let label = rest.to_owned();
        return Action::Join { label };
    }
    let worker = first.chars().next().unwrap_or('?');
    if let Some(rest) = rest.strip_prefix('&') {
        let (label, command) = rest.split_once(' ').unwrap_or((rest, ""));
        return Action::Begin {
            worker,
            label: label.to_owned(),
            command: command.to_owned(),
        };
    }
    let (rest, error) = match rest.split_once(" => ") {
        Some((rest, error)) => (rest, Some(error.to_owned())),
        None => (rest, None),
    };
    let (variable, command) = match rest.split_once(" := ") {
        Some((variable, command)) => (Some(variable.to_owned()), command),
        None => (None, rest),
    };
    Action::Run {
        worker,
        command: command.to_owned(),
        variable,
        error,
    }
}

pub(super) fn all() -> Vec<Workload> {
    TEXTS
        .iter()
        .map(|(name, text)| Workload::parse(name, text))
        .collect()
}

/// The texts of the workloads. The workers X and Y export, and A, B and C import. Every wait that a
/// worker begins has a timeout that is far longer than any case.
const TEXTS: &[(&str, &str)] = &[
    (
        "event",
        "X context default timeout=1000
         A context default timeout=1000
         X event e
         X e := event-handle e
         A open-event e $e
         A &first wait-value e 1 30000
         X signal e
         join first
         X &second wait-value e 2 30000
         A signal e
         join second
         A close e
         X close e",
    ),
    (
        "memory",
        "X context default timeout=1000
         A context default timeout=1000
         X allocate m 5000
         X write m 0 1 5000
         X m := memory-handle m
         A open-memory m $m
         A check m 0 ? 5000
         A write m 0 2 5000
         X check m 0 ? 5000
         X close m
         X allocate n 5000
         X write n 0 3 5000
         A check m 0 ? 5000
         A open-memory again $m => Stale
         X n := memory-handle n
         A open-memory n $n
         A check n 0 ? 5000
         A close m
         X allocate o 5000
         X write o 0 4 5000
         A check n 0 ? 5000
         X allocate large 3000000
         X write large 4096 5 4096
         X large := memory-handle large read-only=yes
         A open-memory large $large read-only=yes
         A check large 4096 ? 4096
         A close large
         A close n
         X close n o large",
    ),
    (
        "fan-out",
        "X context default timeout=1000
         A context default timeout=1000
         B context default timeout=1000
         C context default timeout=1000
         X event e
         X e := event-handle e
         X allocate m 5000
         X write m 0 1 5000
         X m := memory-handle m
         A open-event e $e
         A open-memory m $m
         B open-memory m $m
         B open-event e $e
         C open-event e $e
         A &a wait-value e 1 30000
         B &b wait-value e 1 30000
         B wait-value e 1 60 => TimedOut
         C signal e
         join a
         join b
         X close m
         A check m 0 ? 5000
         A close m
         X allocate n 5000
         X write n 0 2 5000
         B check m 0 ? 5000
         B &b2 wait-value e 2 30000
         X &x2 wait-value e 2 30000
         A signal e
         join b2
         join x2
         B close m
         X allocate o 5000
         X write o 0 3 5000
         X check n 0 ? 5000
         A close e
         X close n o e",
    ),
    (
        "chain",
        "X context default timeout=1000
         A context default timeout=1000
         B context default timeout=1000
         X event one
         X one := event-handle one
         X allocate m 4096
         X m := memory-handle m
         A open-event one $one
         A open-memory m $m
         A event two
         A two := event-handle two
         A allocate k 4096
         A k := memory-handle k
         B open-event two $two
         B open-memory k $k
         B &end wait-value two 1 30000
         A &middle wait-value one 1 30000
         X write m 0 7 4096
         X signal one
         join middle
         A check m 0 ? 4096
         A write k 0 8 4096
         A signal two
         join end
         B check k 0 ? 4096
         A close one m
         B close two k
         X close m one
         A close two k",
    ),
    (
        "queues",
        "X context default timeout=1000
         A context default timeout=1000
         B context default timeout=1000
         X event e
         X e := event-handle e
         A open-event e $e
         B open-event e $e
         A event gate
         A queue q
         A submit q barrier after-value=gate:1 signal=e
         X &x wait-value e 1 30000
         B &b wait-value e 1 30000
         B queue p
         B event done
         B submit p barrier after-value=e:1 signal=done
         B &done wait-value done 1 30000
         A signal gate
         join x
         join b
         join done
         X queue r
         X allocate m 8192
         X m := memory-handle m
         A open-memory m $m
         X submit r fill m 9 signal=e
         A &a wait-value e 2 30000
         join a
         X finish r 5000
         A finish q 5000
         B finish p 5000
         A close m q gate e
         B close p done e
         X close r m e",
    ),
    // One importer waits for a signal of another importer. Only the process that fails the signal
    // wakes it.
    (
        "orphan",
        "X context default timeout=1000
         A context default timeout=1000
         B context default timeout=1000
         X event e
         X e := event-handle e
         A open-event e $e
         B open-event e $e
         B event gate
         B queue q
         B submit q barrier after-value=gate:1 signal=e
         A &a wait-value e 1 30000
         B signal gate
         join a
         B finish q 5000
         B close q gate e
         A close e
         X close e",
    ),
    (
        "re-opening",
        "X context default timeout=1000
         A context default timeout=1000
         X event e
         X e := event-handle e
         X allocate m 4096
         X write m 0 1 4096
         X m := memory-handle m
         A context c timeout=1000
         A open-memory m $m context=c
         A check m 0 ? 4096
         A close m c
         A open-event e $e
         A open-memory m $m
         A close m
         A open-memory m $m
         A check m 0 ? 4096
         A signal e
         A close e m
         X context d timeout=1000
         X event f context=d
         X f := event-handle f
         A open-event f $f
         A &f wait-value f 1 30000
         X signal f
         join f
         X close f d
         A close f
         A open-event e $e
         X &x wait-value e 2 30000
         A signal e
         join x
         A close e default
         A context default timeout=1000
         A open-event e $e
         A signal e
         X wait-value e 3 1000
         X close e m",
    ),
    // Futures, callbacks and notifiers, which one thread of their process serves.
    (
        "awaited",
        "X context default timeout=1000
         A context default timeout=1000
         B context default timeout=1000
         X event e
         X e := event-handle e
         A open-event e $e
         B open-event e $e
         A &future await e 1
         A &call await-callback e 1
         B &both await-notified 30000 e:1 e:2
         X signal e
         join future
         join call
         X &own await e 2
         A signal e
         join both
         join own
         A event gate
         A queue q
         A submit q barrier after-value=gate:1 signal=e
         B &last await-callback e 3
         X &its await-notified 30000 e:3
         A signal gate
         join last
         join its
         A finish q 5000
         A close q gate e
         B close e
         X close e",
    ),
    (
        "physical",
        "X context default timeout=1000
         A context default timeout=1000
         B context default timeout=1000
         X physical p 2097152
         X p := physical-handle p
         X reserve r 2097152
         X map r 0 p 0 2097152 read-write
         X range-write r 0 1 4096
         A open-physical p $p
         A reserve r 2097152
         A map r 0 p 0 2097152 read-write
         A range-check r 0 ? 4096
         X q := physical-handle p read-only=yes
         B open-physical p $q read-only=yes
         B reserve r 2097152
         B map r 0 p 0 2097152 read-only
         B range-check r 0 ? 4096
         X unmap r 0 2097152
         X close r p
         A range-check r 0 ? 4096
         A unmap r 0 2097152
         A close r p
         B range-check r 0 ? 4096
         B unmap r 0 2097152
         B close r p",
    ),
    (
        "many",
        "X context default timeout=1000
         Y context default timeout=1000
         A context default timeout=1000
         X event e
         Y event f
         A event g
         X e := event-handle e
         Y f := event-handle f
         A g := event-handle g
         A open-event e $e
         A open-event f $f
         X open-event g $g
         Y open-event g $g
         X event gate
         X queue q
         X submit q barrier after-value=gate:1 signal=e
         Y event gate
         Y queue q
         Y submit q barrier after-value=gate:1 signal=f
         A &any wait-any 30000 e f
         A &all wait-all 30000 e f
         X &g wait-value g 1 30000
         Y &g2 wait-value g 2 30000
         Y signal gate
         join any
         X signal gate
         join all
         A signal g
         join g
         A signal g 8
         join g2
         X signal g
         Y wait-value g 10 1000
         A close e f g
         X close e g q gate
         Y close f g q gate",
    ),
];
