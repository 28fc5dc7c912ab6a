//! Options of sockets (setsockopt(2), fcntl(2)).

use crate::configuration::{Configuration, LEAST_SEND_BUFFER, MAX_BUFFER};
use crate::datagram::Datagram;
use crate::stream::{Phase, Stream};
use adverb_core::cancel::CancellationGuard;
use adverb_core::error::{Error, Result};
use adverb_proto::rsocket::{LOW_WATER, from_scale, to_scale};
use std::sync::atomic::{AtomicI32, Ordering};

/// The level of the options that are rsockets' own.
pub const SOL_RDMA: i32 = 0x10000;
const RDMA_SQSIZE: i32 = 0;
const RDMA_RQSIZE: i32 = 1;
const RDMA_INLINE: i32 = 2;
const RDMA_IOMAPSIZE: i32 = 3;
const RDMA_ROUTE: i32 = 4;

const MAX_REQUESTS: u32 = 0xfffe;

/// Bytes of a path as RDMA_ROUTE has it (struct ibv_path_data).
pub const PATH_LENGTH: usize = 72;
/// The most bytes of paths that a program may give.
const MAX_PATHS: usize = 64 * PATH_LENGTH;

/// What fcntl(2) knows of a socket. Thread-safe.
pub(crate) struct Flags {
    status: AtomicI32,
    descriptor: AtomicI32,
}

impl Flags {
    /// The flags that socket(2) takes with the type.
    pub(crate) fn new(kind: i32) -> Self {
        let status = if kind & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
        let descriptor = if kind & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        Self { status: AtomicI32::new(status), descriptor: AtomicI32::new(descriptor) }
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.status.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// fcntl(2): F_GETFL, F_SETFL, F_GETFD, F_SETFD; ENOTSUP for others.
    pub(crate) fn control(&self, command: i32, argument: i32) -> Result<i32> {
        let set = |flags: &AtomicI32| {
            flags.store(argument, Ordering::Relaxed);
            Ok(0)
        };
        match command {
            libc::F_GETFL => Ok(self.status.load(Ordering::Relaxed)),
            libc::F_SETFL => set(&self.status),
            libc::F_GETFD => Ok(self.descriptor.load(Ordering::Relaxed)),
            libc::F_SETFD => set(&self.descriptor),
            _ => Err(Error::new(libc::ENOTSUP, format!("rsockets have no fcntl command {command}"))),
        }
    }
}

/// What setsockopt(2) has set.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The address family.
    pub(crate) domain: i32,
    pub(crate) send_requests: u16,
    pub(crate) receive_requests: u16,
    pub(crate) send_buffer: u32,
    pub(crate) receive_buffer: u32,
    pub(crate) inline: u16,
    pub(crate) mappings: u16,
    /// Paths of RDMA_ROUTE.
    pub(crate) route: Vec<u8>,
    /// Seconds; 0 until it matters.
    keepalive: u32,
    type_of_service: i32,
    /// Switches, a bit for each option of a level.
    socket: u64,
    tcp: u64,
    ipv6: u64,
}

impl Options {
    pub(crate) fn new(domain: i32, configuration: &Configuration) -> Self {
        Self {
            domain,
            send_requests: configuration.send_requests,
            receive_requests: configuration.receive_requests,
            send_buffer: configuration.send_buffer,
            receive_buffer: configuration.receive_buffer,
            inline: configuration.inline,
            mappings: from_scale(to_scale(configuration.mappings)),
            route: Vec::new(),
            keepalive: 0,
            type_of_service: 0,
            socket: 0,
            tcp: 0,
            ipv6: 0,
        }
    }

    /// The options of a socket that a listening socket with these options accepts. It inherits the sizes
    /// alone.
    pub(crate) fn inherited(&self) -> Self {
        Self {
            route: Vec::new(),
            keepalive: 0,
            type_of_service: 0,
            socket: 0,
            tcp: 0,
            ipv6: 0,
            ..self.clone()
        }
    }

    /// The type of service that IP_TOS has set.
    pub(crate) fn traffic_class(&self) -> u8 {
        self.type_of_service as u8
    }

