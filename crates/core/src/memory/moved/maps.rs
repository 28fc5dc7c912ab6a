//! The mappings of the process: by PROCMAP_QUERY, or from the text of `/proc/self/maps` where the kernel has
//! no such call.

use super::file::Identity;
use super::{Facilities, Refusal};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;

/// The name of a mapping, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Name {
    /// Nothing, `[heap]`, or a name that the program gave to anonymous memory.
    Plain,
    /// `[stack]`: of the main thread.
    Stack,
    /// A System V segment.
    Segment,
    /// Anything else.
    Other,
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) struct Vma {
    pub(in crate::memory) start: usize,
    pub(in crate::memory) end: usize,
    /// In the bits of mmap(2).
    pub(in crate::memory) protection: i32,
    pub(in crate::memory) is_shared: bool,
    /// The offset in the file.
    pub(in crate::memory) offset: u64,
    /// All zero: no file.
    pub(in crate::memory) file: Identity,
    pub(in crate::memory) name: Name,
}

impl Vma {
    pub(super) fn is_anonymous(&self) -> bool {
        self.file.inode == 0 && !matches!(self.name, Name::Other | Name::Segment)
    }
}

/// The mappings of this process.
pub(in crate::memory) struct Maps {
    file: File,
    has_query: bool,
}

fn name_of(text: &[u8]) -> Name {
    match text {
        b"" | b"[heap]" => Name::Plain,
        b"[stack]" => Name::Stack,
        _ if text.starts_with(b"[anon:") => Name::Plain,
        _ if text.starts_with(b"/SYSV") => Name::Segment,
        _ => Name::Other,
    }
}

impl Maps {
    pub(in crate::memory) fn open() -> Result<Self, Refusal> {
        // Of the thread: the main one may have ended, and has no memory then.
        let file = File::open("/proc/thread-self/maps");
        let file = file.map_err(|error| Refusal::because("/proc/thread-self/maps", &error))?;
        Ok(Self { file, has_query: Facilities::get().procmap_query })
    }

    /// The mappings that have bytes in [`start`, `end`), in their order.
    pub(in crate::memory) fn within(&self, start: usize, end: usize) -> Result<Vec<Vma>, Refusal> {
        if !self.has_query {
            let within = |vma: &Vma| vma.start < end && vma.end > start;
            return Ok(parse(&read("/proc/thread-self/maps")?).filter(within).collect());
        }
        let (mut found, mut at) = (Vec::new(), start);
        while at < end {
            match query::next(&self.file, at, 0)? {
                Some(vma) if vma.start < end => {
                    at = vma.end;
                    found.push(vma);
                }
                _ => break,
            }
        }
        Ok(found)
    }

    /// The mappings of a file, anywhere.
    pub(super) fn of_file(&self, file: Identity) -> Result<Vec<Vma>, Refusal> {
        if !self.has_query {
            return Ok(parse(&read("/proc/thread-self/maps")?).filter(|vma| vma.file == file).collect());
        }
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(vma) = query::next(&self.file, at, query::FILE_BACKED)? {
            at = vma.end;
            if vma.file == file {
                found.push(vma);
            }
        }
        Ok(found)
    }
}

/// A file of `/proc` in one piece.
pub(in crate::memory) fn read(path: &'static str) -> Result<Vec<u8>, Refusal> {
    let mut text = Vec::new();
    let done = File::open(path).and_then(|mut file| file.read_to_end(&mut text));
    done.map_err(|error| Refusal::because(path, &error))?;
    Ok(text)
}

fn parse(text: &[u8]) -> impl Iterator<Item = Vma> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// `start-end rwxp offset major:minor inode    name`; None for any other line.
pub(super) fn parse_line(line: &[u8]) -> Option<Vma> {
    let (head, name) = split_fields(line)?;
    let mut fields = head.split(' ').filter(|field| !field.is_empty());
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    if rights.len() != 4 {
        return None;
    }
    let bits = [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)];
    let protection =
        bits.iter().zip(rights).filter(|((letter, _), is)| letter == *is).map(|((_, bit), _)| bit);
    Some(Vma {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        protection: protection.sum(),
        is_shared: rights[3] == b's',
        offset,
        file: Identity {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode,
        },
        name: name_of(name),
    })
}

/// The five fields of a line, and the name behind them, which may have any bytes.
fn split_fields(line: &[u8]) -> Option<(&str, &[u8])> {
    let mut ends = (0..line.len()).filter(|at| line[*at] == b' ' && *at > 0 && line[at - 1] != b' ');
    let head = ends.nth(4).unwrap_or(line.len());
    let name = line[head..].trim_ascii_start();
    Some((std::str::from_utf8(&line[..head]).ok()?, name))
}

