//! `adverb run` and `adverb env` with real processes: what the program gets, what comes back, what is
//! refused.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nothing here takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A build tree of its own: the command under test and small libraries with the right names.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let tree =
            Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}-{number}", std::process::id())));
        fs::create_dir_all(tree.path("debug")).expect("temporary folder");
        fs::hard_link(env!("CARGO_BIN_EXE_adverb"), tree.adverb()).expect("a second name for the command");
        for name in ["ibverbs", "rdmacm", "adverb_preload", "rspreload"] {
            tree.compile(
                &format!("debug/lib{name}.so"),
                "",
                &["-shared", "-nostdlib", &format!("-Wl,-soname,lib{name}.so.1")],
            );
        }
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn adverb(&self) -> PathBuf {
        self.path("debug/adverb")
    }

    fn run(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(self.adverb());
        command.args(["run", "--"]).arg(program).stdin(Stdio::null());
        command
    }

    fn compile(&self, output: &str, source: &str, options: &[&str]) -> PathBuf {
        let input = self.path(&format!("{}.c", output.replace('/', "-")));
        fs::write(&input, source).expect("source");
        let path = self.path(output);
        let status = Command::new("cc").arg("-o").arg(&path).arg(&input).args(options).status().expect("cc");
        assert!(status.success(), "cc {options:?}");
        path
    }

    /// An executable file. Another process writes it: while this one does, a fork of a parallel test would
    /// keep the file open for writing, and the kernel refuses to execute such a file.
    fn executable(&self, name: &str, contents: &[u8]) -> PathBuf {
        let (draft, path) = (self.path(&format!("{name}.draft")), self.path(name));
        fs::write(&draft, contents).expect("draft");
        let status = Command::new("install").arg("-m755").arg(&draft).arg(&path).status().expect("install");
        assert!(status.success());
        path
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The end of `child`; kills it and fails when it takes too long.
fn wait(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("kill");
            panic!("did not end within {LIMIT:?}");
        }
        std::thread::yield_now();
    }
}