    /// Sets a switch, or a size that any socket has. Whether it was one of those.
    fn set_plain(&mut self, level: i32, name: i32, value: &Value<'_>, sized: bool) -> Result<bool> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if !sized => {
                self.receive_buffer = (value.number()? as u32).saturating_mul(2).clamp(2, MAX_BUFFER);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if !sized => {
                let size = (value.number()? as u32).saturating_mul(2).min(MAX_BUFFER);
                self.send_buffer = if size < LOW_WATER as u32 { LEAST_SEND_BUFFER } else { size };
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            // Kept the other way round: it is on at first.
            (libc::SOL_SOCKET, libc::SO_LINGER) => switch(&mut self.socket, name, value.number()? == 0),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => switch(&mut self.socket, name, value.number()? != 0),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => switch(&mut self.tcp, name, value.number()? != 0),
            (
                libc::IPPROTO_TCP,
                libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
            ) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a size of [`SOL_RDMA`]. Whether it was one.
    fn set_rdma(&mut self, name: i32, value: &Value<'_>) -> Result<()> {
        let requests = || Ok::<u16, Error>((value.number()? as u32).min(MAX_REQUESTS) as u16);
        match name {
            RDMA_SQSIZE => self.send_requests = requests()?,
            RDMA_RQSIZE => self.receive_requests = requests()?,
            RDMA_INLINE => self.inline = requests()?,
            RDMA_IOMAPSIZE => {
                let wanted = value.number()?.clamp(0, i32::from(u16::MAX >> 1)) as u16;
                self.mappings = from_scale(to_scale(wanted));
            }
            RDMA_ROUTE if value.0.len() > MAX_PATHS => {
                return Err(Error::invalid(format!("{} bytes of paths: at most {MAX_PATHS}", value.0.len())));
            }
            RDMA_ROUTE => self.route = value.0.to_vec(),
            _ => return Err(unknown(SOL_RDMA, name)),
        }
        Ok(())
    }

    /// An option that any socket has.
    fn get_plain(&self, level: i32, name: i32) -> Option<Vec<u8>> {
        let is_on = |switches: u64| i32::from(switches >> name & 1 != 0);
        Some(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_KEEPALIVE | libc::SO_OOBINLINE) => {
                bytes(is_on(self.socket))
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => bytes(self.receive_buffer as i32),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => bytes(self.send_buffer as i32),
            (libc::SOL_SOCKET, libc::SO_LINGER) => [bytes(1 - is_on(self.socket)), bytes(0)].concat(),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => bytes(0),
            (libc::IPPROTO_IP, libc::IP_TOS) => bytes(self.type_of_service),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION | libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => bytes(1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => bytes(self.keepalive as i32),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => bytes(is_on(self.tcp)),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => bytes(is_on(self.ipv6)),
            (SOL_RDMA, RDMA_SQSIZE) => bytes(self.send_requests.into()),
            (SOL_RDMA, RDMA_RQSIZE) => bytes(self.receive_requests.into()),
            (SOL_RDMA, RDMA_INLINE) => bytes(self.inline.into()),
            (SOL_RDMA, RDMA_IOMAPSIZE) => bytes(self.mappings.into()),
            _ => return None,
        })
    }
}

fn bytes(number: i32) -> Vec<u8> {
    number.to_ne_bytes().to_vec()
}

fn switch(switches: &mut u64, name: i32, on: bool) {
    *switches = *switches & !(1 << name) | u64::from(on) << name;
}

fn unknown(level: i32, name: i32) -> Error {
    Error::new(libc::ENOTSUP, format!("rsockets have no option {name} of level {level:#x}"))
}

/// What setsockopt(2) was given.
struct Value<'a>(&'a [u8]);

impl Value<'_> {
    fn number(&self) -> Result<i32> {
        let first = self
            .0
            .first_chunk()
            .ok_or_else(|| Error::invalid(format!("{} bytes where the option is an int", self.0.len())))?;
        Ok(i32::from_ne_bytes(*first))
    }
}