/// Mappings with a property that they would lose if they were exchanged, and which it is.
pub(super) struct FlaggedMappings(Vec<(usize, usize, &'static str)>);

impl FlaggedMappings {
    /// The flagged mappings of all that begins below `until`. There is no source for it but `smaps`, which
    /// counts pages as well: so not of more memory than it is quick with.
    pub(super) fn below(until: usize) -> Result<Self, Refusal> {
        const MOST_RESIDENT: u64 = 4 << 20;
        const MOST_TEXT: usize = 16 << 20;
        if status("VmRSS:")? > MOST_RESIDENT {
            return Err(Refusal::Memory(
                "the process has so much memory that looking at its properties takes long",
            ));
        }
        let because = |error| Refusal::because("/proc/thread-self/smaps", &error);
        let file = File::open("/proc/thread-self/smaps").map_err(because)?;
        let mut lines = BufReader::with_capacity(32 << 10, file).split(b'\n');
        let (mut found, mut of, mut length) = (Vec::new(), None, 0);
        while let Some(line) = lines.next().transpose().map_err(because)? {
            length += line.len();
            if let Some(vma) = parse_line(&line) {
                if vma.start >= until {
                    break;
                }
                of = Some((vma.start, vma.end));
            } else if let (Some((start, end)), Some(why)) = (of, property(&line)) {
                found.push((start, end, why));
            }
            if length > MOST_TEXT {
                return Err(Refusal::Memory("there are too many mappings to look at them all"));
            }
        }
        Ok(Self(found))
    }

    pub(super) fn check(&self, start: usize, end: usize) -> Result<(), Refusal> {
        let has = |flagged: &&(usize, usize, &'static str)| flagged.0 < end && flagged.1 > start;
        self.0.iter().find(has).map_or(Ok(()), |(_, _, why)| Err(Refusal::Memory(why)))
    }
}

/// The property that a line of `smaps` tells of.
fn property(line: &[u8]) -> Option<&'static str> {
    if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
        return (key.trim_ascii() != b"0").then_some("it has a protection key");
    }
    line.strip_prefix(b"VmFlags:")?.split(|byte| *byte == b' ').find_map(|flag| {
        Some(match flag {
            b"lo" | b"lf" => "it is locked",
            b"dc" => "children are not to have it (MADV_DONTFORK)",
            b"wf" => "it is wiped in children (MADV_WIPEONFORK)",
            b"dd" => "it is kept out of core files (MADV_DONTDUMP)",
            b"mg" => "its pages may be merged (MADV_MERGEABLE)",
            b"ht" => "it has huge pages of its own",
            b"um" | b"uw" | b"ui" => "it is registered with userfaultfd(2)",
            b"gd" | b"ss" => "it is a stack",
            b"sl" => "it is sealed",
            b"dp" | b"io" | b"pf" | b"mm" => "it is of a device",
            _ => return None,
        })
    })
}

/// A number of `/proc/self/status`, in KiB; 0 where the line is not there.
pub(super) fn status(name: &str) -> Result<u64, Refusal> {
    let text = read("/proc/thread-self/status")?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    Ok(number.unwrap_or(0))
}

/// By PROCMAP_QUERY: the mapping that `address` is in, or else the next one.
pub(in crate::memory) fn next(maps: &File, address: usize) -> Result<Option<Vma>, Refusal> {
    query::next(maps, address, 0)
}

/// The end of the mapping that `address` is in, and its protection, in the bits of mmap(2). `maps` is an open
/// `/proc/PID/maps`.
pub(in crate::memory) fn mapping_at(maps: &File, address: usize) -> Result<Option<(usize, i32)>, Refusal> {
    Ok(query::at(maps, address)?.map(|vma| (vma.end, vma.protection)))
}

/// The mapping that `address` is in, all but its name. `maps` is an open `/proc/PID/maps`.
pub(in crate::memory) fn nameless_at(maps: &File, address: usize) -> Result<Option<Vma>, Refusal> {
    query::at(maps, address)
}

/// Whether the kernel answers PROCMAP_QUERY.
pub(super) fn probe_query() -> bool {
    File::open("/proc/thread-self/maps").is_ok_and(|file| query::next(&file, 0, 0).is_ok())
}

mod query {
    use super::{AsRawFd, File, Identity, Name, Refusal, Vma, name_of};

    /// `struct procmap_query` of <linux/fs.h>.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        size: u64,
        flags: u64,
        address: u64,
        start: u64,
        end: u64,
        vma_flags: u64,
        page_size: u64,
        offset: u64,
        inode: u64,
        major: u32,
        minor: u32,
        name_size: u32,
        build_id_size: u32,
        name: u64,
        build_id: u64,
    }

    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: libc::c_ulong =
        3 << 30 | (size_of::<Query>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 17;
    const SHARED: u64 = 8;
    const COVERING_OR_NEXT: u64 = 16;
    /// Only mappings of files.
    pub(super) const FILE_BACKED: u64 = 32;

    impl Query {
        fn vma(&self, name: Name) -> Vma {
            Vma {
                start: self.start as usize,
                end: self.end as usize,
                // Reading, writing and executing have the bits that mmap(2) gives them.
                protection: (self.vma_flags & 7) as i32,
                is_shared: self.vma_flags & SHARED != 0,
                offset: self.offset,
                file: Identity { major: self.major, minor: self.minor, inode: self.inode },
                name,
            }
        }
    }

    /// The mapping that `address` is in, without a look at its name.
    pub(super) fn at(maps: &File, address: usize) -> Result<Option<Vma>, Refusal> {
        let size = size_of::<Query>() as u64;
        let mut query = Query { size, address: address as u64, ..Query::default() };
        // SAFETY: `query` has the size that it says, and names no buffer.
        match unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } {
            0 => Ok(Some(query.vma(Name::Other))),
            _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) => Ok(None),
            _ => Err(Refusal::system("PROCMAP_QUERY")),
        }
    }

    /// The mapping that `address` is in, or else the next one, if it has `flags`.
    pub(super) fn next(maps: &File, address: usize, flags: u64) -> Result<Option<Vma>, Refusal> {
        let mut name = [0u8; 64];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: COVERING_OR_NEXT | flags,
            address: address as u64,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        let mut has_name = true;
        // SAFETY: `query` has the size that it says, and names a live buffer of the length beside it, or
        // none.
        while unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOENT) => return Ok(None),
                // The name is a longer one: none that matters.
                Some(libc::ENAMETOOLONG | libc::E2BIG) if has_name => {
                    has_name = false;
                    (query.name, query.name_size) = (0, 0);
                }
                _ => return Err(Refusal::system("PROCMAP_QUERY")),
            }
        }
        // With the zero at its end.
        let length = (query.name_size as usize).saturating_sub(1).min(name.len());
        Ok(Some(query.vma(if has_name { name_of(&name[..length]) } else { Name::Other })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_seen() {
        assert_eq!(property(b"VmFlags: rd wr mr mw me ac sd "), None);
        for flag in ["lo", "dc", "wf", "dd", "mg", "ht", "um", "uw", "gd", "sl"] {
            assert!(property(format!("VmFlags: rd wr {flag} ac").as_bytes()).is_some(), "{flag}");
        }
        assert!(property(b"ProtectionKey:         1").is_some());
        assert_eq!(property(b"ProtectionKey:         0"), None);
        assert_eq!(property(b"Rss:                  lo kB"), None);
    }

    #[test]
    fn lines_are_read() {
        let text = b"00400000-00401000 r-xp 00001000 fd:03 4242                       /bin/a b (deleted)\n\
            7f0000000000-7f0000002000 rw-s 00000000 00:01 7                   /memfd:adverb (deleted)\n\
            7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n\
            7f0000003000-7f0000004000 ---p 00000000 00:00 0                   [anon:x y]\n\
            7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                   [stack]\n\
            garbage\n\n5-x rw-p 0 0:0 0\n";
        let all: Vec<Vma> = parse(text).collect();
        let brief: Vec<_> = all.iter().map(|v| (v.protection, v.is_shared, v.file.inode, v.name)).collect();
        assert_eq!(
            brief,
            [
                (5, false, 4242, Name::Other),
                (3, true, 7, Name::Other),
                (3, false, 0, Name::Plain),
                (0, false, 0, Name::Plain),
                (3, false, 0, Name::Stack)
            ]
        );
        assert_eq!((all[0].file.major, all[0].offset), (0xfd, 0x1000));
        assert_eq!((all[1].start, all[1].end), (0x7f00_0000_0000, 0x7f00_0000_2000));
    }

    /// Both ways say the same of everything that does not change while they are asked.
    #[test]
    fn the_query_says_what_the_text_says() {
        let mut maps = Maps::open().unwrap();
        let here = &raw const maps as usize;
        let mut ask = |has_query| {
            maps.has_query = has_query;
            let own = (lines_are_read as *const () as usize, here);
            let code = maps.within(own.0, own.0 + 1).unwrap();
            (code.clone(), maps.of_file(code[0].file).unwrap())
        };
        let text = ask(false);
        assert_eq!((text.0.len(), text.0[0].protection), (1, libc::PROT_READ | libc::PROT_EXEC));
        assert!(text.1.len() > 1 && text.1.contains(&text.0[0]));
        if probe_query() {
            assert_eq!(ask(true), text);
        }
    }
}
