//! Parsed requests, and replies to them.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

/// The words of a reply, or an error.
pub(crate) type Reply = Result<Vec<String>, CommandError>;

/// An error that the peer reports to the suite.
pub(crate) struct CommandError {
    /// Name of the error's variant.
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl CommandError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: "Usage".into(),
            message: message.into(),
        }
    }
}

impl From<crosshandle::Error> for CommandError {
    fn from(error: crosshandle::Error) -> Self {
        // The suite treats both variants as timeouts.
        let shown = format!("{error:#?}").replacen("NoAnswer", "TimedOut", 1);
        let end = shown.find(|c: char| !c.is_ascii_alphanumeric());
        Self {
            kind: shown[..end.unwrap_or(shown.len())].to_owned(),
            message: error.to_string(),
        }
    }
}

impl From<crosshandle::handle::HandleError> for CommandError {
    fn from(error: crosshandle::handle::HandleError) -> Self {
        crosshandle::Error::from(error).into()
    }
}

impl From<std::io::Error> for CommandError {
    fn from(error: std::io::Error) -> Self {
        Self {
            kind: "Io".into(),
            message: error.to_string(),
        }
    }
}

/// One request from the suite.
pub(crate) struct Request<'a> {
    pub(crate) command: &'a str,
    words: Vec<&'a str>,
    options: HashMap<&'a str, &'a str>,
}

impl<'a> Request<'a> {
    pub(crate) fn parse(line: &'a str) -> Result<Self, CommandError> {
        let mut all = line.split_whitespace();
        let command = all
            .next()
            .ok_or_else(|| CommandError::usage("no command"))?;
        let (mut words, mut options) = (Vec::new(), HashMap::new());
        for word in all {
            match word.split_once('=') {
                Some((key, value)) => drop(options.insert(key, value)),
                None => words.push(word),
            }
        }
        Ok(Self {
            command,
            words,
            options,
        })
    }

    pub(crate) fn word(&self, index: usize) -> Result<&'a str, CommandError> {
        self.words.get(index).copied().ok_or_else(|| {
            CommandError::usage(format!("{} needs {} words", self.command, index + 1))
        })
    }

    pub(crate) fn words_from(&self, index: usize) -> &[&'a str] {
        self.words.get(index..).unwrap_or_default()
    }

    pub(crate) fn parsed<T: FromStr>(&self, index: usize) -> Result<T, CommandError> {
        read(self.word(index)?)
    }

    pub(crate) fn option(&self, key: &str) -> Option<&'a str> {
        self.options.get(key).copied()
    }

    pub(crate) fn parsed_option<T: FromStr>(&self, key: &str) -> Result<Option<T>, CommandError> {
        self.option(key).map(read).transpose()
    }

    /// Returns the word as a duration in milliseconds.
    pub(crate) fn timeout(&self, index: usize) -> Result<Duration, CommandError> {
        self.parsed(index).map(Duration::from_millis)
    }
}

pub(crate) fn read<T: FromStr>(word: &str) -> Result<T, CommandError> {
    word.parse()
        .map_err(|_| CommandError::usage(format!("{word:?} is not what belongs here")))
}

/// Parses numbers separated by commas.
pub(crate) fn list<const N: usize>(word: &str) -> Result<[usize; N], CommandError> {
    let numbers: Result<Vec<usize>, _> = word.split(',').map(read).collect();
    numbers?
        .try_into()
        .map_err(|_| CommandError::usage(format!("{word:?} are not {N} numbers")))
}

/// Returns a reply without words.
pub(crate) fn done() -> Reply {
    Ok(Vec::new())
}

/// Returns a reply of one word.
pub(crate) fn one(word: impl ToString) -> Reply {
    Ok(vec![word.to_string()])
}
