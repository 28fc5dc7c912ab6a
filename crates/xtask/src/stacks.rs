//! How much stack the release libraries want from the threads of a program.
//!
//! Two checks. The machine code says how large the frame of each function is; and a program takes each step
//! from opening a device to closing it, once on stacks that tell how far down somebody has written, and once
//! on the smallest stacks that there are (`PTHREAD_STACK_MIN`).

use crate::cargo::{self, output};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The library that makes rsockets of sockets.
const PRELOADED: &str = "librspreload.so";
/// The program, below the root.
const WALK: &str = "tests/abi/stacks.c";
/// The devices that it walks on, and the values of `ADVERB_LOCAL`: each with each is a path.
const DEVICES: [&str; 2] = ["roce0", "iwarp0"];
const LOCAL: [&str; 3] = ["auto", "strict", "off"];
/// The interfaces that the program calls, each on every path; and whether the library that makes rsockets of
/// sockets stands in front.
const CALLED: [(&str, bool); 3] = [("verbs", false), ("rsockets", false), ("sockets", true)];
/// No frame is larger, in bytes: a chain of calls has several.
const LARGEST: u64 = 4608;
/// No frame of a preloaded library is larger, in bytes. Such a library is in every program, under its signal
/// handlers, too.
const LARGEST_PRELOADED: u64 = 2048;
/// How many of the largest are shown.
const SHOWN: usize = 12;

/// Functions with a larger frame, by a part of their names, and why they may.
const MAY_BE_LARGER: [(&str, &str); 4] = [
    (
        "crc_fast4arch8software",
        "only processors without a carry-less multiplication come here, which all since 2010 have",
    ),
    ("backtrace_rs", "the text of a panic, which ends the process"),
    ("9backtrace9symbolize", "adverb run --check says where a mistake is"),
    ("adverb_watch5check4site", "the same"),
];

/// Builds the libraries and makes both checks. What was found, and whether all is well.
///
/// # Errors
/// Says which step failed, and how.
pub(crate) fn run(root: &Path) -> Result<(String, bool), String> {
    // All that users build: libraries built alone have other features of other crates, and would take the
    // place of what tests use meanwhile.
    let built = cargo::build(root, &[])?;
    let mut text = String::new();
    let mut good = true;
    // Of a preloaded library, the crate whose functions are its own.
    let libraries = [
        ("libibverbs.so", LARGEST, None),
        ("librdmacm.so", LARGEST, None),
        ("libadverb_preload.so", LARGEST_PRELOADED, Some("adverb_preload")),
        (PRELOADED, LARGEST_PRELOADED, Some("rspreload")),
    ];
    for (library, largest, own) in libraries {
        let code =
            output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(built.join(library)))?;
        let mut frames = frames(&code);
        if let Some(own) = own {
            // What is behind its own functions and those that programs call is the text of a panic, which
            // ends the process.
            let is_own =
                |name: &str| name.contains(own) || !["_R", "_ZN"].iter().any(|start| name.starts_with(start));
            frames.retain(|name, _| is_own(name));
        }
        if frames.is_empty() {
            return Err(format!("no function of {library} has a frame: objdump's output is not understood"));
        }
        let (lines, all_small) = judge(&frames, largest);
        let _ = writeln!(text, "{library}: the largest frames, in bytes\n{lines}");
        good &= all_small;
    }
    let folder = std::env::temp_dir().join(format!("adverb-stacks-{}", std::process::id()));
    let walked = walk(root, &built, &folder);
    // What cannot be removed stays behind in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    text += &walked?;
    Ok((text, good))
}

/// The bytes by which each function moves the stack pointer, or the register that a probe of the stack counts
/// down to, by constants; all of them together, so that what a function wants in a branch of its own counts,
/// too. From what `objdump -d` prints.
fn frames(code: &str) -> BTreeMap<String, u64> {
    let mut frames = BTreeMap::new();
    let mut function = "";
    for line in code.lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            function = name;
        } else if let Some(bytes) = taken(line) {
            *frames.entry(function.to_owned()).or_insert(0) += bytes;
        }
    }
    frames
}

