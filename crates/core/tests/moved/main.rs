//! Pages that are moved for peers of the same host behave as ordinary private memory does.
//!
//! Who may be running decides how pages are moved, if at all; so each case is a process of its own, which has
//! one thread unless it starts others. What a case finds missing in the system counts as failed. Where a case
//! says so, it is right for it to be refused: the program's memory must be as it was then.

mod after;
mod alone;
mod compared;
mod cut;
mod fork;
mod own;
mod pins;
mod refused;
mod support;
mod threads;
mod told;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// A case, and what it is to do without (`ADVERB_WITHOUT`).
type Case = (&'static str, fn(), &'static [&'static str]);

const EVERY_WAY: &[&str] = &["", "procmap-query"];
const AS_IT_IS: &[&str] = &[""];

const CASES: &[Case] = &[
    ("a_peer_reads_and_writes_the_pages_but_not_the_edges", alone::peer, EVERY_WAY),
    ("a_handler_of_sigalrm_that_writes_loses_nothing", alone::handler, EVERY_WAY),
    ("untouched_memory_stays_untouched", alone::sparse, EVERY_WAY),
    ("regions_of_the_same_bytes_share_their_pages", alone::same_bytes, EVERY_WAY),
    ("a_changed_region_has_the_same_pages", alone::changed, EVERY_WAY),
    ("a_region_over_several_mappings_is_shared", alone::side_by_side, EVERY_WAY),
    ("nothing_is_moved_beside_threads_that_store", threads::stores, AS_IT_IS),
    ("a_second_thread_is_a_refusal_until_it_ends", threads::second, AS_IT_IS),
    ("children_of_a_process_with_threads_have_what_was_there", threads::forks, AS_IT_IS),
    ("a_futex_that_is_not_private_wakes_who_waits", threads::futex, AS_IT_IS),
    ("a_child_that_writes_writes_its_own", fork::child_writes, EVERY_WAY),
    ("a_parent_that_writes_does_not_write_the_childs", fork::parent_writes, EVERY_WAY),
    ("a_child_may_end_and_make_regions", fork::regions, EVERY_WAY),
    ("a_child_that_shares_memory_stores_to_moved_pages", fork::spawns, AS_IT_IS),
    ("a_child_without_handlers_faults", fork::raw, AS_IT_IS),
    ("a_fork_on_a_shared_stack_ends_the_child_alone", fork::on_shared_stack, AS_IT_IS),
    ("deregistered_pages_stay_for_the_next_registration", after::stays, EVERY_WAY),
    ("dropped_pages_are_zeros_registered_or_not", after::dropped, EVERY_WAY),
    ("pages_dropped_without_a_free_descriptor_are_zeros", after::dropped_without_descriptors, AS_IT_IS),
    ("advice_that_is_refused_drops_nothing", after::refused_advice, AS_IT_IS),
    ("threads_that_drop_pages_find_zeros_and_lose_nothing", after::dropped_by_threads, AS_IT_IS),
    ("memory_freed_after_deregistration_is_allocated_as_ever", after::freed, EVERY_WAY),
    ("an_allocator_that_drops_pages_gives_zeros", after::jemalloc, AS_IT_IS),
    ("another_allocator_that_drops_pages_gives_zeros", after::mimalloc, AS_IT_IS),
    ("memory_in_the_place_of_a_region_stays", after::replaced, EVERY_WAY),
    ("a_region_that_its_program_moves_and_cuts_is_as_any_memory", after::relocated, EVERY_WAY),
    ("pages_that_change_places_are_dropped_where_they_are", after::exchanged, AS_IT_IS),
    ("shared_memory_behaves_as_any_memory_whatever_its_program_does", compared::anything, EVERY_WAY),
    ("more_pieces_than_are_kept_in_mind_lose_nothing", cut::pieces, EVERY_WAY),
    ("a_lengthened_part_is_guarded_when_the_rest_is_gone", cut::grown, EVERY_WAY),
    ("a_lengthened_mapping_shows_pages_moved_from_behind_it", cut::aliased, AS_IT_IS),
    ("pages_moved_away_leave_an_empty_place", cut::emptied, EVERY_WAY),
    ("a_segment_in_the_place_of_a_region_is_not_taken_for_it", cut::replaced_by_segment, AS_IT_IS),
    ("pages_are_dropped_beside_hundreds_of_threads", cut::crowd, AS_IT_IS),
    ("memory_that_the_guard_works_with_is_refused", cut::engines_own, AS_IT_IS),
    ("a_kernel_that_hides_where_threads_sleep_is_a_refusal", cut::blind, &["wchan"]),
    ("memory_is_charged_once_and_given_back", after::charged_once, AS_IT_IS),
    ("neither_mappings_nor_work_grow_with_buffers_that_are_gone", after::many, EVERY_WAY),
    ("fixed_buffers_made_after_sharing_stay_the_programs", pins::later, AS_IT_IS),
    ("pages_dropped_after_the_end_beside_a_ring_or_a_sleeper_are_zeros", pins::ended, EVERY_WAY),
    ("io_uring_is_a_refusal", pins::ring, AS_IT_IS),
    ("a_ring_without_mapping_and_descriptor_is_a_refusal", pins::hidden_ring, AS_IT_IS),
    ("asynchronous_requests_are_a_refusal", pins::asynchronous, AS_IT_IS),
    ("pages_that_cannot_be_taken_are_brought_back", pins::half_way, AS_IT_IS),
    ("devices_are_a_refusal", pins::device, AS_IT_IS),
    ("memory_of_other_kinds_is_refused", refused::kinds, EVERY_WAY),
    ("memory_with_properties_of_its_own_is_refused", refused::flags, AS_IT_IS),
    ("memory_with_a_policy_of_its_own_is_refused", refused::policy, AS_IT_IS),
    ("memory_with_a_protection_key_is_refused", refused::protection_key, AS_IT_IS),
    ("no_more_is_moved_than_a_fork_may_copy", refused::too_much, AS_IT_IS),
    ("a_process_that_is_not_dumpable_is_refused", refused::not_dumpable, AS_IT_IS),
    ("another_process_in_the_same_memory_is_a_refusal", refused::same_memory, AS_IT_IS),
    ("locked_memory_is_refused", refused::locked, EVERY_WAY),
    ("stacks_are_refused", refused::stacks, AS_IT_IS),
    ("a_missing_guard_is_a_refusal", refused::guard, &["userfaultfd"]),
    ("a_missing_descriptor_is_a_refusal", refused::descriptor, &["memfd"]),
    ("descriptors_that_have_run_out_are_a_refusal", refused::exhausted, AS_IT_IS),
    ("memory_of_the_engine_is_mapped_as_it_is", own::mapped, EVERY_WAY),
    ("children_have_copies_of_pages_and_the_same_device_memory", own::children, EVERY_WAY),
    ("a_peer_reaches_nothing_that_was_made_after_the_end", own::ended, AS_IT_IS),
    ("moved_pages_do_not_touch_memory_of_the_engine", own::beside_moved, EVERY_WAY),
    ("memory_of_the_engine_is_ordinary_where_nobody_maps_it", own::without, &["memfd", "mapped-memory"]),
    ("a_fork_copies_no_more_than_it_may", own::much, AS_IT_IS),
    ("memory_of_the_engine_leaves_the_program_its_mappings", own::many, AS_IT_IS),
    ("a_fork_copies_memory_of_the_engine_and_no_view_of_it", own::viewed, EVERY_WAY),
    ("a_fork_without_a_free_descriptor_copies_memory_of_the_engine", own::exhausted, AS_IT_IS),
    ("a_child_without_handlers_takes_nothing_from_its_parent", own::raw, AS_IT_IS),
    ("pages_are_removed_as_those_of_shared_memory", told::removed, EVERY_WAY),
    ("another_userfaultfd_does_not_get_the_pages", told::faults_of_others, AS_IT_IS),
    ("the_pages_count_as_shared_memory_and_have_a_name", told::counted, AS_IT_IS),
    ("advice_about_huge_pages_is_not_kept", told::huge_pages, AS_IT_IS),
    ("a_page_that_was_a_guard_page_has_its_old_bytes", told::guard_pages, EVERY_WAY),
    ("a_second_mapping_of_the_pages_shows_the_same_bytes", told::duplicated, EVERY_WAY),
    (
        "another_process_that_reads_meanwhile_gets_the_bytes_or_an_error",
        told::read_by_another_process,
        AS_IT_IS,
    ),
    ("switched_off_is_a_refusal", refused::off, &["moved-pages"]),
];

/// The ordinary user.
const NOBODY: u32 = 65_534;

/// Bounds what hangs; nothing takes nearly as long.
const LIMIT_MS: i32 = 300_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = &arguments[..]
        && flag == "--case"
    {
        let case = CASES.iter().find(|case| case.0 == name).expect("a case of this name");
        case.1();
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(*filter));
    // Root's processes have rights of which none is needed: each case is an ordinary user's as well.
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let all = || {
        let ways = CASES.iter().flat_map(|case| case.2.iter().map(move |without| (case.0, *without, false)));
        let as_user = CASES.iter().filter(move |case| is_root && case.2.contains(&""));
        ways.chain(as_user.map(|case| (case.0, "", true)))
    };
    let title = |name: &str, without: &str, as_user: bool| match (without, as_user) {
        (_, true) => format!("{name} (as an ordinary user)"),
        ("", false) => name.to_owned(),
        _ => format!("{name} (without {without})"),
    };
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, without, as_user) in all().filter(|(name, ..)| wanted(name)) {
            println!("{}: test", title(name, without, as_user));
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for (name, without, as_user) in all() {
        if !wanted(name) {
            left_out += 1;
            continue;
        }
        let result = run(name, without, as_user);
        println!(
            "test {} ... {}",
            title(name, without, as_user),
            result.as_ref().map_or_else(|_| "FAILED".into(), |()| "ok".to_owned())
        );
        match result {
            Ok(()) => passed += 1,
            Err(said) => {
                failed += 1;
                println!("{said}");
            }
        }
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left_out} filtered out"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one case as a process of its own. What it had to say, if it failed.
fn run(name: &str, without: &str, as_user: bool) -> Result<(), String> {
    // By this name who may not look into the folder finds it, too.
    let mut command = Command::new("/proc/self/exe");
    if as_user {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.args(["--case", name]).env("ADVERB_WITHOUT", without).env_remove("ADVERB_DEVICE");
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a process");
    // SAFETY: a system call with plain numbers; the child has not been waited for.
    let ended = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, child.id(), 0) as i32;
        assert!(fd >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    let mut poll = libc::pollfd { fd: ended.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure.
    let in_time = unsafe { libc::poll(&raw mut poll, 1, LIMIT_MS) } == 1;
    if !in_time {
        child.kill().expect("our own child");
    }
    // What it says fits into the pipe.
    let output = child.wait_with_output().expect("its end");
    match (in_time, output.status.success()) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("not ended after {LIMIT_MS} ms")),
        _ => Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}
