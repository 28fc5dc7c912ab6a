//! A packet socket on one interface.

use adverb_core::error::{Error, Result};
use adverb_core::fork::{self, ForkGeneration};
use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;

/// Largest frame: the kernel may have put it together from several that came in.
pub(super) const MOST: usize = (1 << 16) + 32;
/// Bytes that may wait in the socket, with the kernel's own memory for each frame.
const ROOM: i32 = 4 << 20;
/// Both Ethernet addresses, behind which a VLAN tag stands.
const ADDRESSES: usize = 12;
const TAG: usize = 4;

/// A packet socket on one interface. Non-blocking.
pub(super) struct PacketSocket {
    fd: RawFd,
    interface: i32,
    born: ForkGeneration,
}

/// The outcome of a receive.
pub(super) enum FrameReceipt {
    /// A frame of so many bytes, from this place of the buffer on.
    Frame(usize, usize),
    /// Something that is no frame from outside.
    Other,
    /// Nothing was there.
    Nothing,
}

impl PacketSocket {
    /// A socket that hears nothing yet.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW.
    pub(super) fn open(interface: u32) -> Result<Self> {
        // SAFETY: plain numbers.
        let fd = unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
        };
        if fd < 0 {
            return Err(Error::system("a packet socket, for which a program needs CAP_NET_RAW"));
        }
        fork::own_descriptor(fd);
        let socket = Self { fd, interface: interface as i32, born: ForkGeneration::now() };
        socket.set(libc::PACKET_AUXDATA, &1i32)?;
        // Since Linux 4.20. On older kernels, frames that go out are recognized by their address.
        const PACKET_IGNORE_OUTGOING: i32 = 23;
        let _ = socket.set(PACKET_IGNORE_OUTGOING, &1i32);
        // The default holds some ninety frames, and they come in bursts. A process with the right to raises
        // it beyond the host's limit; any other raises it up to that limit.
        for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            if socket.set_at(libc::SOL_SOCKET, option, &ROOM).is_ok() {
                break;
            }
        }
        socket.bind(0)?;
        Ok(socket)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Hears everything on the interface, also frames that are not addressed to it, or nothing any more.
    pub(super) fn listen(&self, on: bool) -> Result<()> {
        let membership = libc::packet_mreq {
            mr_ifindex: self.interface,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let option = if on { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        // It only widens the adapter's filter.
        let _ = self.set(option, &membership);
        self.bind(if on { libc::ETH_P_ALL as u16 } else { 0 })
    }

    fn bind(&self, protocol: u16) -> Result<()> {
        // SAFETY: zeroed memory is an address of numbers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.interface;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: a live address of this length.
        if unsafe { libc::bind(self.fd, (&raw const address).cast(), length) } != 0 {
            return Err(Error::system("binding a packet socket"));
        }
        Ok(())
    }

    fn set<T>(&self, option: i32, value: &T) -> Result<()> {
        self.set_at(libc::SOL_PACKET, option, value)
    }

    fn set_at<T>(&self, level: i32, option: i32, value: &T) -> Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: a live value of this length.
        let done =
            unsafe { libc::setsockopt(self.fd, level, option, std::ptr::from_ref(value).cast(), length) };
        if done == 0 { Ok(()) } else { Err(Error::system("an option of a packet socket")) }
    }

    /// Sends a frame. No cancellation point.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let (flags, none) = (libc::MSG_NOSIGNAL as libc::c_long, 0 as libc::c_long);
        // SAFETY: a live buffer of this length, and no address.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendto, self.fd, frame.as_ptr(), frame.len(), flags, none, none)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes a frame. A VLAN tag that the kernel has taken out stands in it again. No cancellation point.
    pub(super) fn receive(&self, buffer: &mut [u8; MOST]) -> FrameReceipt {
        // Room in front, for the tag.
        let place = &mut buffer[TAG..];
        let mut part = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
        let mut control = [0u64; 8];
        // SAFETY: zeroed memory is an address and a header of numbers and null pointers.
        let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: all that the header points to is live.
        let count = unsafe { libc::syscall(libc::SYS_recvmsg, self.fd, &raw mut message, 0) };
        if count < 0 {
            return FrameReceipt::Nothing;
        }
        if from.sll_pkttype == libc::PACKET_OUTGOING || count < ADDRESSES as i64 + 2 {
            return FrameReceipt::Other;
        }
        let count = count as usize;
        let Some((tag, kind)) = vlan_of(&message) else { return FrameReceipt::Frame(TAG, count) };
        buffer.copy_within(TAG..TAG + ADDRESSES, 0);
        buffer[ADDRESSES..][..2].copy_from_slice(&kind.to_be_bytes());
        buffer[ADDRESSES + 2..][..2].copy_from_slice(&tag.to_be_bytes());
        FrameReceipt::Frame(0, count + TAG)
    }
}

/// The VLAN tag, and its type, that the kernel has taken out of a frame.
fn vlan_of(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: recvmsg has filled in the control messages, and their lengths are looked at before they are
    // read.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = at.as_ref() {
            let size = libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) as usize;
            if header.cmsg_level == libc::SOL_PACKET
                && header.cmsg_type == libc::PACKET_AUXDATA
                && header.cmsg_len >= size
            {
                let data = libc::CMSG_DATA(at).cast::<libc::tpacket_auxdata>().read_unaligned();
                let has = data.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
                let kind = if data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                    data.tp_vlan_tpid
                } else {
                    libc::ETH_P_8021Q as u16
                };
                return has.then_some((data.tp_vlan_tci, kind));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    None
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        if self.born.is_here() {
            fork::disown_descriptor(self.fd);
            // SAFETY: ours; no other thread uses it any more.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
        }
    }
}
