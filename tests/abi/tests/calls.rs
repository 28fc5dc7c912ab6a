//! What single calls answer, asked by a C program that was compiled against the distribution's headers.

use std::process::Command;

use adverb_abi_tests::{Folder, compile, compile_with, install, output_of};

/// Compiles and runs a program, which prints how much it has checked, and expects at least so many checks.
fn run(name: &str, source: &str, device: &str, arguments: &[&str], least: u32) {
    let folder = Folder::new(name);
    let program = compile(&folder, name, source).unwrap_or_else(|error| panic!("{error}"));
    start(&folder, Command::new(program), device, arguments, least);
}

fn start(folder: &Folder, mut command: Command, device: &str, arguments: &[&str], least: u32) {
    command.args(arguments).env("LD_LIBRARY_PATH", install(folder)).env("ADVERB_DEVICE", device);
    let output = output_of(&mut command);
    let checks = output.split_whitespace().next().and_then(|number| number.parse::<u32>().ok());
    assert!(checks.is_some_and(|checks| checks > least), "{output}");
}

#[test]
fn calls_answer_as_the_manual_pages_say() {
    run("calls", include_str!("../calls.c"), "iwarp0", &[], 300);
}

#[test]
fn connections_are_made_and_end_as_the_manual_pages_say() {
    for device in ["iwarp0", "roce0"] {
        run("connections", include_str!("../connections.c"), device, &["127.0.0.1"], 400);
    }
}

#[test]
fn calls_that_succeed_leave_errno_as_it_was() {
    for device in ["iwarp0", "roce0"] {
        run("quiet", include_str!("../quiet.c"), device, &["127.0.0.1"], 50);
    }
}

// IB-CM-62, IB-CM-63, IB-SIDR-8
#[test]
fn infiniband_connects_as_the_manual_pages_say() {
    for arguments in [["127.0.0.1", "239.7.8.9"], ["::1", "ff05::99"]] {
        run("managers", include_str!("../managers.c"), "roce0", &arguments, 200);
    }
}

#[test]
fn infiniband_answers_as_the_manual_pages_say() {
    for address in ["127.0.0.1", "::1"] {
        run("datagrams", include_str!("../datagrams.c"), "roce0", &["roce0", address], 200);
    }
}

#[test]
fn memory_answers_as_the_manual_pages_say() {
    for device in ["iwarp0", "roce0"] {
        run("memory", include_str!("../memory.c"), device, &["127.0.0.1"], 50);
    }
}

#[test]
fn every_mistake_has_a_cause_of_its_own() {
    let folder = Folder::new("causes");
    let program =
        compile(&folder, "causes", include_str!("../causes.c")).unwrap_or_else(|error| panic!("{error}"));
    let log = folder.path().join("log");
    let mut command = Command::new(program);
    command.env("ADVERB_LOG", format!("info:{}", log.display()));
    start(&folder, command, "roce0", &["127.0.0.1"], 200);
    let log = std::fs::read_to_string(log).expect("a log");
    // A local mistake, too, is a line with the request, the bytes, the key and what is wrong with it.
    let expected = [
        ("request 0xabc, a write of 64 bytes at 0x", "cannot be used: there is no key 0x"),
        ("request 0xabc, a write of 64 bytes at 0x", "is gone: its region was deregistered"),
        ("request 0xabc, a write of 64 bytes at 0x", "is of protection domain "),
        (
            "request 0xabc, a write of 64 bytes at 0x",
            "cannot be used: the bytes end 56 bytes past the end of the region of key 0x",
        ),
        ("request 0xabc, a read of 64 bytes at 0x", "permits local reads alone; wanted is LOCAL_WRITE"),
        ("request 0xabc, a write of 64 bytes at 0x", "but not there any more"),
        ("receive 0xabc, of 64 bytes, failed: the 64 bytes at 0x", "but not there any more"),
        ("request 0xabc, a read of 64 bytes at 0x", "but not writable any more"),
        ("request 0xabc, a fetch-and-add of 4 bytes at 0x", "longer than"),
        ("receive 0xabc, of 8192 bytes, failed: ", "the message is refused"),
        ("request 0x8, a bind window", "binding the memory window failed"),
        ("request 0x9, a send of 64 bytes, failed: ", "the peer had no receive ready"),
        ("request 0x9, a send of 64 bytes, failed: ", "the peer did not answer"),
        (
            "refused: the protection domain is in use (",
            "address handles: 4; queues and parent domains that refer to it: 2",
        ),
    ];
    for (beginning, what) in expected {
        let is_it = |line: &str| line.contains(beginning) && line.contains(what);
        assert_eq!(log.lines().filter(|line| is_it(line)).count(), 1, "{beginning}, {what}: {log}");
    }
}

