//! What the process has mapped where: by PROCMAP_QUERY, or from the text of `/proc/self/maps` where the kernel has no such call.

use super::file::Identity;
use super::{Facilities, Refusal};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

/// What a mapping is called, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// Nothing, `[heap]`, or a name that the program gave to anonymous memory.
    Plain,
    /// `[stack]`: of the main thread.
    Stack,
    /// Anything else.
    Other,
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) start: usize,
    pub(super) end: usize,
    /// In the bits of mmap(2).
    pub(super) protection: i32,
    pub(super) is_shared: bool,
    /// Of the file.
    pub(super) offset: u64,
    /// All zero: no file.
    pub(super) file: Identity,
    pub(super) name: Name,
}

impl Vma {
    pub(super) fn is_anonymous(&self) -> bool {
        self.file.inode == 0 && self.name != Name::Other
    }

    /// The part of it that shows the piece [`from`, `end`) of its file: address, offset, length.
    pub(super) fn part(&self, from: u64, end: u64) -> Option<(usize, u64, usize)> {
        let last = self.offset + (self.end - self.start) as u64;
        let (first, last) = (from.max(self.offset), end.min(last));
        (first < last).then(|| (self.start + (first - self.offset) as usize, first, (last - first) as usize))
    }
}

/// The mappings of this process.
pub(super) struct Maps {
    file: File,
    has_query: bool,
}

fn name_of(text: &[u8]) -> Name {
    match text {
        b"" | b"[heap]" => Name::Plain,
        b"[stack]" => Name::Stack,
        _ if text.starts_with(b"[anon:") => Name::Plain,
        _ => Name::Other,
    }
}

impl Maps {
    pub(super) fn open() -> Result<Self, Refusal> {
        // Of the thread: the main one may have ended, and has no memory then.
        let file = File::open("/proc/thread-self/maps");
        let file = file.map_err(|error| Refusal::because("/proc/thread-self/maps", &error))?;
        Ok(Self { file, has_query: Facilities::get().procmap_query })
    }

    /// The text of it.
    pub(super) fn text(&self) -> Result<Vec<u8>, Refusal> {
        read("/proc/thread-self/maps")
    }

    /// The mappings that have bytes in [`start`, `end`), in their order.
    pub(super) fn within(&self, start: usize, end: usize) -> Result<Vec<Vma>, Refusal> {
        if !self.has_query {
            let within = |vma: &Vma| vma.start < end && vma.end > start;
            return Ok(parse(&self.text()?).filter(within).collect());
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
            return Ok(parse(&self.text()?).filter(|vma| vma.file == file).collect());
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
pub(super) fn read(path: &'static str) -> Result<Vec<u8>, Refusal> {
    let mut text = Vec::new();
    let done = File::open(path).and_then(|mut file| file.read_to_end(&mut text));
    done.map_err(|error| Refusal::because(path, &error))?;
    Ok(text)
}

fn parse(text: &[u8]) -> impl Iterator<Item = Vma> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// `start-end rwxp offset major:minor inode    name`; None for what is no such line.
fn parse_line(line: &[u8]) -> Option<Vma> {
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

/// Whether a mapping in [`start`, `end`) is locked (mlock(2)).
pub(super) fn has_locked(start: usize, end: usize) -> Result<bool, Refusal> {
    if locked_kib()? == 0 {
        return Ok(false);
    }
    let text = read("/proc/thread-self/smaps")?;
    let mut inside = false;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(vma) = parse_line(line) {
            inside = vma.start < end && vma.end > start;
        } else if inside
            && line.starts_with(b"VmFlags:")
            && line.split(|byte| *byte == b' ').any(|flag| flag == b"lo")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How much of the process is locked.
pub(super) fn locked_kib() -> Result<u64, Refusal> {
    let text = read("/proc/thread-self/status")?;
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(b"VmLck:"));
    let number = line.and_then(|line| {
        let text = std::str::from_utf8(line).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    });
    // A process without the line has nothing locked.
    Ok(number.unwrap_or(0))
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
        // SAFETY: `query` has the size that it says, and names a live buffer of the length beside it, or none.
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
        Ok(Some(Vma {
            start: query.start as usize,
            end: query.end as usize,
            // Reading, writing and executing have the bits that mmap(2) gives them.
            protection: (query.vma_flags & 7) as i32,
            is_shared: query.vma_flags & SHARED != 0,
            offset: query.offset,
            file: Identity { major: query.major, minor: query.minor, inode: query.inode },
            name: if has_name { name_of(&name[..length]) } else { Name::Other },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(all[0].part(0, 0x1800), Some((0x40_0000, 0x1000, 0x800)));
        assert_eq!(all[0].part(0, 0x1000), None);
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
