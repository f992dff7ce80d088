"""What may go wrong around a run, what comes of it, and the tests that try it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A fault, its outcome, and the tests by their names below ``tests/``."""

    name: str
    outcome: str
    tried_by: tuple[str, ...]


FAULTS = [
    Fault(
        "a process is killed (`kill -9`) at a random instant",
        "the run goes on; nothing that happened is missing from the ledger, and each kill costs at most one lease of "
        "64 steps",
        (
            "assurance/test_run_kills.py::test_twenty_kills_at_random_never_hide_a_step",
            "assurance/test_run_kills.py::test_two_hundred_kills_at_random_never_hide_a_step",
            "cli/test_train_resume.py::test_killed_at_two_hundred_random_instants",
        ),
    ),
    Fault(
        "a process is killed at any line of the ledger's code, within any write, or where anything is drawn or written",
        "as above",
        (
            "accounting/test_ledger_kills.py::test_a_kill_at_any_line_of_the_ledger_never_hides_a_call",
            "accounting/test_ledger_kills.py::test_a_kill_within_any_write_leaves_what_can_be_mended",
            "assurance/test_ledger_shortening.py::test_a_kill_at_any_line_never_hides_a_step",
            "cli/test_train_resume.py::test_killed_at_every_named_point",
        ),
    ),
    Fault(
        "the disk is full, or fails at any system call",
        "no step without its reservation on the disk; what lies there can be gone on with",
        (
            "assurance/test_run_faults.py::"
            "test_a_disk_that_fails_at_any_call_leaves_what_is_paid_for_and_can_be_gone_on_with",
            "accounting/test_ledger_kills.py::test_a_disk_that_fills_up_within_a_line_never_hides_a_call",
            "run/test_checkpoint_file.py::test_a_write_that_fails_anywhere_leaves_the_older_checkpoint",
            "cli/test_train.py::test_a_disk_too_full_to_save_the_run_stops_it_before_the_first_step",
            "cli/test_train.py::test_a_disk_too_full_for_the_report_leaves_the_older_run_and_what_can_be_gone_on_with",
        ),
    ),
    Fault(
        "the folder cannot be written",
        "an error with the path, before the first step",
        ("assurance/test_run_faults.py::test_a_folder_that_cannot_be_written_stops_a_run_before_its_first_step",),
    ),
    Fault(
        "a flipped bit, a cut or a byte too many in the ledger",
        "refused with the line; a last line that a crash has cut is mended on request, and nothing else",
        (
            "accounting/test_ledger.py::test_a_flipped_bit_is_refused_with_its_line",
            "accounting/test_ledger.py::test_a_line_cut_at_any_byte_is_refused_with_its_number_and_the_way_out",
            "accounting/test_ledger.py::test_repair_refuses_what_no_crash_leaves",
        ),
    ),
    Fault(
        "a flipped bit, a cut or a byte too many in a checkpoint",
        "refused; model, optimizer and files stay as they were",
        (
            "assurance/test_run_faults.py::test_a_damaged_file_is_refused_and_nothing_is_touched",
            "run/test_checkpoint_file.py::test_a_byte_that_changed_is_refused",
            "run/test_checkpoint_file.py::test_a_file_that_was_cut_or_grew_is_refused",
        ),
    ),
    Fault(
        "a checkpoint of another model, optimizer or rule; other records",
        "refused with the first differences",
        (
            "run/test_resume.py::test_another_model_or_optimizer_or_bound_is_refused",
            "run/test_resume.py::test_other_records_are_refused",
        ),
    ),
    Fault(
        "an older copy of the ledger, or that of another run, in its place",
        "refused: the checkpoint knows a line that it lacks",
        (
            "run/test_resume.py::test_a_ledger_that_was_put_back_is_refused",
            "run/test_resume.py::test_another_runs_ledger_is_refused",
        ),
    ),
    Fault(
        "two processes on one run folder, or on one ledger",
        "the second is refused until the first has ended",
        (
            "cli/test_train_resume.py::test_a_run_that_still_goes_on_is_left_alone",
            "run/test_resume.py::test_two_runs_at_once_are_refused",
            "accounting/test_ledger_lock.py::"
            "test_a_second_process_is_refused_until_the_first_is_dead_and_reads_without_a_lock",
        ),
    ),
    Fault(
        "two runs from copies of one checkpoint",
        "they share the steps that are left",
        (
            "assurance/test_run_faults.py::test_a_copied_folder_cannot_spend_the_same_steps_again_in_one_ledger",
            "run/test_resume.py::test_two_runs_from_one_checkpoint_add_up",
        ),
    ),
    Fault(
        "a process is forked",
        "the copy can neither draw noise nor spend",
        (
            "core/test_keys.py::test_forked_process_may_not_use_the_key",
            "accounting/test_ledger_lock.py::test_a_forked_process_cannot_write_and_takes_no_lock_along",
        ),
    ),
    Fault(
        "a record with NaN, infinity or 1e30",
        "the run and its weights are those without it, or as with any other record",
        (
            "assurance/test_neighbour_replay.py::test_a_record_that_is_no_good_changes_nothing_at_all",
            "assurance/test_run_faults.py::test_no_record_stops_a_run_or_spoils_its_weights",
            "run/test_private_run.py::test_record_that_is_not_a_number_changes_nothing_at_all",
            "clipping/test_engines.py::test_huge_example_stays_within_the_bound",
        ),
    ),
    Fault(
        "empty batches (10,000 in a row), or no records at all",
        "steps of noise alone, written down like others",
        (
            "assurance/test_run_faults.py::test_empty_batches_are_steps_like_others",
            "assurance/test_run_faults.py::test_no_records_at_all_are_a_run_like_another",
        ),
    ),
    Fault(
        "memory runs out in a piece of a batch",
        "the same examples come again in halves, and the sum is the same; one example that does not fit is an error",
        (
            "run/test_microbatches.py::test_mechanism_is_that_of_the_whole_batch",
            "run/test_microbatches.py::test_memory_that_runs_out_halves_the_size_for_good",
            "run/test_microbatches.py::test_one_example_that_does_not_fit_is_the_users_error",
        ),
    ),
    Fault(
        "SIGTERM; Ctrl-C",
        "the step at hand ends and the run is put off; a second Ctrl-C ends at once, and the last checkpoint goes on",
        (
            "cli/test_train_resume.py::test_a_signal_saves_the_run_at_the_step_at_hand_and_loses_nothing",
            "cli/test_train_resume.py::test_a_second_ctrl_c_ends_at_once_and_the_last_checkpoint_goes_on",
        ),
    ),
    Fault(
        "the clock goes back",
        "nothing depends on it",
        ("assurance/test_run_faults.py::test_a_clock_that_goes_back_changes_nothing",),
    ),
    Fault(
        "a pickle by another name, or a header that declares more than there is",
        "refused, and nothing is run or allocated",
        (
            "run/test_checkpoint_file.py::test_a_pickle_by_another_name_is_never_loaded",
            "run/test_checkpoint_file.py::test_json_that_would_fill_the_memory_or_the_stack_is_refused",
            "data/test_own_files.py::test_nothing_is_unpickled",
            "data/test_own_files.py::test_a_huge_declared_array_is_refused",
            "data/test_built_in_images.py::test_a_huge_declared_size_takes_no_memory",
        ),
    ),
]
