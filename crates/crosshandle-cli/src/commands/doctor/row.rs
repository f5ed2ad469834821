//! The result of one check.

use serde::Serialize;

/// The severity of a result.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Everything works.
    Ok,
    /// It works, but could work better, or the user should know something.
    Note,
    /// Something does not work.
    Problem,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// A check, what it found, and what to do.
#[derive(Serialize, Debug)]
pub(super) struct Row {
    pub(super) check: String,
    pub(super) level: Level,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Row {
    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            level: Level::Ok,
            found: found.into(),
            advice: None,
        }
    }

    pub(super) fn note(
        check: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Note,
            advice: Some(advice.into()),
            ..Self::ok(check, found)
        }
    }

    pub(super) fn problem(
        check: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Problem,
            ..Self::note(check, found, advice)
        }
    }
}
