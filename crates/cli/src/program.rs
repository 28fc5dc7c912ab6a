//! Finds the program as a shell would and tells beforehand when the dynamic linker will not load our
//! libraries into it.

use crate::elf::{self, Elf};
use crate::failure::Failure;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Commands that start another program as somebody else and drop the linker's variables on the way.
const CHANGES_USER: [&str; 3] = ["sudo", "doas", "pkexec"];
/// How many interpreters of interpreters are followed; the kernel stops at four, too.
const SCRIPT_DEPTH: u32 = 4;

/// What to execute.
#[derive(Debug)]
pub(crate) struct Start {
    /// The file.
    pub(crate) file: PathBuf,
    /// Arguments that go before the user's own.
    pub(crate) arguments: Vec<OsString>,
    /// What the user should know, though it can be started.
    pub(crate) warnings: Vec<String>,
}

/// Finds `name` along PATH (or takes it as a path if it has a slash) and looks whether it can work.
///
/// # Errors
/// Not found, not executable, or of a kind that cannot be served: setuid or with file capabilities, linked
/// with musl, of another architecture, or a command that changes the user.
pub(crate) fn find(name: &OsStr) -> Result<Start, Failure> {
    let file = look_up(name)?;
    let base = file.file_name().unwrap_or_default();
    if CHANGES_USER.iter().any(|command| base == *command) {
        let command = base.to_string_lossy();
        return Err(Failure::cannot_run(format!(
            "{command} removes the variables that adverb works with: put it in front, as in \
             '{command} adverb run -- PROGRAM'"
        )));
    }
    let mut warnings = Vec::new();
    if check(&file, SCRIPT_DEPTH, &mut warnings)? {
        return Ok(Start { file, arguments: Vec::new(), warnings });
    }
    // Neither ELF nor "#!": what execvp(3) and the shells do with such a file.
    Ok(Start { arguments: vec![file.into_os_string()], file: PathBuf::from("/bin/sh"), warnings })
}

fn look_up(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err(Failure::not_found("the program's name is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(Failure::not_found(format!("there is no file {shown}")))
            }
            Err(e) => Err(Failure::cannot_run(format!("cannot look at {shown}: {e}"))),
            Ok(metadata) if metadata.is_dir() => {
                Err(Failure::cannot_run(format!("{shown} is a folder, not a program")))
            }
            Ok(_) if !executable(&path) => Err(Failure::cannot_run(format!(
                "{shown} is not executable by this user (chmod +x makes it so)"
            ))),
            Ok(_) => Ok(path),
        };
    }
    // The default when PATH is not set is execvp(3)'s in glibc.
    let folders = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut unusable = None;
    for folder in std::env::split_paths(&folders) {
        // An empty entry means the current folder.
        let path = if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) };
        if fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            if executable(&path) {
                return Ok(path);
            }
            unusable.get_or_insert(path);
        }
    }
    Err(match unusable {
        Some(path) => Failure::cannot_run(format!("{} is not executable by this user", path.display())),
        None => Failure::not_found(match package(&shown) {
            Some(package) => format!(
                "there is no program '{shown}' in PATH; Debian and Ubuntu have it in the package {package}: \
                 apt install {package}"
            ),
            None => format!("there is no program '{shown}' in PATH"),
        }),
    })
}

/// The Debian package of a well-known RDMA program.
fn package(program: &str) -> Option<&'static str> {
    let is_perftest = ["ib_write_", "ib_read_", "ib_send_", "ib_atomic_", "raw_ethernet_"]
        .iter()
        .any(|prefix| program.starts_with(prefix));
    Some(match program {
        _ if is_perftest => "perftest",
        "ibv_devices" | "ibv_devinfo" | "ibv_asyncwatch" => "ibverbs-utils",
        _ if program.starts_with("ibv_") && program.ends_with("pingpong") => "ibverbs-utils",
        "rping" | "ucmatose" | "udaddy" | "udpong" | "mckey" | "cmtime" | "rcopy" | "rstream"
        | "riostream" | "rdma_client" | "rdma_server" | "rdma_xclient" | "rdma_xserver" => "rdmacm-utils",
        "ucx_info" | "ucx_perftest" | "ucx_read_profile" => "ucx-utils",
        "fi_info" | "fi_pingpong" | "fi_strerror" => "libfabric-bin",
        "ibstat" | "ibaddr" | "ibstatus" => "infiniband-diags",
        "rdma" => "iproute2",
        "iperf3" => "iperf3",
        _ => return None,
    })
}

