use super::*;

fn asker(uid: u32, pid: u32) -> Asker {
    Asker { uid, pid }
}

#[test]
fn a_user_leaves_as_much_as_it_has() {
    let limit = Limit {
        all: 12,
        process: 8,
        full: Full::LeavesAsMuch,
    };
    let mut tally = Tally::default();
    // The first user can take half of the resource. Each later user can take as much as then stays
    // free.
    for (uid, most) in [(1, 6), (2, 3), (3, 1)] {
        for number in 0..most {
            // The number of processes does not matter.
            let program = asker(uid, 10 + number);
            assert_eq!(tally.admits(limit, program, 1, true), Ok(()), "{uid}");
            tally.add(program, 1);
        }
        let program = asker(uid, 99);
        assert_eq!(tally.admits(limit, program, 1, true), Err(Share::User));
    }
    assert_eq!(tally.admits(limit, asker(4, 1), 1, true), Ok(()));
    // With one user, each process is limited. Processes that cannot be distinguished are limited
    // only by the total.
    let tally = Tally::from_iter([asker(1, 1); 8]);
    assert_eq!(
        tally.admits(limit, asker(1, 1), 1, false),
        Err(Share::Process)
    );
    assert_eq!(tally.admits(limit, asker(1, 2), 4, false), Ok(()));
    assert_eq!(tally.admits(limit, asker(1, 2), 5, false), Err(Share::All));
    let tally = Tally::from_iter([asker(1, 0); 11]);
    assert_eq!(tally.admits(limit, asker(1, 0), 1, false), Ok(()));
}

#[test]
fn who_has_most_gives_way_users_first() {
    // One user has many processes, and another one has two.
    let mut all: Vec<_> = (1..=6).map(|pid| asker(7, pid)).collect();
    all.extend([asker(8, 20), asker(8, 21), asker(8, 21)]);
    let tally = Tally::from_iter(all.clone());
    assert_eq!(tally.gives_way_to(asker(8, 20)).map(|of| of.uid), Some(7));
    assert_eq!(tally.gives_way_to(asker(9, 30)).map(|of| of.uid), Some(7));
    // All processes of the user have equal shares.
    assert_eq!(tally.gives_way_to(asker(7, 1)), None);
    all.extend([asker(7, 3), asker(7, 3)]);
    let tally = Tally::from_iter(all);
    assert_eq!(tally.gives_way_to(asker(7, 1)), Some(asker(7, 3)));
    assert_eq!(tally.gives_way_to(asker(7, 3)), None);
    assert_eq!(Tally::default().gives_way_to(asker(1, 1)), None);
}

/// Compares the table in `docs/security.md` with the code.
#[test]
fn the_table_of_limits_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let text = std::fs::read_to_string(path).expect("the page");
    let thousands = |number: usize| {
        let digits = number.to_string();
        let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
        let groups = groups
            .into_iter()
            .map(|group| std::str::from_utf8(group).expect("digits"));
        groups.collect::<Vec<_>>().join(",")
    };
    let amount = |resource: Resource, number: usize| match resource {
        Resource::Bytes => format!("{} MiB", number >> 20),
        _ => thousands(number),
    };
    for resource in Resource::ALL {
        let limit = resource.limit(1024);
        let user = match limit.full {
            Full::MostGivesWay => "all; the largest user gives way",
            Full::LeavesAsMuch => "as much as remains free",
        };
        let row = match resource {
            Resource::Descriptors => format!(
                "| descriptors | the limit of open files less {OTHER_DESCRIPTORS} | {user} | half |"
            ),
            _ => format!(
                "| {} | {} | {user} | {} |",
                resource.name(),
                amount(resource, limit.all),
                amount(resource, limit.process)
            ),
        };
        assert!(
            text.lines().any(|line| line == row),
            "the page lacks: {row}"
        );
    }
}