#[test]
fn a_request_that_is_not_taken_is_explained() {
    let folder = Folder::new("posts");
    let program =
        compile(&folder, "posts", include_str!("../posts.c")).unwrap_or_else(|error| panic!("{error}"));
    let log = folder.path().join("log");
    let mut command = Command::new(program);
    command.env("ADVERB_LOG", format!("info:{}", log.display()));
    start(&folder, command, "roce0", &["127.0.0.1"], 50);
    let log = std::fs::read_to_string(log).expect("a log");
    let expected = [
        "receive 0x401 is not taken: the queue pair is in RESET; receives are posted in INIT, RTR, RTS, SQD, SQE, ERROR",
        "request 0x301 (send) is not taken: the queue pair is in INIT; sends are posted in RTS, SQD, SQE, ERROR",
        "request 0x302 (send) is not taken: the queue pair is in INIT; ",
        "receive 0x402 is not taken: it has 3 scatter/gather elements; the queue pair has max_recv_sge 2",
        "receive 0x403 is not taken: num_sge is -2",
        "receive 0x404 is not taken: the queue pair has its receives from elsewhere: a shared receive queue",
        "receive 0x405 is not taken: it has 3 scatter/gather elements; the shared receive queue has max_sge 2",
        "request 0x101 (send) is not taken: it has 3 scatter/gather elements; the queue pair has max_send_sge 2",
        "request 0x102 (send) is not taken: it has 40 bytes of inline data; the queue pair has max_inline_data 32",
        "request 0x103 (no operation) is not taken: its opcode is 99, and none has that number",
        "request 0x104 (send) is not taken: num_sge is -1",
        "request 0x105 (write) is not taken: num_sge is 1, and sg_list is NULL",
        "request 0x106 (read) is not taken: inline data is for sends and writes",
        "request 0x108 (bind window) is not taken: the window, or its region, is not one that this operation binds",
        "request 0x201 (send) is not taken: it has 33 bytes of inline data; the queue pair has max_inline_data 32",
        "request 0x202 (read) is not taken: it has 3 scatter/gather elements; the queue pair has max_send_sge 2",
        "request 0x0 (send) is not taken: no request was begun",
        "request 0x204 (send) is not taken: its address handle is NULL",
        "request 0x107 (write) is not taken: a UD queue pair of this device, or its peer, has no such operation",
        "request 0x303 (send) is not taken: its address handle is NULL",
    ];
    let lines: Vec<_> = log.lines().filter(|line| line.contains(" is not taken: ")).collect();
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{line} is not {expected}");
    }
    assert_eq!(lines.len(), expected.len(), "{log}");
}

#[test]
fn another_process_imports_as_the_manual_pages_say() {
    for device in ["iwarp0", "roce0"] {
        run("imports", include_str!("../imports.c"), device, &["127.0.0.1"], 50);
    }
}

#[test]
fn another_user_imports_nothing() {
    let folder = Folder::new("imports-stranger");
    let program =
        compile(&folder, "imports", include_str!("../imports.c")).unwrap_or_else(|error| panic!("{error}"));
    let own = std::fs::metadata("/proc/self").expect("/proc is mounted");
    let command = if std::os::unix::fs::MetadataExt::uid(&own) == 0 {
        Command::new(program)
    } else {
        // Two users, with the IDs that ours has been given.
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--map-auto"]).arg(program);
        command
    };
    start(&folder, command, "roce0", &["127.0.0.1", "stranger"], 10);
}

#[test]
fn nobody_imports_where_memory_is_not_shared() {
    for way in ["strict", "off"] {
        let folder = Folder::new(&format!("imports-{way}"));
        let source = include_str!("../imports.c");
        let program = compile(&folder, "imports", source).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(program);
        command.env("ADVERB_LOCAL", way);
        start(&folder, command, "roce0", &["127.0.0.1"], 5);
    }
}

#[test]
fn extended_connections_answer_as_the_manual_pages_say() {
    for address in ["127.0.0.1", "::1"] {
        run("extended", include_str!("../extended.c"), "roce0", &["roce0", address], 200);
    }
}

#[test]
fn stream_sockets_answer_as_the_manual_pages_say() {
    // They wait for most of their time.
    std::thread::scope(|all| {
        for device in ["iwarp0", "roce0"] {
            for (family, address) in [("ipv4", "127.0.0.1"), ("ipv6", "::1")] {
                let name = format!("sockets-{device}-{family}");
                all.spawn(move || run(&name, include_str!("../sockets.c"), device, &[address], 300));
            }
        }
    });
}

// PRACTICE-FAULT-1, PRACTICE-FAULT-2
#[test]
fn freed_memory_is_an_error_whatever_a_thread_does_with_signals() {
    for local in ["auto", "strict", "off"] {
        let folder = Folder::new(&format!("faults-{local}"));
        let source = include_str!("../faults.c");
        let program = compile(&folder, "faults", source).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(program);
        command.env("ADVERB_LOCAL", local);
        start(&folder, command, "roce0", &["127.0.0.1"], 500);
    }
}

/// How often contexts are opened and closed: before each change, or with this variable, as in the night.
fn cycles(before_each_change: &'static str, in_the_night: &'static str) -> &'static str {
    if std::env::var_os("ADVERB_TEST_LONG").is_some() { in_the_night } else { before_each_change }
}

#[test]
fn a_context_is_closed_at_once_and_leaves_no_descriptor() {
    // More often than the program has descriptors.
    run("closing", include_str!("../closing.c"), "roce0", &[cycles("140", "300")], 1400);
}

#[test]
fn a_context_that_is_closed_at_once_leaves_no_memory() {
    let folder = Folder::new("closing-leaks");
    let source = include_str!("../closing.c");
    let program = compile_with(&folder, "closing", source, &["-g", "-fsanitize=address"]);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    start(&folder, Command::new(program), "roce0", &[cycles("25", "40")], 250);
}

/// In a network namespace of its own, where nobody else sends and the program may do everything.
#[test]
fn raw_packets_go_where_the_rules_say() {
    let folder = Folder::new("raw");
    let program = compile(&folder, "raw", include_str!("../raw.c")).unwrap_or_else(|error| panic!("{error}"));
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(program);
    start(&folder, command, "roce0", &["roce0"], 100);
}