fn finish(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    let status = wait(&mut child);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().expect("piped").read_to_end(&mut stdout).expect("read");
    child.stderr.take().expect("piped").read_to_end(&mut stderr).expect("read");
    Output { status, stdout, stderr }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that the command says `expected` and ends with `status`, without having run anything.
fn refused(command: &mut Command, status: i32, expected: &str) {
    let output = finish(command);
    let message = text(&output.stderr);
    assert!(message.starts_with("adverb: ") && message.contains(expected), "{message}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{message}");
}

/// A program that says what it is and then waits for signals.
struct Running {
    adverb: Child,
    output: BufReader<std::process::ChildStdout>,
    program: i32,
}

impl Running {
    /// Runs `script` in a shell that has printed its process ID.
    fn shell(tree: &Tree, script: &str) -> Self {
        let mut command = tree.run("sh");
        command
            .args(["-c", &format!("{script}\necho $$; while :; do sleep 0.01; done")])
            .stdout(Stdio::piped())
            // A group of its own, whose parent is in the same session: the kernel does not stop what is in an
            // orphaned group.
            .process_group(0);
        // SAFETY: signal(2) may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Whoever runs the tests in the background may ignore signals, and a shell cannot trap what
                // it was born to ignore.
                for signal in
                    [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1, libc::SIGTSTP, libc::SIGCONT]
                {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        let mut adverb = command.spawn().expect("spawn");
        let mut output = BufReader::new(adverb.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the program's first line");
        Self { adverb, output, program: line.trim().parse().expect("a process ID") }
    }

    fn signal(&self, signal: i32) {
        kill(self.adverb.id() as i32, signal);
    }
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: takes no pointers; the process is our child or grandchild.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// The state letter of a process; none when it is gone.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "never happened: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_libraries_are_in_front_in_the_program_and_its_children() {
    let tree = Tree::new();
    let output = finish(
        tree.run("sh")
            .args([
                "-c",
                "grep -c 'debug/lib.*so' /proc/self/maps >&2; echo $LD_LIBRARY_PATH; echo $LD_PRELOAD",
            ])
            .env("LD_LIBRARY_PATH", "/before")
            .env_remove("LD_PRELOAD"),
    );
    let libs = tree.path("debug/adverb-libs");
    let libs = libs.to_str().expect("text");
    assert_eq!(
        text(&output.stdout),
        format!("{libs}:/before\n{libs}/libibverbs.so.1:{libs}/librdmacm.so.1:{libs}/libadverb_preload.so\n"),
    );
    assert!(text(&output.stderr).trim().parse::<u32>().expect("a number") >= 2, "mapped");
    for (options, expected) in [(&[][..], 0), (&["--rsockets"], 1)] {
        let mut command = Command::new(tree.adverb());
        command
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", "echo $LD_PRELOAD"])
            .env_remove("LD_PRELOAD");
        assert_eq!(text(&finish(&mut command).stdout).matches("librspreload.so").count(), expected);
    }
}

#[test]
fn a_library_path_in_the_program_itself_does_not_win() {
    let tree = Tree::new();
    fs::create_dir(tree.path("own")).expect("folder");
    tree.compile(
        "own/libibverbs.so.1",
        "int which(void) { return 1; }",
        &["-shared", "-Wl,-soname,libibverbs.so.1"],
    );
    tree.compile(
        "debug/libibverbs.so",
        "int which(void) { return 2; }",
        &["-shared", "-Wl,-soname,libibverbs.so.1"],
    );
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", tree.path("own").display());
    let library = tree.path("own/libibverbs.so.1");
    let program = tree.compile(
        "program",
        "int which(void); int main(void) { return which(); }",
        &[library.to_str().expect("text"), &rpath],
    );
    assert_eq!(finish(&mut Command::new(&program)).status.code(), Some(1), "without adverb");
    assert_eq!(finish(&mut tree.run(&program)).status.code(), Some(2), "with adverb");
}

#[test]
fn status_arguments_input_and_name_pass_through() {
    let tree = Tree::new();
    for status in [0, 1, 42, 255] {
        let output = finish(tree.run("sh").args(["-c", &format!("exit {status}")]));
        assert_eq!(output.status.code(), Some(status));
    }
    let output = finish(tree.run("printf").args(["%s|", "a b", "--device", "-x", "--", ""]));
    assert_eq!(text(&output.stdout), "a b|--device|-x|--||");
    let mut child = tree.run("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("spawn");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"through").expect("write");
    assert!(wait(&mut child).success());
    let mut through = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut through).expect("read");
    assert_eq!(through, "through");
}

#[test]
fn death_by_signal_is_128_plus_its_number() {
    let tree = Tree::new();
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let status = finish(tree.run("sh").args(["-c", &format!("kill -{signal} $$")])).status;
        assert_eq!((status.code(), status.signal()), (Some(128 + signal), None));
    }
}

#[test]
fn signals_sent_to_us_reach_the_program() {
    let tree = Tree::new();
    for (name, signal) in
        [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("HUP", libc::SIGHUP), ("USR1", libc::SIGUSR1)]
    {
        let mut running = Running::shell(&tree, &format!("trap 'echo got; exit 7' {name}"));
        running.signal(signal);
        assert_eq!(wait(&mut running.adverb).code(), Some(7), "{name}");
        let mut rest = String::new();
        running.output.read_to_string(&mut rest).expect("output");
        assert_eq!(rest, "got\n", "{name}");
    }
    let mut running = Running::shell(&tree, "");
    running.signal(libc::SIGTERM);
    assert_eq!(wait(&mut running.adverb).code(), Some(128 + libc::SIGTERM), "without a handler");
    assert_eq!(state(running.program), None, "no process is left");
}

#[test]
fn the_program_has_the_signal_mask_that_we_were_started_with() {
    let tree = Tree::new();
    let output = finish(tree.run("grep").args(["-E", "SigBlk", "/proc/self/status"]));
    let plain = finish(Command::new("grep").args(["-E", "SigBlk", "/proc/self/status"]).stdin(Stdio::null()));
    assert_eq!(text(&output.stdout), text(&plain.stdout));
}

#[test]
fn a_job_that_is_stopped_stops_and_goes_on_as_one() {
    let tree = Tree::new();
    let mut running = Running::shell(&tree, "trap 'exit 9' TERM");
    let (adverb, program) = (running.adverb.id() as i32, running.program);
    kill(program, libc::SIGTSTP);
    until("both are stopped", || state(adverb) == Some('T') && state(program) == Some('T'));
    kill(program, libc::SIGCONT);
    kill(adverb, libc::SIGCONT);
    running.signal(libc::SIGTERM);
    assert_eq!(wait(&mut running.adverb).code(), Some(9));
}

#[test]
fn the_program_does_not_outlive_us() {
    let tree = Tree::new();
    let mut running = Running::shell(&tree, "trap '' TERM");
    running.signal(libc::SIGKILL);
    assert_eq!(wait(&mut running.adverb).signal(), Some(libc::SIGKILL));
    until("the program is gone", || matches!(state(running.program), None | Some('Z')));
}

#[test]
fn a_file_that_does_not_exist_or_is_no_program_is_refused() {
    let tree = Tree::new();
    refused(&mut tree.run("no-such-program"), 127, "there is no program 'no-such-program' in PATH");
    refused(&mut tree.run("/no/such/file"), 127, "there is no file /no/such/file");
    refused(&mut tree.run(""), 127, "empty");
    refused(&mut tree.run("/"), 126, "is a folder");
    let plain = tree.path("plain");
    fs::write(&plain, "text").expect("file");
    refused(&mut tree.run(&plain), 126, "is not executable");
    let damaged = tree.executable("damaged", b"\x7fELF and no more");
    refused(&mut tree.run(&damaged), 126, "damaged");
}

#[test]
fn an_option_that_does_not_exist_is_no_program() {
    let tree = Tree::new();
    let output = finish(Command::new(tree.adverb()).args(["run", "--devcie", "roce0", "true"]));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("'--devcie'") && message.contains("'--device'"), "{message}");
    // A device named twice has its files once.
    let names = ["run", "--device", "roce0,roce0"];
    let output = finish(Command::new(tree.adverb()).args(names).args(["sh", "-c", "ls $ADVERB_FILES/sys"]));
    assert_eq!(text(&output.stdout), "bus\nclass\ndevices\n", "{}", text(&output.stderr));
    // Behind the program, options are the program's, and behind -- all is.
    let output = finish(Command::new(tree.adverb()).args(["run", "echo", "--device", "-x"]));
    assert_eq!(text(&output.stdout), "--device -x\n");
    refused(&mut tree.run("--no-such-program"), 127, "'--no-such-program'");
}

#[test]
fn programs_that_the_dynamic_linker_keeps_from_us() {
    let tree = Tree::new();
    let main = "int main(void) { return 0; }";
    let musl = tree.compile("musl", main, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    refused(&mut tree.run(&musl), 126, "linked with musl (/lib/ld-musl-x86_64.so.1)");
    let lost = tree.compile("lost", main, &["-Wl,--dynamic-linker=/no/ld.so"]);
    refused(&mut tree.run(&lost), 126, "needs the dynamic linker /no/ld.so");

    let mut bytes = fs::read("/bin/sh").expect("any program");
    bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
    let foreign = tree.executable("foreign", &bytes);
    refused(&mut tree.run(&foreign), 126, "is a program for 64-bit RISC-V");

    for name in ["sudo", "doas", "pkexec"] {
        let command = tree.executable(name, b"#!/bin/sh\n");
        refused(&mut tree.run(&command), 126, &format!("'{name} adverb run -- PROGRAM'"));
    }
}

#[test]
fn a_static_program_starts_others_that_have_devices() {
    let tree = Tree::new();
    let main = "#include <unistd.h>\nint main(int n, char **a) { return n > 1 ? execvp(a[1], a + 1) : 7; }";
    let fixed = tree.compile("static", main, &["-static"]);
    let output = finish(tree.run(&fixed).args(["sh", "-c", "grep -c 'debug/lib.*so' /proc/self/maps"]));
    assert!(text(&output.stdout).trim().parse::<u32>().expect("a number") >= 2, "mapped");
    let warning = text(&output.stderr);
    assert!(
        warning.starts_with("adverb: warning: ") && warning.contains("is statically linked"),
        "{warning}"
    );
    assert_eq!(finish(&mut tree.run(&fixed)).status.code(), Some(7));
    let script = tree.executable("script", format!("#!{} /bin/true\n", fixed.display()).as_bytes());
    let output = finish(&mut tree.run(&script));
    assert!(text(&output.stderr).contains("is statically linked"), "{}", text(&output.stderr));
}

#[test]
fn without_proc_the_command_finds_itself() {
    let tree = Tree::new();
    // A process of its own mount namespace, where nothing is mounted at /proc any more.
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(tree.adverb());
    let output = finish(command.args(["run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"]));
    let libs = tree.path("debug/adverb-libs");
    let shown = text(&output.stdout);
    assert!(shown.starts_with(libs.to_str().expect("text")), "{shown}{}", text(&output.stderr));
}

/// Only root can make a file that is setuid to somebody else; an ordinary user finds such files in the
/// system.
#[test]
fn setuid_programs_are_refused() {
    let tree = Tree::new();
    let program = tree.executable("setuid", &fs::read("/bin/true").expect("any program"));
    // SAFETY: takes no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let program = if root {
        std::os::unix::fs::chown(&program, Some(12_345), None).expect("root may");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
        program
    } else {
        let candidates = ["su", "mount", "passwd", "newgrp"].map(|name| Path::new("/usr/bin").join(name));
        let found = candidates
            .into_iter()
            .find(|path| fs::metadata(path).is_ok_and(|file| file.mode() & 0o4000 != 0));
        found.expect("Debian and Ubuntu have at least one of these setuid programs")
    };
    refused(&mut tree.run(&program), 126, "is setuid");
    // Where nothing can be gained, nothing stands in the way.
    let output = finish(
        Command::new("setpriv")
            .args(["--no-new-privs"])
            .arg(tree.adverb())
            .args(["run", "--"])
            .arg(&program)
            .arg("--version"),
    );
    assert!(!text(&output.stderr).contains("is setuid"), "{}", text(&output.stderr));
}

#[test]
fn scripts_are_judged_by_their_interpreter() {
    let tree = Tree::new();
    let good = tree.executable("good", b"#!/bin/sh\necho \"$1\"\n");
    assert_eq!(text(&finish(tree.run(&good).arg("hello")).stdout), "hello\n");
    let bare = tree.executable("bare", b"echo \"$0 $1\"\n");
    assert_eq!(text(&finish(tree.run(&bare).arg("x")).stdout), format!("{} x\n", bare.display()));
    let through = tree.executable("through", b"#!/usr/bin/env -S sh -e\necho yes\n");
    assert_eq!(text(&finish(&mut tree.run(&through)).stdout), "yes\n");

    let musl = ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"];
    let musl = tree.compile("musl", "int main(void) { return 0; }", &musl);
    let bad = tree.executable("bad", format!("#!{}\n", musl.display()).as_bytes());
    refused(&mut tree.run(&bad), 126, "is a script: ");
    let lost = tree.executable("lost", b"#!/no/interpreter\n");
    refused(&mut tree.run(&lost), 126, "there is no interpreter /no/interpreter");
    let itself = tree.path("itself");
    tree.executable("itself", format!("#!{}\n", itself.display()).as_bytes());
    refused(&mut tree.run(&itself), 126, "too many interpreters");
}

#[test]
fn the_device_reaches_the_program_and_an_unknown_one_does_not() {
    let tree = Tree::new();
    let show = ["sh", "-c", "echo \"${ADVERB_DEVICE-unset}\""];
    let run = |options: &[&str]| {
        let mut command = Command::new(tree.adverb());
        command.arg("run").args(options).arg("--").args(show).env_remove("ADVERB_DEVICE");
        command
    };
    assert_eq!(text(&finish(&mut run(&["--device", "iwarp0"])).stdout), "iwarp0\n");
    assert_eq!(text(&finish(&mut run(&[])).stdout), "unset\n");
    assert_eq!(text(&finish(run(&[]).env("ADVERB_DEVICE", "iwarp0")).stdout), "iwarp0\n");
    let output = finish(&mut run(&["--device", "mlx5_0"]));
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("there is no device 'mlx5_0'"), "{}", text(&output.stderr));
}

