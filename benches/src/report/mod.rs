//! The table of all rows, as Markdown and as JSON.

pub(crate) mod machine;
pub(crate) mod record;
pub(crate) mod row;
