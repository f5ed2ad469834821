//! The list of cases, and functions that find and run them.

use crate::device_code::DeviceCode;
use crate::failure::Verdict;
use crate::harness::{Devices, Harness};
use crate::kernels::Kernels;
use crosshandle::device::Capabilities;

/// One rule that every backend must keep.
#[derive(Clone, Copy)]
pub struct Case {
    /// The name, in the form `topic::rule`.
    pub name: &'static str,
    body: fn(&Harness) -> Verdict,
}

/// The result of a case that did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The rule holds. The text contains measurements, if any.
    Passed(String),
    /// The device lacks a capability, which the text names.
    Skipped(&'static str),
    /// The machine refused a precondition of the test, which the text names.
    Unavailable(String),
}

/// The result of a case that passed without measurements.
pub(crate) const PASSED: Verdict = Ok(Outcome::Passed(String::new()));

/// Calls a macro with every case: `topic { rule… }…`.
#[macro_export]
macro_rules! for_each_case {
    ($callback:ident) => {
        $callback! {
            memory {
                both_sides_write
                every_kind_is_shared
                alignment_is_kept
                handles_start_anywhere_inside
                buffers_hold_elements
                opens_close_independently
                rounds_of_get_open_close
                opens_in_its_own_process
                many_open_at_once
                all_sizes_up_to_a_gibibyte
                without_pooling_allocations_are_apart
                bad_arguments_are_refused
            }
            access {
                read_only_is_enforced
                read_only_mapping_cannot_be_written
                typed_and_atomic_views
            }
            memory_lifetime {
                importers_keep_what_was_freed
                importers_keep_what_ended_contexts_shared
                blocks_return_when_closed
                exported_memory_is_recycled
                handles_outlive_nothing
                killed_importers_hold_nothing
                importers_outlive_the_exporter
                rounds_leave_nothing_behind
                contexts_leave_nothing_behind
                trim_gives_memory_back
                queues_hold_up_no_memory
            }
            physical {
                mapped_in_both
                parts_are_mapped
                lives_while_anyone_has_it
                mappings_are_exact
                access_is_kept
                access_is_taken_and_given
                exports_are_taken_back
                ranges_grow_where_there_is_room
                rounds_leave_nothing_behind
            }
            files {
                memory_goes_to_files_and_back
                what_does_not_fit_is_refused
            }
            pieces {
                mappings_side_by_side_have_one_handle
                peers_export_them
                holes_are_refused
                handles_mean_what_was_mapped_then
                read_only_is_enforced
                importers_map_them_once
                a_thousand_fit_few_descriptors
                killed_exporters_stop_no_importer
                false_pieces_are_refused
                silent_exporters_cost_the_timeout
                askers_must_read_the_answers
                exporters_without_room_are_asked_again
                what_is_under_way_is_bounded
            }
            pools {
                their_memory_is_shared
                they_share_no_page
                their_books_are_true
                their_limits_hold
                they_keep_what_they_may
            }
            events {
                fresh_ones_are_waited_for
                commands_wait_for_the_first_signal
                what_was_submitted_can_be_waited_for
                signals_cross_in_both_directions
                many_signal_and_many_wait
                a_signal_wakes_sleepers_elsewhere
                low_power_waits
                timeouts_and_tries
                wait_all_and_any
                profiling_excludes_sharing
                opened_events_make_no_handles
                clones_keep_it_open
                stale_handles_of_reused_slots
                every_device_opens_them
            }
            awaited {
                a_signal_wakes_futures_elsewhere
                queues_signal_what_is_awaited
                several_values_of_one_event
                failed_commands_fail_futures
                functions_are_called_once
                a_notifier_over_many_events_of_a_peer
                a_stream_of_a_peers_signals
                isolated_events
                many_isolated_events
                cancelled_while_a_peer_signals
                waits_for_many_events_of_a_peer
                nothing_is_left_behind
                without_io_uring
                without_futexes_of_many
            }
            awaited_deaths {
                everything_awaited_fails
                many_events_of_a_dead_peer
                one_of_many_submitters_dies
                streams_end_with_the_exporter
            }
            timeline {
                values_complete_in_leaps
                values_only_grow
                signals_finish_in_any_order
                queues_wait_for_future_values
                relay
            }
            queues {
                copies_cross
                copies_between_all_kinds
                overlapping_copies
                fills_with_any_pattern
                keeps_order
                takes_any_number
                free_order_overtakes
                halves_of_a_barrier
                waits_across_queues_and_processes
                errors_reach_events
                finish_tells_errors_once
                commands_outlive_what_they_use
            }
            rectangles {
                copies_cross
                copies_rows
                fills_rows
                bad_ones_are_refused
            }
            kernels {
                processes_compute_in_turns
                kernels_write_opened_memory
                launches_outlive_what_they_use
                faults_stay_in_their_process
                programs_come_and_go
            }
            graphs {
                processes_compute_in_turns
                kernels_compute_in_turns
                updates_change_later_runs
                runs_outlive_what_they_use
                deaths_hold_up_no_run
                many_runs_are_queued
                nodes_do_what_commands_do
                dependencies_are_kept
                what_is_wrong_is_refused
                empty_graphs_wait_and_signal
                graphs_come_and_go
            }
            channel {
                items_cross_in_both_directions
                queues_publish_and_release
                leaving_members_wait_for_their_queues
                no_slot_is_reused_while_a_queue_writes_it
                consumers_wait_for_their_own_queues
                deaths_cost_no_slot
                broadcasts_reach_every_consumer
                kills_after_any_instruction_cost_nothing
            }
            graph_events {
                runs_alternate_inside
                runs_mix_with_other_signals
                replays_are_neither_stale_nor_lost
                functions_run_each_time
                deaths_hold_up_no_node
                they_are_nested_and_updated
                cursors_take_the_next_signals
            }
            nested_graphs {
                they_keep_their_place
                they_stay_as_they_were
            }
            commands {
                what_they_keep_may_use_their_queue
                refused_ones_let_nothing_pass
                they_keep_their_event
            }
            queue_events {
                many_signals_are_unfinished
                queues_signal_in_turns
                sleepers_learn_of_queues
                free_order_untangles
                any_number_waits
                orders_wait_for_each_other
                functions_may_use_the_device
                failures_go_on
                commands_have_times
                times_may_be_switched
            }
            device_signals {
                channels_pass_items
                kernels_take_turns
                hosts_and_kernels_signal_each_other
                writes_are_visible_after_waits
                streams_and_kernels_signal_each_other
                deaths_end_waits
                deadlines_and_aborts_end_waits
                failures_are_told
                other_signallers_are_refused
            }
            faults {
                exporter_killed_before_open
                exporter_killed_during_open
                exporter_killed_after_open
                death_fails_unfinished_signals
                polling_learns_of_deaths
                newcomers_inherit_nothing
                queues_go_on_after_a_death
                dead_sleepers_disturb_nobody
                future_values_end_with_the_exporter
                second_death_after_the_exporters
            }
            deaths {
                every_waiter_is_told
            }
            deserted {
                makers_learn_that_the_last_process_died
                other_processes_keep_waits_going
                closing_ends_no_wait
                a_new_handle_announces_a_process
                the_last_importer_learns_it
                submitted_signals_are_unaffected
            }
            stopped {
                costs_no_more_than_the_timeout
                keeps_its_importers
            }
            exchange {
                other_users_are_refused
                other_users_can_be_admitted
                directories_are_found
                unusable_directories_are_refused
                dead_sockets_are_swept
                works_without_ptrace
                crosses_pid_namespaces
                connections_are_reused
                death_in_the_middle_of_an_exchange
                any_timeout_will_do
                attachments_come_and_go
            }
            namespaces {
                pid
                ipc
                uts
                net
                mount
                user
                cgroup
                time
                all_at_once
                unmapped_users_are_nobody
            }
            capabilities {
                isolated_events_are_apart
                unpooled_memory_is_apart
                read_only_is_all_that_arrives
                reports_are_for_the_same_user
                guesses_bring_no_descriptor
                exporters_without_proc_say_so
            }
            hostile {
                senseless_requests_are_refused
                reports_are_given_to_the_same_user
                a_key_opens_one_object_alone
                chunks_are_given_few_times
                catalogs_cannot_be_written
                oversized_requests_are_hung_up_on
                scribbles_stay_in_their_arena
                random_requests_do_no_harm
                floods_hold_up_nobody
            }
            diverted_sleepers {
                requeued_sleepers_wake_up
                sleepers_beside_a_lock_wake_up
                uncounted_sleepers_wake_up
                bystanders_sleep_well
            }
            attacked {
                by_idle_connections
                by_idle_connections_of_another_user
                by_connection_floods
                by_garbage
                by_slow_readers
                by_nasty_descriptors
                by_nasty_descriptors_on_older_systems
                by_nasty_importers
                by_nasty_importers_on_older_systems
                by_forged_words
                by_record_locks
                by_requeued_sleepers
                by_priority_locks
            }
            impostor {
                false_exporters_are_seen_through
                false_memory_is_refused
                false_arenas_are_refused
                forgeries_stain_no_original
                anothers_arena_is_refused
            }
            late_exporter {
                nasty_answers_hold_up_nobody
                one_deadline_for_a_whole_open
            }
            handles {
                wrong_places_are_told_apart
                wrong_records_are_stale
                wrong_extents_are_refused
                rights_cannot_be_forged
                segments_cannot_be_confused
                damaged_handles_are_refused
                bundles_cross
                bundles_of_others_are_checked
            }
            limits {
                importer_without_descriptors
                exporter_without_descriptors
                allocations_without_descriptors
                a_hundred_thousand_objects
                twenty_processes
                runs_are_limited
            }
            random {
                two_processes_and_a_model
            }
        }
    };
}