#[test]
fn a_list_or_a_profile_that_is_wrong_is_refused_before_the_program_starts() {
    let tree = Tree::new();
    let run = |options: &[&str]| {
        let mut command = Command::new(tree.adverb());
        command.arg("run").args(options).args(["--", "echo", "started"]).stdin(Stdio::null());
        command
    };
    for (list, expected) in [
        ("mlx5_[0-3]@numa=x", "mlx5_[0-3]: numa=x: wanted is the number of a NUMA node, 0 to 1023"),
        ("mlx5_[0-3]@pci=1000:17:00.0", "mlx5_1: pci=1000:17:00.0: there are two devices at 1000:17:00.0"),
        ("a@rate=40 b", "there is no device 'b'; devices: roce0, iwarp0"),
    ] {
        let output = finish(&mut run(&["--devices", list]));
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(2), ""), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let profile = tree.path("profile");
    fs::write(&profile, "# ours\na@rate=40 # slow\nb@rate=4\n").expect("a file");
    let name = profile.to_str().expect("text");
    let output = finish(&mut run(&["--profile", name]));
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(2), ""), "{message}");
    assert!(
        message.contains(&format!("{name}:3: b: rate=4: wanted is a number of Gb/s: 10, 25, 40")),
        "{message}"
    );
    let endless = finish(&mut run(&["--profile", "/dev/zero"]));
    assert_eq!(endless.status.code(), Some(2), "{endless:?}");
    fs::write(&profile, "# ours\na@rate=40 # slow\nb_[0-1]@rate=100,\n  numa=1\n").expect("a file");
    let mut command = Command::new(tree.adverb());
    command.args([
        "run",
        "--profile",
        name,
        "--",
        "sh",
        "-c",
        "echo $ADVERB_DEVICE; ls $ADVERB_FILES/sys/class/infiniband",
    ]);
    assert_eq!(text(&finish(&mut command).stdout), "a@rate=40,b_[0-1]@rate=100,numa=1\na\nb_0\nb_1\n");
}

