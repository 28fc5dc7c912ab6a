//! Pages that are moved for peers of the same host behave as ordinary private memory does.
//!
//! Who may be running decides how pages are moved, if at all; so each case is a process of its own, which has one thread unless it starts others.
//! What a case finds missing in the system counts as failed. Where a case says so, it is right for it to be refused: the program's memory must be
//! as it was then.

mod after;
mod alone;
mod fork;
mod refused;
mod support;
mod threads;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};

/// A case, and what it is to do without (`ADVERB_WITHOUT`).
type Case = (&'static str, fn(), &'static [&'static str]);

/// By faults of the kernel if that is permitted; by the only thread, with and without what finds pinned pages.
const EVERY_WAY: &[&str] =
    &["", "userfaultfd-move", "userfaultfd-kernel", "userfaultfd", "userfaultfd,procmap-query"];
/// By the only thread.
const ALONE: &[&str] = &["userfaultfd-kernel", "userfaultfd"];
const AS_IT_IS: &[&str] = &[""];

const CASES: &[Case] = &[
    ("a_peer_reads_and_writes_the_pages_but_not_the_edges", alone::peer, EVERY_WAY),
    ("a_handler_of_sigalrm_that_writes_loses_nothing", alone::handler, EVERY_WAY),
    ("untouched_memory_stays_untouched", alone::sparse, EVERY_WAY),
    ("regions_of_the_same_bytes_share_their_pages", alone::same_bytes, EVERY_WAY),
    ("a_changed_region_has_private_pages", alone::changed, EVERY_WAY),
    ("threads_that_store_during_registration_lose_nothing", threads::stores, EVERY_WAY),
    ("a_second_thread_is_a_refusal_until_it_ends", threads::second, ALONE),
    ("a_process_that_forks_during_registration_has_right_children", threads::forks, EVERY_WAY),
    ("a_child_that_writes_writes_its_own", fork::child_writes, EVERY_WAY),
    ("a_parent_that_writes_does_not_write_the_childs", fork::parent_writes, EVERY_WAY),
    ("a_child_may_end_and_make_regions", fork::regions, EVERY_WAY),
    ("a_child_without_handlers_faults", fork::raw, EVERY_WAY),
    ("a_child_has_what_was_given_back_just_before", fork::early, EVERY_WAY),
    ("deregistered_pages_are_private_again", after::private, EVERY_WAY),
    ("pages_dropped_after_deregistration_are_zeros", after::dropped, EVERY_WAY),
    ("memory_freed_after_deregistration_is_allocated_as_ever", after::freed, EVERY_WAY),
    ("what_took_the_place_of_a_region_stays", after::replaced, EVERY_WAY),
    ("a_region_that_was_moved_by_its_program_is_private_again", after::relocated, EVERY_WAY),
    ("rights_and_locks_of_pages_stay", after::rights, EVERY_WAY),
    ("requests_in_the_kernel_have_time_to_end", after::waits, EVERY_WAY),
    ("memory_of_other_kinds_is_refused", refused::kinds, EVERY_WAY),
    ("locked_memory_is_refused", refused::locked, EVERY_WAY),
    ("stacks_are_refused", refused::stacks, AS_IT_IS),
    ("io_uring_is_a_refusal_without_faults_of_the_kernel", refused::uring, EVERY_WAY),
    ("a_missing_descriptor_is_a_refusal", refused::descriptor, &["memfd"]),
    ("descriptors_that_have_run_out_are_a_refusal", refused::exhausted, AS_IT_IS),
    ("switched_off_is_a_refusal", refused::off, &["moved-pages"]),
];

/// Bounds what hangs; nothing takes nearly as long.
const LIMIT_MS: i32 = 60_000;

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
    let all = || CASES.iter().flat_map(|case| case.2.iter().map(move |without| (case.0, *without)));
    let title = |name: &str, without: &str| {
        if without.is_empty() { name.to_owned() } else { format!("{name} (without {without})") }
    };
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, without) in all().filter(|(name, _)| wanted(name)) {
            println!("{}: test", title(name, without));
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for (name, without) in all() {
        if !wanted(name) {
            left_out += 1;
            continue;
        }
        let result = run(name, without);
        println!(
            "test {} ... {}",
            title(name, without),
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
fn run(name: &str, without: &str) -> Result<(), String> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
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