impl Stream {
    /// fcntl(2): F_GETFL, F_SETFL, F_GETFD, F_SETFD; ENOTSUP for others.
    pub fn control(&self, command: i32, argument: i32) -> Result<i32> {
        self.flags.control(command, argument)
    }

    /// Sets an option.
    ///
    /// # Errors
    /// ENOTSUP for one that there is not; EINVAL for a value that is none, and for what has to be set before
    /// connecting.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        let _whole = CancellationGuard::new();
        let value = Value(value);
        let mut inner = self.lock();
        let sized = inner.link.is_some();
        if inner.options.set_plain(level, name, &value, sized)? {
            inner.tell_listener();
            return Ok(());
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                let on = value.number()? != 0;
                let set = self.identifier().set_reuse_address(on);
                // A program that sets it too late on a connection does no harm.
                if set.is_err() && inner.phase == Phase::Idle {
                    return set;
                }
                switch(&mut inner.options.socket, name, on);
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                let on = value.number()? != 0;
                switch(&mut inner.options.socket, name, on);
                drop(inner);
                return self.set_keepalive(on);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                let service = value.number()?;
                self.identifier().set_type_of_service(service as u8)?;
                inner.options.type_of_service = service;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let seconds = u32::try_from(value.number()?).ok().filter(|n| *n > 0);
                inner.options.keepalive =
                    seconds.ok_or_else(|| Error::invalid("the keepalive time must be positive"))?;
                drop(inner);
                return self.restart_keepalive();
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                let on = value.number()? != 0;
                self.identifier().set_family_only(on)?;
                switch(&mut inner.options.ipv6, name, on);
            }
            (SOL_RDMA, _) if !matches!(inner.phase, Phase::Idle | Phase::Listening) => {
                return Err(Error::invalid("sizes and route are chosen before connecting"));
            }
            (SOL_RDMA, _) => {
                inner.options.set_rdma(name, &value)?;
                inner.tell_listener();
            }
            _ => return Err(unknown(level, name)),
        }
        Ok(())
    }

    /// An option's value.
    ///
    /// # Errors
    /// ENOTSUP for one that there is not.
    pub fn option(&self, level: i32, name: i32) -> Result<Vec<u8>> {
        let _whole = CancellationGuard::new();
        let mut inner = self.lock();
        if let Some(value) = inner.options.get_plain(level, name) {
            return Ok(value);
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(bytes(std::mem::take(&mut inner.error))),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let path = self.identifier().path_record();
                Ok(bytes(path.map_or(2048, |path| path.mtu as i32)))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                const ESTABLISHED: u8 = 1;
                const CLOSE: u8 = 7;
                const CONGESTION_WINDOW: usize = 80;
                let mut info = vec![0; size_of_tcp_info()];
                info[0] = if inner.phase == Phase::Open { ESTABLISHED } else { CLOSE };
                let window = u32::from(inner.options.send_requests).to_ne_bytes();
                info[CONGESTION_WINDOW..CONGESTION_WINDOW + 4].copy_from_slice(&window);
                Ok(info)
            }
            (SOL_RDMA, RDMA_ROUTE) => {
                if !inner.options.route.is_empty() {
                    return Ok(inner.options.route.clone());
                }
                Ok(self.identifier().path_record().map_or_else(Vec::new, |path| path_data(&path)))
            }
            _ => Err(unknown(level, name)),
        }
    }

    /// The seconds of silence after which the peer is asked.
    pub(crate) fn keepalive_seconds(&self) -> u32 {
        const DEFAULT: u32 = 7200;
        let mut inner = self.lock();
        if inner.options.keepalive == 0 {
            let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
            let found = text.ok().and_then(|text| text.trim().parse().ok()).filter(|n| *n > 0);
            inner.options.keepalive = found.unwrap_or(DEFAULT);
        }
        inner.options.keepalive
    }
}

impl Datagram {
    /// fcntl(2): F_GETFL, F_SETFL, F_GETFD, F_SETFD; ENOTSUP for others.
    pub fn control(&self, command: i32, argument: i32) -> Result<i32> {
        self.flags.control(command, argument)
    }

