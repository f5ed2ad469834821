//! All scenarios of all suites.

use crate::harness::scenario::Scenario;
use crate::{cuda, host, kernels, peers, ur};

static SUITES: &[&[&Scenario]] = &[
    host::SCENARIOS,
    #[cfg(feature = "iceoryx2")]
    crate::channel::SCENARIOS,
    kernels::SCENARIOS,
    cuda::SCENARIOS,
    ur::SCENARIOS,
    peers::SCENARIOS,
];

pub(crate) fn find(name: &str) -> Option<&'static Scenario> {
    let mut all = SUITES.iter().flat_map(|suite| suite.iter().copied());
    all.find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::SUITES;

    #[test]
    fn identifiers_are_unique_and_shell_safe() {
        let (mut names, mut seen) = (HashSet::new(), HashSet::new());
        for scenario in SUITES.iter().flat_map(|suite| suite.iter()) {
            assert!(names.insert(scenario.name), "{} twice", scenario.name);
            for row in scenario.rows {
                assert!(seen.insert(row.id), "{} twice", row.id);
                let safe = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
                assert!(row.id.chars().all(safe), "{}", row.id);
                assert!(
                    row.id.starts_with(scenario.name),
                    "{} in {}",
                    row.id,
                    scenario.name
                );
            }
        }
    }
}
