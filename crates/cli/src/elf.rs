//! The little of the ELF format that decides whether the dynamic linker will load our libraries into a
//! program.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const HEADER_LEN: usize = 64;
const PROGRAM_HEADER_LEN: usize = 56;
const PT_INTERP: u32 = 3;
/// The longest path that an interpreter may have (PATH_MAX).
const INTERPRETER_MAX: u64 = 4096;

/// `e_machine` of the programs that this build of adverb can serve.
#[cfg(target_arch = "x86_64")]
const OUR_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const OUR_MACHINE: u16 = 183;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("add this architecture's e_machine here");

/// What the head of an executable says about how it will be started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Elf {
    /// Not an ELF file.
    No,
    /// For another architecture or word size, in words.
    Foreign(String),
    /// No interpreter: statically linked.
    Static,
    /// Started by this dynamic linker.
    Dynamic(String),
    /// Says it is ELF and contradicts itself.
    Damaged,
}

/// Reads the head of `file`.
///
/// # Errors
/// Those of reading the file; contents that make no sense are [`Elf::Damaged`].
pub(crate) fn inspect(file: &File) -> io::Result<Elf> {
    let mut head = [0; HEADER_LEN];
    let length = read_up_to(file, &mut head, 0)?;
    if length < 4 || &head[..4] != b"\x7fELF" {
        return Ok(Elf::No);
    }
    if length < HEADER_LEN {
        return Ok(Elf::Damaged);
    }
    let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let (class, order, machine) = (head[4], head[5], u16_at(18));
    if class != 2 || order != 1 || machine != OUR_MACHINE {
        let machine = if order == 1 { machine } else { machine.swap_bytes() };
        return Ok(Elf::Foreign(architecture(class, machine)));
    }
    let table = u64::from_le_bytes(head[32..40].try_into().expect("8 bytes"));
    let (entry_len, entries) = (u16_at(54), u16_at(56));
    if entries > 0 && usize::from(entry_len) != PROGRAM_HEADER_LEN {
        return Ok(Elf::Damaged);
    }
    for i in 0..u64::from(entries) {
        let mut entry = [0; PROGRAM_HEADER_LEN];
        let Some(at) = table.checked_add(i * u64::from(entry_len)) else { return Ok(Elf::Damaged) };
        if read_up_to(file, &mut entry, at)? < PROGRAM_HEADER_LEN {
            return Ok(Elf::Damaged);
        }
        if u32::from_le_bytes(entry[..4].try_into().expect("4 bytes")) == PT_INTERP {
            let offset = u64::from_le_bytes(entry[8..16].try_into().expect("8 bytes"));
            let size = u64::from_le_bytes(entry[32..40].try_into().expect("8 bytes"));
            return interpreter(file, offset, size);
        }
    }
    Ok(Elf::Static)
}

fn interpreter(file: &File, offset: u64, size: u64) -> io::Result<Elf> {
    if size == 0 || size > INTERPRETER_MAX {
        return Ok(Elf::Damaged);
    }
    let mut path = vec![0; usize::try_from(size).expect("at most 4096")];
    let length = read_up_to(file, &mut path, offset)?;
    if length < path.len() {
        return Ok(Elf::Damaged);
    }
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    Ok(Elf::Dynamic(String::from_utf8_lossy(&path[..end]).into_owned()))
}

/// Reads until `buffer` is full or the file ends; an offset beyond what a file can have reads nothing.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        let Some(at) = offset.checked_add(length as u64).filter(|&at| at <= i64::MAX as u64) else { break };
        match file.read_at(&mut buffer[length..], at) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(length)
}

fn architecture(class: u8, machine: u16) -> String {
    let name = match machine {
        3 => "x86",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "s390",
        40 => "ARM",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        other => return format!("ELF machine {other}"),
    };
    match class {
        1 => format!("32-bit {name}"),
        2 => format!("64-bit {name}"),
        _ => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

    /// A file with `bytes`, removed when dropped.
    struct Temporary(PathBuf);

    impl Temporary {
        fn open(name: &str, bytes: &[u8]) -> (Self, File) {
            let path = std::env::temp_dir().join(format!("adverb-elf-{}-{name}", std::process::id()));
            File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("temporary file");
            let file = File::open(&path).expect("just written");
            (Self(path), file)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn program(class: u8, machine: u16, interpreter: Option<&[u8]>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[..4].copy_from_slice(b"\x7fELF");
        (bytes[4], bytes[5]) = (class, 1);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = HEADER_LEN as u8;
        bytes[54] = PROGRAM_HEADER_LEN as u8;
        bytes[56] = 1;
        let mut entry = [0; PROGRAM_HEADER_LEN];
        if let Some(path) = interpreter {
            entry[0] = PT_INTERP as u8;
            entry[8] = (HEADER_LEN + PROGRAM_HEADER_LEN) as u8;
            entry[32] = path.len() as u8;
        }
        bytes.extend_from_slice(&entry);
        bytes.extend_from_slice(interpreter.unwrap_or_default());
        bytes
    }

    #[test]
    fn tells_the_kinds_apart() {
        let cases: [(&str, Vec<u8>, Elf); 6] = [
            ("script", b"#!/bin/sh\n".to_vec(), Elf::No),
            ("empty", Vec::new(), Elf::No),
            (
                "dynamic",
                program(2, OUR_MACHINE, Some(b"/lib64/ld.so\0")),
                Elf::Dynamic("/lib64/ld.so".to_string()),
            ),
            ("static", program(2, OUR_MACHINE, None), Elf::Static),
            ("32-bit", program(1, 3, None), Elf::Foreign("32-bit x86".to_string())),
            ("riscv", program(2, 243, None), Elf::Foreign("64-bit RISC-V".to_string())),
        ];
        for (name, bytes, expected) in cases {
            let (_keep, file) = Temporary::open(name, &bytes);
            assert_eq!(inspect(&file).expect("readable"), expected, "{name}");
        }
    }

    #[test]
    fn any_truncation_or_absurd_length_is_damage_and_never_a_panic() {
        let whole = program(2, OUR_MACHINE, Some(b"/lib64/ld.so\0"));
        for length in 4..whole.len() {
            let (_keep, file) = Temporary::open("cut", &whole[..length]);
            assert_eq!(inspect(&file).expect("readable"), Elf::Damaged, "{length} bytes");
        }
        for (field, length) in [(32, 8), (54, 2), (HEADER_LEN + 8, 8), (HEADER_LEN + 32, 8)] {
            let mut bytes = whole.clone();
            bytes[field..field + length].fill(0xff);
            let (_keep, file) = Temporary::open("absurd", &bytes);
            assert_eq!(inspect(&file).expect("readable"), Elf::Damaged, "field at {field}");
        }
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let file = File::open("/proc/self/exe").expect("this program");
        assert!(matches!(inspect(&file).expect("readable"), Elf::Dynamic(path) if path.contains("ld-linux")));
    }
}