    /// Sets an option. What is not of rsockets alone is set on the UDP socket, too.
    ///
    /// # Errors
    /// Those of the UDP socket; ENOTSUP and EINVAL for sizes.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        let _whole = CancellationGuard::new();
        if level != SOL_RDMA {
            self.set_udp_option(level, name, value)?;
        }
        let mut inner = self.lock();
        let started = inner.is_started();
        let value = Value(value);
        if level == SOL_RDMA {
            if started {
                return Err(Error::invalid("sizes are chosen before the socket is bound"));
            }
            return inner.options.set_rdma(name, &value);
        }
        inner.options.set_plain(level, name, &value, started)?;
        if (level, name) == (libc::IPPROTO_IP, libc::IP_TOS) {
            inner.options.type_of_service = value.number()?;
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_REUSEADDR) {
            switch(&mut inner.options.socket, name, value.number()? != 0);
        }
        Ok(())
    }

    /// An option's value; ENOTSUP for one that there is not.
    pub fn option(&self, level: i32, name: i32) -> Result<Vec<u8>> {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            return Ok(bytes(0));
        }
        self.lock().options.get_plain(level, name).ok_or_else(|| unknown(level, name))
    }
}

/// Bytes of struct tcp_info, as far as programs of long ago know it.
const fn size_of_tcp_info() -> usize {
    104
}

/// A path as struct ibv_path_data has it.
fn path_data(path: &adverb_core::cm::PathRecord) -> Vec<u8> {
    /// The selector in the fields MTU, rate and life time: exactly this value, and not at least or at most.
    const EXACTLY: u8 = 2 << 6;
    let mut out = vec![0; PATH_LENGTH];
    // Behind the flags comes the record of InfiniBand's subnet administration.
    let record = &mut out[8..];
    record[8..24].copy_from_slice(&path.destination);
    record[24..40].copy_from_slice(&path.source);
    record[44..48].copy_from_slice(&u32::from(path.hop_limit).to_be_bytes());
    record[48] = path.traffic_class;
    const REVERSIBLE_ONE: u8 = 0x81;
    record[49] = REVERSIBLE_ONE;
    record[50..52].copy_from_slice(&path.pkey.to_be_bytes());
    let mtu = path.mtu.trailing_zeros().saturating_sub(7) as u8;
    const RATE_10_GBPS: u8 = 3;
    record[54] = mtu | EXACTLY;
    record[55] = RATE_10_GBPS | EXACTLY;
    record[56] = path.life_time | EXACTLY;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_bounds() {
        let configuration = Configuration::read();
        let mut options = Options::new(libc::AF_INET, &configuration);
        let mut set =
            |level, name, number: i32| options.set_plain(level, name, &Value(&number.to_ne_bytes()), false);
        assert!(set(libc::SOL_SOCKET, libc::SO_SNDBUF, 10).unwrap());
        assert!(set(libc::SOL_SOCKET, libc::SO_RCVBUF, -1).unwrap());
        assert!(set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap());
        assert!(!set(libc::SOL_SOCKET, libc::SO_ERROR, 1).unwrap());
        assert_eq!((options.send_buffer, options.receive_buffer), (4096, MAX_BUFFER));
        assert_eq!(options.get_plain(libc::IPPROTO_TCP, libc::TCP_NODELAY), Some(bytes(1)));
        // Lingering is on until it is switched off.
        assert_eq!(options.get_plain(libc::SOL_SOCKET, libc::SO_LINGER), Some([bytes(1), bytes(0)].concat()));
        for (name, asked, got) in [(RDMA_SQSIZE, -1, 0xfffe), (RDMA_RQSIZE, 3, 3), (RDMA_IOMAPSIZE, 300, 256)]
        {
            options.set_rdma(name, &Value(&i32::to_ne_bytes(asked))).unwrap();
            assert_eq!(options.get_plain(SOL_RDMA, name), Some(bytes(got)));
        }
        assert_eq!(options.set_rdma(9, &Value(&[0; 4])).unwrap_err().errno(), libc::ENOTSUP);
        assert_eq!(options.set_rdma(0, &Value(&[0; 3])).unwrap_err().errno(), libc::EINVAL);
    }
}