#[test]
fn files_of_devices_can_be_written_where_they_stay() {
    let tree = Tree::new();
    let place = tree.path("its files");
    let write = |list: &str| {
        let mut command = Command::new(tree.adverb());
        finish(command.args(["env", "--devices", list, "--files"]).arg(&place))
    };
    for list in ["a@numa=1", "b@rate=100"] {
        let output = write(list);
        let said = text(&output.stdout);
        assert!(
            said.contains(&format!(
                "export ADVERB_FILES='{}'\n",
                place.canonicalize().expect("there").display()
            )),
            "{said}"
        );
        assert!(said.contains(&format!("export ADVERB_DEVICE='{list}'\n")), "{said}");
        // By the folder's own name, and with no help: links are relative, as in sysfs.
        let name = &list[..1];
        let parent = place.join(format!("sys/class/infiniband/{name}/../../numa_node"));
        assert_eq!(fs::read_to_string(parent).expect("a file"), if name == "a" { "1\n" } else { "-1\n" });
        assert_eq!(fs::read_dir(place.join("sys/class/infiniband")).expect("a folder").count(), 1);
    }
    // Whoever has been told of a libibverbs of his own leaves a file there, and a command that was killed
    // leaves a part.
    fs::write(place.join("told"), "").expect("a file");
    fs::remove_dir_all(place.join("bin")).expect("a folder");
    assert_eq!(text(&write("a@numa=1").stderr), "");
    assert!(!place.join("told").exists());
    let long = tree.path(&"n".repeat(250));
    let mut command = Command::new(tree.adverb());
    let output = finish(command.args(["env", "--files"]).arg(&long));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("at most 255 are possible"), "{}", text(&output.stderr));
    fs::write(place.join("precious"), "").expect("a file");
    let output = write("a@numa=1");
    assert!(text(&output.stderr).contains("it is not empty"), "{}", text(&output.stderr));
    let said = text(&finish(Command::new(tree.adverb()).arg("env")).stdout);
    assert!(said.starts_with("# Programs that look for files of devices themselves find none"), "{said}");
}