/// Looks at one file. False: neither ELF nor a script with an interpreter line.
fn check(path: &Path, depth: u32, warnings: &mut Vec<String>) -> Result<bool, Failure> {
    let shown = path.display();
    if let Some(privilege) = gains_privilege(path) {
        return Err(Failure::cannot_run(format!(
            "{shown} {privilege}: the dynamic linker ignores LD_LIBRARY_PATH and LD_PRELOAD in such programs. \
             Use a copy without it, or run adverb as the user that the program would become"
        )));
    }
    // Executable but not readable: nothing to look at, so let it run.
    let Ok(file) = File::open(path) else { return Ok(true) };
    match elf::inspect(&file).map_err(|e| Failure::cannot_run(format!("cannot read {shown}: {e}")))? {
        Elf::Dynamic(linker) if linker.contains("ld-musl") => Err(Failure::cannot_run(format!(
            "{shown} is linked with musl ({linker}); adverb's libraries are built for glibc. \
             Use a build of the program for glibc"
        ))),
        Elf::Dynamic(linker) if !Path::new(&linker).exists() => Err(Failure::cannot_run(format!(
            "{shown} needs the dynamic linker {linker}, which this machine does not have"
        ))),
        Elf::Dynamic(_) => Ok(true),
        // Task runners often are: what they start has devices.
        Elf::Static => {
            warnings.push(format!(
                "{shown} is statically linked: it has its own libibverbs inside, or none, and cannot be given another. \
                 It has no devices itself; dynamically linked programs that it starts do"
            ));
            Ok(true)
        }
        Elf::Foreign(architecture) => Err(Failure::cannot_run(format!(
            "{shown} is a program for {architecture}; this adverb serves {} programs only",
            std::env::consts::ARCH
        ))),
        Elf::Damaged => Err(Failure::cannot_run(format!("{shown} is a damaged program file (ELF header)"))),
        Elf::No => match interpreter(&file) {
            None => Ok(false),
            Some(_) if depth == 0 => {
                Err(Failure::cannot_run(format!("{shown}: too many interpreters of interpreters")))
            }
            Some((interpreter, argument)) => {
                check_interpreter(&interpreter, argument.as_deref(), depth, warnings)
                    .map_err(|failure| Failure::cannot_run(format!("{shown} is a script: {failure}")))?;
                Ok(true)
            }
        },
    }
}

fn check_interpreter(
    interpreter: &Path,
    argument: Option<&OsStr>,
    depth: u32,
    warnings: &mut Vec<String>,
) -> Result<(), Failure> {
    if !interpreter.exists() {
        return Err(Failure::cannot_run(format!("there is no interpreter {}", interpreter.display())));
    }
    check(interpreter, depth - 1, warnings)?;
    // "#!/usr/bin/env python3": the program that matters is env's argument.
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = argument.map(|argument| argument.as_bytes())
        && let Some(name) = name
            .split(u8::is_ascii_whitespace)
            .find(|word| !word.is_empty() && word[0] != b'-' && !word.contains(&b'='))
    {
        check(&look_up(OsStr::from_bytes(name))?, depth - 1, warnings)?;
    }
    Ok(())
}

/// The interpreter and the rest of a "#!" line.
fn interpreter(mut file: &File) -> Option<(PathBuf, Option<OsString>)> {
    // The kernel looks at the first 256 bytes, too (BINPRM_BUF_SIZE).
    let mut head = [0; 256];
    let length = file.read(&mut head).ok()?;
    let line = head[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let (path, rest) = match line.iter().position(u8::is_ascii_whitespace) {
        Some(end) => (&line[..end], line[end..].trim_ascii()),
        None => (line, &line[line.len()..]),
    };
    let argument = (!rest.is_empty()).then(|| OsString::from_vec(rest.to_vec()));
    (!path.is_empty()).then(|| (PathBuf::from(OsStr::from_bytes(path)), argument))
}

/// Why the kernel would mark a process of this file as privileged (AT_SECURE, execve(2) and ld.so(8)); none
/// if it would not.
fn gains_privilege(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    // SAFETY: these take no arguments and cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let setuid = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != uid;
    let setgid = metadata.mode() & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
        && metadata.gid() != gid;
    let capabilities = uid != 0 && has_capabilities(path);
    if !(setuid || setgid || capabilities) || privileges_are_off(path) {
        return None;
    }
    Some(match (setuid, setgid) {
        (true, _) => format!("is setuid (runs as user {})", metadata.uid()),
        (_, true) => format!("is setgid (runs with group {})", metadata.gid()),
        _ => "has file capabilities (getcap shows them)".to_string(),
    })
}

/// Whether the file system or this process is such that programs gain nothing.
fn privileges_are_off(path: &Path) -> bool {
    // SAFETY: PR_GET_NO_NEW_PRIVS takes no pointers.
    if unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1 {
        return true;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all-zero is a valid statvfs (integers only).
    let mut status: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated and `status` is writable for the call.
    unsafe { libc::statvfs(path.as_ptr(), &raw mut status) == 0 && status.f_flag & libc::ST_NOSUID != 0 }
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated; a size of 0 asks for the length only, so nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn executable(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is NUL-terminated. AT_EACCESS judges as execve does, by the effective IDs.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}
