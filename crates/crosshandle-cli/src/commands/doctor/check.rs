//! The result of one of `doctor`'s checks.

use serde::Serialize;

/// Severity of a check's result.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Everything that the check covers works.
    Ok,
    /// Sharing works, but could be faster, or has a limitation that users should know.
    Note,
    /// Sharing does not work, or works only partly.
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

/// The result of a check, with the check's name and advice.
#[derive(Serialize, Debug)]
pub(super) struct Check {
    pub(super) check: String,
    pub(super) level: Level,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Check {
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