#[test]
fn files_that_variables_name_count_from_the_folder_of_the_command() {
    let tree = Tree::new();
    let printed = finish(
        tree.run("sh")
            .args(["-c", "cd /; echo $ADVERB_LOG $ADVERB_PCAP"])
            .current_dir(tree.path("debug"))
            .env("ADVERB_LOG", "info:log-%p")
            .env("ADVERB_PCAP", "/tmp/%p.pcapng"),
    );
    let folder = tree.path("debug");
    assert_eq!(text(&printed.stdout), format!("info:{}/log-%p /tmp/%p.pcapng\n", folder.display()));
    for word in ["debug", "trace", "INFO", "none"] {
        let expected = format!("ADVERB_LOG={word}: wanted is error, warn,");
        refused(tree.run("true").env("ADVERB_LOG", word), 2, &expected);
    }
}

#[test]
fn a_run_warns_unless_told_otherwise() {
    let tree = Tree::new();
    let folder = tree.path("debug");
    for (options, variable, expected) in [
        (&[][..], None, "unasked -".to_owned()),
        (&[], Some(""), "unasked -".to_owned()),
        (&[], Some("off"), "off -".to_owned()),
        (&["--log", "off"], Some("info"), "off -".to_owned()),
        (&["--rsockets"], None, "-".to_owned()),
        (&["--log", "info:log-%p", "--pcap", "x"], None, format!("info:{0}/log-%p {0}/x", folder.display())),
    ] {
        let mut command = Command::new(tree.adverb());
        command.current_dir(&folder).env_remove("ADVERB_LOG").env_remove("ADVERB_PCAP");
        command.arg("run").args(options).args([
            "--",
            "sh",
            "-c",
            "echo ${ADVERB_LOG%:[0-9]*} ${ADVERB_PCAP:--}",
        ]);
        command.envs(variable.map(|value| ("ADVERB_LOG", value)));
        let output = finish(&mut command);
        assert_eq!(text(&output.stdout), expected + "\n", "{options:?}: {}", text(&output.stderr));
    }
    for (option, value) in [("--log", "loud"), ("--pcap", "/no/such/x")] {
        let output = finish(Command::new(tree.adverb()).args(["run", option, value, "--", "echo"]));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        assert!(text(&output.stderr).contains(": wanted is "), "{}", text(&output.stderr));
    }
}