/// The bytes of stack that one instruction takes.
fn taken(line: &str) -> Option<u64> {
    let (_, instruction) = line.split_once('\t')?;
    let (name, operands) = instruction.trim().split_once(char::is_whitespace)?;
    let operands = operands.trim();
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let bytes = match name {
        // x86-64: sub $0x1234,%rsp; a large frame is probed page by page down to a register.
        "sub" | "subq" if operands.starts_with('$') => {
            let (bytes, register) = operands.strip_prefix('$')?.split_once(',')?;
            ["%rsp", "%r11"].contains(&register).then(|| number(bytes))??
        }
        // AArch64: sub sp, sp, #0x123 and sub sp, sp, #0x1, lsl #12; stp x29, x30, [sp, #-16]!.
        "sub" if operands.starts_with("sp, sp, #") || operands.starts_with("x9, sp, #") => {
            let rest = operands.split_once('#')?.1;
            let (bytes, shift) = rest.split_once(", lsl #").unwrap_or((rest, "0"));
            number(bytes.split(' ').next()?)? << shift.trim().parse::<u32>().ok()?
        }
        _ => return None,
    };
    // A negative number is an addition.
    (bytes < 1 << 31).then_some(bytes)
}

/// A line for each of the largest, and whether all may be as large as they are.
fn judge(frames: &BTreeMap<String, u64>, largest: u64) -> (String, bool) {
    let mut all: Vec<_> = frames.iter().map(|(name, bytes)| (*bytes, name.as_str())).collect();
    all.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let (mut text, mut good) = (String::new(), true);
    for (place, (bytes, name)) in all.into_iter().enumerate() {
        let reason = MAY_BE_LARGER.iter().find(|(part, _)| name.contains(part)).map(|(_, reason)| reason);
        let too_large = bytes > largest && reason.is_none();
        good &= !too_large;
        if too_large {
            let _ = writeln!(
                text,
                "{bytes:8}  {name}\n          more than {largest}: box what it holds, or build that in a function of its own"
            );
        } else if place < SHOWN {
            let reason = reason.filter(|_| bytes > largest).map(|reason| format!(" ({reason})"));
            let _ = writeln!(text, "{bytes:8}  {name}{}", reason.unwrap_or_default());
        }
    }
    (text, good)
}

/// Has the program walk every path.
fn walk(root: &Path, built: &Path, folder: &Path) -> Result<String, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(fail)?;
    for library in ["libibverbs.so", "librdmacm.so"] {
        for name in [library.to_owned(), format!("{library}.1")] {
            std::os::unix::fs::symlink(built.join(library), folder.join(name)).map_err(fail)?;
        }
    }
    let (source, program) = (root.join(WALK), folder.join("stacks"));
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-O1", "-o"]).arg(&program).arg(&source);
    output(compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]))?;
    let mut text = String::from("the deepest stacks, in bytes, with what libc puts there\n");
    for device in DEVICES {
        for local in LOCAL {
            for (called, is_preloaded) in CALLED {
                for how in [&[][..], &["walk"]] {
                    let mut walk = Command::new(&program);
                    walk.args(["127.0.0.1", called]).args(how).env("LD_LIBRARY_PATH", folder);
                    if is_preloaded {
                        walk.env("LD_PRELOAD", built.join(PRELOADED));
                    }
                    let said = output(walk.env("ADVERB_DEVICE", device).env("ADVERB_LOCAL", local))?;
                    if let Some(line) = said.lines().find(|line| line.starts_with("deepest")) {
                        let _ = writeln!(text, "  {device}, ADVERB_LOCAL={local}, {called}: {line}");
                    }
                }
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "\
0000000000001000 <small>:
    1000:\tpush   %rbx
    1001:\tsub    $0x20,%rsp
    1005:\tret

0000000000002000 <probed>:
    2000:\tmov    %rsp,%r11
    2003:\tsub    $0x18000,%r11
    200a:\tsub    $0x1000,%rsp
    2011:\tsub    $0xffffffffffffff80,%rsp
";
    const ARM: &str = "\
0000000000001000 <large>:
    1000:\tstp\tx29, x30, [sp, #-16]!
    1004:\tsub\tsp, sp, #0x2, lsl #12
    1008:\tsub\tsp, sp, #0x110
";

    #[test]
    fn frames_are_read_from_machine_code() {
        assert_eq!(frames(X86), [("probed".into(), 0x19000), ("small".into(), 0x20)].into());
        assert_eq!(frames(ARM), [("large".into(), 0x2110)].into());
    }

    #[test]
    fn a_large_frame_fails_unless_it_has_its_reason() {
        let of = |name: &str, bytes| judge(&[(name.to_owned(), bytes)].into(), LARGEST);
        assert!(of("engine", LARGEST).1);
        let (text, good) = of("engine", LARGEST + 1);
        assert!(!good && text.contains("engine"), "{text}");
        assert!(of("_ZN8crc_fast4arch8software6update17h1E", 40_000).1);
    }
}
