//! Warnings without a level that the user has set, among the errors of a program.

use super::write_to;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most lines of a process.
const MOST: u32 = 20;
/// A longer line would not fit into a pipe that has room (pipe(7), PIPE_BUF).
const LONGEST: usize = 4096;

/// A descriptor that lines go to, as long as it leads to the same file.
pub(super) struct WarningOutput {
    fd: libc::c_int,
    /// Device and number of the file. None: there is none, or one of the program's data.
    file: Option<(u64, u64)>,
    lines: AtomicU32,
}

impl WarningOutput {
    /// For the file that the descriptor leads to now. `run`: the standard error of `adverb run`, as [`name`]
    /// has it.
    pub(super) fn new(fd: libc::c_int, run: Option<&str>) -> Self {
        let is_of_run = run.is_some_and(|run| name(fd).as_deref() == Some(run));
        Self { fd, file: file(fd).filter(|_| is_of_run || !is_data(fd)), lines: AtomicU32::new(0) }
    }

    /// Writes one of the few lines. The last of them says that there are no more.
    pub(super) fn write(&self, line: &str) -> io::Result<()> {
        if self.lines.load(Ordering::Relaxed) >= MOST {
            return Ok(());
        }
        self.check()?;
        match self.lines.fetch_add(1, Ordering::Relaxed) {
            before if before + 1 < MOST => self.put(line),
            before if before + 1 == MOST => self.put(&format!(
                "adverb[{}] warning: no more warnings are shown: adverb run --log warn shows all\n",
                std::process::id()
            )),
            _ => Ok(()),
        }
    }

    /// A line beside those.
    pub(super) fn write_one_more(&self, line: &str) -> io::Result<()> {
        self.check()?;
        self.put(line)
    }

    /// Whether the descriptor is still of the same file, and the file has room.
    fn check(&self) -> io::Result<()> {
        if self.file.is_none() || file(self.fd) != self.file {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut polled = libc::pollfd { fd: self.fd, events: libc::POLLOUT, revents: 0 };
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: one live pollfd, a live time, and no mask. By the system call, since the function may be
        // the rsockets' own.
        let ready =
            unsafe { libc::syscall(libc::SYS_ppoll, &raw mut polled, 1, &raw const at_once, no_mask, 0) };
        match ready == 1 && polled.revents == libc::POLLOUT {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn put(&self, line: &str) -> io::Result<()> {
        let bytes = line.as_bytes();
        match bytes.get(..LONGEST - 1) {
            Some(first) if bytes.len() > LONGEST => write_to(self.fd, &[first, b"\n"].concat()),
            _ => write_to(self.fd, bytes),
        }
    }
}

fn status(fd: libc::c_int) -> Option<libc::stat> {
    // SAFETY: all zero is a valid structure, and there is room for it.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut status) == 0).then_some(status)
    }
}

fn file(fd: libc::c_int) -> Option<(u64, u64)> {
    status(fd).map(|status| (status.st_dev, status.st_ino))
}

/// The device and the number of the file that a descriptor leads to, as text.
pub(super) fn name(fd: libc::c_int) -> Option<String> {
    file(fd).map(|(device, number)| format!("{device}-{number}"))
}

/// A program that closes its standard error may get the descriptor for a file of its own. Such a file is
/// read, too, and a file of errors is not.
fn is_data(fd: libc::c_int) -> bool {
    // SAFETY: plain numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let is_file = status(fd).is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFREG);
    is_file && flags & libc::O_ACCMODE != libc::O_WRONLY
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write, pipe};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_few_lines_and_none_into_a_full_pipe() {
        let (mut reader, mut writer) = pipe().unwrap();
        let unasked = WarningOutput::new(writer.as_raw_fd(), None);
        // SAFETY: plain numbers.
        let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
        let mut all = vec![b'x'; room as usize];
        writer.write_all(&all).unwrap();
        assert_eq!(unasked.write("lost\n").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        reader.read_exact(&mut all).unwrap();
        for _ in 0..2 * MOST {
            unasked.write("said\n").unwrap();
        }
        unasked.write_one_more(&"y".repeat(2 * LONGEST)).unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().filter(|line| *line == "said").count(), MOST as usize - 1, "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.len() == MOST as usize + 1 && lines[MOST as usize - 1].ends_with("--log warn shows all"),
            "{text}"
        );
        assert_eq!(lines[MOST as usize].len(), LONGEST - 1, "cut");
    }

    #[test]
    fn a_file_of_the_program_gets_no_line() {
        let name = std::env::temp_dir().join(format!("adverb-unasked-{}", std::process::id()));
        let (_reader, writer) = pipe().unwrap();
        let unasked = WarningOutput::new(writer.as_raw_fd(), None);
        unasked.write("said\n").unwrap();
        let data = File::options().read(true).write(true).create(true).truncate(true).open(&name).unwrap();
        // SAFETY: open descriptors; the file's takes the place of the pipe's.
        assert!(unsafe { libc::dup2(data.as_raw_fd(), writer.as_raw_fd()) } >= 0);
        assert_eq!(unasked.write("x\n").unwrap_err().kind(), io::ErrorKind::NotFound);
        let (fd, of_run) = (data.as_raw_fd(), super::name(data.as_raw_fd()));
        assert!(
            WarningOutput::new(fd, Some("1-1")).write("x\n").is_err(),
            "the first call finds a file of data"
        );
        assert_eq!(std::fs::read(&name).unwrap(), b"");
        let errors = File::options().append(true).open(&name).unwrap();
        WarningOutput::new(errors.as_raw_fd(), None).write("x\n").unwrap();
        assert_eq!(std::fs::read(&name).unwrap(), b"x\n");
        // A test that reads later what a run has said.
        WarningOutput::new(fd, of_run.as_deref()).write("y\n").unwrap();
        assert_eq!(std::fs::read(&name).unwrap(), b"y\n");
        std::fs::remove_file(name).unwrap();
    }
}