#[test]
fn a_named_folder_is_this_users_alone_and_of_one_run() {
    let tree = Tree::new();
    let (folder, victim) = (tree.path("named"), tree.path("victim"));
    fs::write(&victim, "precious").expect("a file");
    let mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("a mode");
    let named = |command: &str| {
        let mut named = Command::new(tree.adverb());
        named.args([command, "--files"]).arg(&folder).stdin(Stdio::null());
        named
    };
    let run = |program: &str| finish(named("run").args(["--", program]));
    // What another user has prepared.
    fs::create_dir(&folder).expect("a folder");
    mode(0o755);
    std::os::unix::fs::symlink(&victim, folder.join(".adverb")).expect("a link");
    for output in [run("true"), finish(&mut named("env"))] {
        assert_ne!(output.status.code(), Some(0));
    }
    assert_eq!(fs::read(&victim).expect("a file"), b"precious");
    fs::remove_file(folder.join(".adverb")).expect("removed");
    mode(0o777);
    let output = run("true");
    assert!(text(&output.stderr).contains("chmod go-w"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0, "nothing is written");
    // A mode of the user's stays.
    mode(0o700);
    assert_eq!(run("true").status.code(), Some(0));
    assert_eq!(fs::metadata(&folder).expect("a folder").mode() & 0o777, 0o700);
    assert!(!folder.join("counted").is_symlink(), "it would lead to a name that is free");
    // A run that goes on keeps its files.
    let mut live = named("run");
    live.args(["--", "sh", "-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut live = live.spawn().expect("spawn");
    let mut line = String::new();
    BufReader::new(live.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    let output = finish(&mut named("env"));
    assert!(text(&output.stderr).contains("another run has its files there"), "{}", text(&output.stderr));
    assert!(folder.join("known").exists());
    drop(live.stdin.take());
    wait(&mut live);
    assert_eq!(finish(&mut named("env")).status.code(), Some(0));
    // What is not ours stays.
    fs::write(folder.join(".other"), "").expect("a file");
    assert_ne!(finish(&mut named("env")).status.code(), Some(0));
    assert!(folder.join(".other").exists());
}

#[test]
fn missing_libraries_are_named_with_the_command_that_builds_them() {
    let tree = Tree::new();
    fs::remove_file(tree.path("debug/librdmacm.so")).expect("remove");
    refused(&mut tree.run("true"), 125, "cargo build\n");
}

#[test]
fn many_first_runs_at_once_and_a_folder_that_cannot_be_written() {
    let tree = Tree::new();
    let all: Vec<_> = (0..16).map(|_| tree.run("true").spawn().expect("spawn")).collect();
    for mut child in all {
        assert_eq!(wait(&mut child).code(), Some(0));
    }
    let names: Vec<_> = fs::read_dir(tree.path("debug/adverb-libs"))
        .expect("made by the runs")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
        .collect();
    assert_eq!(names.len(), 7, "no draft is left: {names:?}");

    // Root may write anywhere, so this half tests an ordinary user only where one runs it; for root the
    // content of the folder must at least stay untouched.
    let folder = tree.path("debug/adverb-libs");
    let before = fs::metadata(&folder).expect("folder").modified().expect("time");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).expect("chmod");
    assert_eq!(finish(&mut tree.run("true")).status.code(), Some(0));
    assert_eq!(fs::metadata(&folder).expect("folder").modified().expect("time"), before);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("chmod");
}

#[test]
fn env_does_by_hand_what_run_does() {
    let tree = Tree::new();
    let by_hand = finish(
        Command::new("sh")
            .arg("-c")
            .arg("eval \"$(\"$0\" env --device iwarp0)\"; env")
            .arg(tree.adverb())
            .env("LD_LIBRARY_PATH", "/before")
            .env("ASAN_OPTIONS", "halt_on_error=0")
            .env("VALGRIND_OPTS", "-q --leak-check=full")
            .env_remove("LD_PRELOAD"),
    );
    let by_run = finish(
        Command::new(tree.adverb())
            .args(["run", "--device", "iwarp0", "--", "env"])
            .env("LD_LIBRARY_PATH", "/before")
            .env("ASAN_OPTIONS", "halt_on_error=0")
            .env("VALGRIND_OPTS", "-q --leak-check=full")
            .env_remove("LD_PRELOAD"),
    );
    let relevant = |output: &Output| {
        let mut lines: Vec<_> = text(&output.stdout)
            .lines()
            .filter(|line| {
                ["LD_", "ADVERB_", "ASAN_", "TSAN_", "VALGRIND_"].iter().any(|start| line.starts_with(start))
            })
            // Only a parent can say goodbye for a killed program, and remove files. A shell that has the
            // variables is not there to try one program.
            .filter(|line| {
                !["ADVERB_RECORD=", "ADVERB_FILES=", "ADVERB_LOG="].iter().any(|own| line.starts_with(own))
            })
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(relevant(&by_hand), relevant(&by_run));
    assert_eq!(relevant(&by_run).len(), 6);
}

#[test]
fn variables_with_values_that_mean_nothing_are_refused() {
    let tree = Tree::new();
    for (name, value, expected) in [
        (
            "ADVERB_DEVICE",
            "mlx5_0",
            "ADVERB_DEVICE=mlx5_0: there is no device 'mlx5_0'; devices: roce0, iwarp0, or a name of your choice",
        ),
        ("ADVERB_LOG", "loud", "ADVERB_LOG=loud: wanted is error, warn,"),
        ("ADVERB_PCAP", "/no/such/x", "ADVERB_PCAP=/no/such/x: wanted is a file"),
        ("ADVERB_SPIN", "fast", "ADVERB_SPIN=fast: wanted is a number"),
        ("ADVERB_CRC", "1", "ADVERB_CRC=1: wanted is on or off"),
        ("ADVERB_LOCAL", "atuo", "ADVERB_LOCAL=atuo: wanted is auto, strict or off"),
        ("ADVERB_WITHOUT", "gsp", "ADVERB_WITHOUT=gsp: wanted is a comma list of gso, "),
    ] {
        refused(tree.run("true").env(name, value), 2, expected);
        for command in ["env", "devices", "demo", "bench"] {
            refused(Command::new(tree.adverb()).arg(command).env(name, value), 2, expected);
        }
        assert_eq!(finish(tree.run("true").env(name, "")).status.code(), Some(0), "{name}");
    }
    // A name that means nothing may be somebody else's.
    let mut env = Command::new(tree.adverb());
    env.arg("env");
    for mut command in [tree.run("true"), env] {
        let output = finish(command.env("ADVERB_LOCL", "off"));
        let expected = "adverb: warning: ADVERB_LOCL is no variable of adverb and does nothing; is ADVERB_LOCAL meant?\n";
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), expected));
    }
    // What starts programs says that devices stand on nothing here, and what shows their devices.
    let gone = ("ADVERB_DEVICE", "a@interface=nowhere0");
    let output = finish(tree.run("true").env(gone.0, gone.1));
    let warning =
        "adverb: warning: a: interface=nowhere0: no such interface is up with an address here; there are: ";
    assert!(text(&output.stderr).starts_with(warning), "{}", text(&output.stderr));
    assert_eq!((output.status.code(), text(&output.stderr).lines().count()), (Some(0), 1));
    let output = finish(Command::new(tree.adverb()).arg("devices").env(gone.0, gone.1));
    assert!(text(&output.stderr).starts_with(warning), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).starts_with("a: RoCE v2"),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let mut overridden = Command::new(tree.adverb());
    overridden.args(["run", "--device", "iwarp0", "--", "true"]).env("ADVERB_DEVICE", "mlx5_0");
    assert_eq!(finish(&mut overridden).status.code(), Some(0));
}

#[test]
fn devices_shows_what_a_program_sees_and_what_is_missing() {
    let tree = Tree::new();
    let devices = |options: &[&str]| {
        finish(Command::new(tree.adverb()).arg("devices").args(options).env_remove("ADVERB_DEVICE"))
    };
    let output = devices(&[]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.starts_with("roce0: RoCE v2 over UDP, active, node GUID "), "{shown}");
    assert!(shown.contains("    lo: 127.0.0.1"), "{shown}");
    assert!(shown.contains("    UDP port 4791 is "), "{shown}");
    let shown = text(&devices(&["-v"]).stdout);
    assert!(shown.contains("    services: RC, UC, UD, "), "{shown}");
    assert!(shown.contains("    operations: write, write with immediate, "), "{shown}");
    let by_default = "\nwithin this host:\n    memory of the engine (device memory, the Rust API): peers map it as it is\n    private memory of programs: ";
    assert!(shown.contains(by_default), "{shown}");
    for (variable, value, line) in [
        ("ADVERB_LOCAL", "strict", "packets through shared memory (ADVERB_LOCAL=strict)"),
        ("ADVERB_LOCAL", "off", "packets by the network (ADVERB_LOCAL=off)"),
        ("ADVERB_WITHOUT", "memfd", "packets by the network (ADVERB_WITHOUT names memfd)"),
        (
            "ADVERB_WITHOUT",
            "moved-pages",
            "private memory of programs: it is not moved (ADVERB_WITHOUT names moved-pages)",
        ),
        (
            "ADVERB_WITHOUT",
            "userfaultfd",
            "private memory of programs: it is not moved (userfaultfd: Operation not permitted (os error 1))",
        ),
        (
            "ADVERB_WITHOUT",
            "mapped-memory",
            "memory of the engine (device memory, the Rust API): the kernel copies (ADVERB_WITHOUT names mapped-memory)",
        ),
        (
            "ADVERB_WITHOUT",
            "mapped-memory",
            "shared memory of programs (memfd, tmpfs, System V): the kernel copies (ADVERB_WITHOUT names mapped-memory)",
        ),
        ("ADVERB_WITHOUT", "kernel-copy", "everything else: packets (ADVERB_WITHOUT names kernel-copy)"),
    ] {
        let mut command = Command::new(tree.adverb());
        let shown = text(&finish(command.args(["devices", "-v"]).env(variable, value)).stdout);
        assert!(shown.contains(&format!("\n    {line}\n")), "{variable}={value}: {shown}");
    }

    // With the same options as a program that is run.
    for options in [["--devices", "a_[0-7]@numa=0"], ["--profile", "dgx"]] {
        let output = devices(&options);
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{shown}{}", text(&output.stderr));
        assert_eq!(shown.matches(": RoCE v2 over UDP, active, node GUID ").count(), 8, "{shown}");
    }
    let range = "[0-32] is no range that goes up and has at most 32 numbers";
    let output = devices(&["--devices", "a[0-32]@numa=0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(range), "{}", text(&output.stderr));
    let mut quiet = Command::new(tree.adverb());
    quiet.arg("devices").env("ADVERB_LOG", "info").env_remove("ADVERB_DEVICE");
    let said = text(&finish(&mut quiet).stderr);
    assert!(said.contains("counters roce0: none\n"), "{said}");

    fs::remove_file(tree.path("debug/libibverbs.so")).expect("remove");
    let output = devices(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("a library is missing: libibverbs.so"), "{}", text(&output.stdout));
}

/// A network namespace as it is made: its only interface is down.
#[test]
fn the_user_is_told_that_the_loopback_is_down() {
    let tree = Tree::new();
    let there = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]).arg(tree.adverb()).args(arguments);
        finish(command.env_remove("ADVERB_DEVICE"))
    };
    let hint = "the interface lo is down: ip link set lo up";
    for device in ["roce0", "iwarp0"] {
        let output = there(&["demo", "--device", device]);
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
        assert!(shown.contains("demo FAILED: ") && shown.contains(hint), "{shown}");
        let output = there(&["run", "--device", device, "--", tree.adverb().to_str().unwrap(), "devices"]);
        let shown = text(&output.stdout);
        assert!(shown.starts_with(&format!("{device}: ")) && shown.contains(", down, node GUID "), "{shown}");
        assert!(shown.contains(hint), "{shown}");
    }
}