macro_rules! list {
    ($($topic:ident { $($rule:ident)* })*) => {
        &[$($(Case {
            name: concat!(stringify!($topic), "::", stringify!($rule)),
            body: crate::cases::$topic::$rule,
        }),*),*]
    };
}

/// Returns all cases, by topic.
pub fn suite() -> &'static [Case] {
    for_each_case!(list)
}

/// Returns the case with this name.
pub fn find(name: &str) -> Option<&'static Case> {
    suite().iter().find(|case| case.name == name)
}

/// Runs a case on two devices. `peer` is the program of the peers.
///
/// # Errors
/// Fails with a description of the failure.
pub fn run(case: &Case, devices: &Devices, peer: &std::path::Path) -> Verdict {
    let harness = Harness::new(devices, peer)?;
    let topic = case.name.split("::").next().unwrap_or_default();
    if let Some(missing) = missing(topic, &harness) {
        return Ok(Outcome::Skipped(missing));
    }
    (case.body)(&harness)
}

/// Makes many replays of a graph next to other signals, and checks that none is stale or lost. The
/// suite has a case with a few hundred.
///
/// # Errors
/// Fails with a description of the failure.
pub fn run_replays(devices: &Devices, peer: &std::path::Path, replays: u64) -> Verdict {
    let harness = Harness::new(devices, peer)?;
    match missing("graph_events", &harness) {
        Some(missing) => Ok(Outcome::Skipped(missing)),
        None => crate::cases::graph_events::replay(&harness, replays),
    }
}

/// Returns a capability that a topic needs and the devices lack.
fn missing(topic: &str, harness: &Harness) -> Option<&'static str> {
    let both = [harness.device(), harness.peer_device()].map(|device| device.info());
    let lacks = |can: fn(&Capabilities) -> bool| both.iter().any(|info| !can(&info.capabilities));
    let needs_memory = !["events", "awaited", "awaited_deaths", "timeline"].contains(&topic);
    if needs_memory && lacks(|can| can.memory_sharing) {
        return Some("memory_sharing");
    }
    if needs_memory && both[0].backend != both[1].backend {
        return Some("memory_sharing between backends");
    }
    if ["physical", "pieces"].contains(&topic) && lacks(|can| can.physical_memory_sharing) {
        return Some("physical_memory_sharing");
    }
    let devices = [harness.device(), harness.peer_device()];
    if topic == "kernels" && !devices.into_iter().all(Kernels::run_on) {
        return Some("kernels");
    }
    if topic == "device_signals" && !devices.into_iter().all(DeviceCode::runs_on) {
        return Some("device_signals");
    }
    let needs_events = !["memory", "access", "files"].contains(&topic);
    (needs_events && lacks(|can| can.event_sharing)).then_some("event_sharing")
}
