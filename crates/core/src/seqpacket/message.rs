//! Messages as they are received, with descriptors and senders.

use super::{Along, PassedFd, SENDER_CONTROL, overflow, own_user};
use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Receives a message, its descriptors and its sender. Never waits. Returns its length, as far as it has room
/// in `buffer`, and the flags of the answer.
pub(super) fn receive_message(
    fd: RawFd,
    buffer: &mut [u8],
    control: &mut [u64],
    flags: libc::c_int,
) -> io::Result<(usize, libc::c_int, Along)> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut along = Along::default();
    // SAFETY: the header names live locals. The kernel's control messages lie within the buffer that it was
    // given. The descriptors in them are new, and no other part of the process has them.
    let (count, flags) = unsafe {
        let mut head: libc::msghdr = zeroed();
        head.msg_iov = &raw mut vector;
        head.msg_iovlen = 1;
        head.msg_control = control.as_mut_ptr().cast();
        head.msg_controllen = size_of_val(control);
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let count = libc::syscall(libc::SYS_recvmsg, fd, &raw mut head, flags);
        let mut message = if count < 0 { std::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(&raw const head) };
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(message).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    let descriptor = OwnedFd::from_raw_fd(data.add(index).read_unaligned());
                    // One too many closes.
                    let _ = along.descriptors.try_push(PassedFd::new(descriptor));
                }
            }
            if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_CREDENTIALS {
                let sender: libc::ucred = std::ptr::read_unaligned(libc::CMSG_DATA(message).cast());
                along.sender = Some(sender.pid);
                // A user without a number here stands for any other such user.
                along.is_same_user =
                    Some(sender.uid) == own_user() && (sender.pid > 0 || sender.uid != overflow());
            }
            message = libc::CMSG_NXTHDR(&raw const head, message);
        }
        (count, head.msg_flags)
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok((count as usize, flags, along)) }
}

/// The message that is received next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextMessage {
    /// No message: the other has gone.
    None,
    /// A message without descriptors.
    Plain,
    /// A message with descriptors.
    WithDescriptors,
}

/// Looks at the message that is received next, and leaves it where it is. For sockets that learn senders.
///
/// # Errors
/// EAGAIN if there is none now.
pub(super) fn peek(fd: RawFd) -> io::Result<NextMessage> {
    // There is room for the sender, which is named first, and none for descriptors.
    let (count, flags, along) = receive_message(fd, &mut [0; 1], &mut [0; SENDER_CONTROL], libc::MSG_PEEK)?;
    Ok(if flags & libc::MSG_CTRUNC != 0 || !along.descriptors.is_empty() {
        NextMessage::WithDescriptors
    } else if count > 0 || along.sender.is_some() {
        NextMessage::Plain
    } else {
        NextMessage::None
    })
}