#[test]
fn the_files_of_devices_go_with_the_program() {
    let tree = Tree::new();
    let place = tree.path("tmp");
    fs::create_dir(&place).expect("folder");
    let names = || -> Vec<PathBuf> {
        fs::read_dir(&place).expect("folder").map(|entry| entry.expect("entry").path()).collect()
    };
    let run = |script: &str| {
        let mut command = tree.run("sh");
        command.args(["-c", script]).env("TMPDIR", &place).stdout(Stdio::piped());
        command
    };
    let output =
        finish(&mut run("cat $ADVERB_FILES/sys/class/infiniband/roce0/ports/1/state; ls -d $ADVERB_FILES"));
    let said = text(&output.stdout);
    let (state, folder) = said.trim().split_once('\n').expect("two lines");
    assert_eq!(state, "4: ACTIVE");
    assert_eq!(Path::new(folder).parent(), Some(&*place.canonicalize().expect("path")));
    assert!(names().is_empty());
    // New files are what costs on a disk: none is made for a text that another one has.
    let count = |what: &str| {
        let output = finish(&mut run(&format!("find $ADVERB_FILES -type f {what} | sort -u | wc -l")));
        text(&output.stdout).trim().parse::<usize>().expect("a number")
    };
    // But what sysfs lets root write is nobody else's file.
    let script = "cd $ADVERB_FILES/sys/class/infiniband_verbs/uverbs0 && chmod u+w device/infiniband/*/node_desc && \
                  echo mine >device/infiniband/roce0/node_desc && cat ibdev device/infiniband/roce0/node_desc";
    assert_eq!(text(&finish(&mut run(script)).stdout), "roce0\nmine\n");
    // Whatever the umask, nobody else writes there, and everybody may look.
    for umask in ["000", "022"] {
        let script = "find $ADVERB_FILES ! -type l -perm /022; find $ADVERB_FILES -type d ! -perm -055 ! -name counted";
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(tree.adverb());
        command.args(["run", "--", "sh", "-c", script]).env("TMPDIR", &place).stdin(Stdio::null());
        assert_eq!(text(&finish(&mut command).stdout), "", "umask {umask}");
    }
    let shared = "! -name node_desc ! -name numa_node";
    assert_eq!(
        count(&format!("{shared} -printf '%i\\n'")),
        count(&format!("{shared} -exec md5sum {{}} + | cut -d' ' -f1"))
    );
    assert!(count("-printf '%i\\n'") < count("") / 2);

    // One is killed, and one goes on.
    let mut both = [run("echo; exec sleep 1000"), run("echo; exec sleep 1000")].map(|mut command| {
        let mut child = command.spawn().expect("spawn");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it runs");
        child
    });
    let of = |child: &Child| {
        let pid = format!("-{}-", child.id());
        names().into_iter().filter(|path| path.to_str().expect("text").contains(&pid)).count()
    };
    assert_eq!([of(&both[0]), of(&both[1])], [1, 1]);
    both[0].kill().expect("kill");
    wait(&mut both[0]);
    assert_eq!([of(&both[0]), of(&both[1])], [1, 1], "nobody was there to remove it");
    assert_eq!(finish(&mut run("true")).status.code(), Some(0));
    assert_eq!([of(&both[0]), of(&both[1])], [0, 1]);
    both[1].kill().expect("kill");
    wait(&mut both[1]);
}
