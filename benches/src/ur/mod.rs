//! The Unified Runtime adapter through the stock loader, compared with the library's own calls.

mod calls;
mod loader;

use crate::harness::scenario::Scenario;

/// The Unified Runtime scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[&calls::SCENARIO];
