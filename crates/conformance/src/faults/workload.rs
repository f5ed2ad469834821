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
        let is_line = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let lines = text.lines().filter(is_line);
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
    let texts = include_str!("workloads.txt").split("\n[").skip(1);
    let named = texts.map(|text| text.split_once("]\n").expect("a name and lines"));
    named
        .map(|(name, text)| Workload::parse(name, text))
        .collect()
}
