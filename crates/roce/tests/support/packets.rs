//! Packets made by hand, and a plain UDP socket that sends them. Where a queue pair hears, it asks as another
//! process would.
#![allow(dead_code, reason = "no test needs all of it")]

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Side, TEST_TIMEOUT};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, Deth, HeaderWriter, ICRC_LEN, MAX_HEADER, padding};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN, Header, MAD_LEN, Mad, Vendor, method};
use adverb_wire::ib::opcode::{Opcode, Operation, Service as WireService};
use adverb_wire::ib::packet::Packet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// The port of RoCE.
pub(crate) const ROCE: u16 = 4791;

/// The peer's socket.
pub(crate) struct Peer {
    pub(crate) socket: UdpSocket,
    pub(crate) address: SocketAddr,
}

impl Peer {
    pub(crate) fn at(address: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let address = socket.local_addr().unwrap();
        Self { socket, address }
    }

    pub(crate) fn set(&self, level: i32, option: i32, value: i32) {
        let length = size_of::<i32>() as libc::socklen_t;
        let fd = self.socket.as_raw_fd();
        // SAFETY: four bytes of a live local.
        let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) };
        assert_eq!(result, 0);
    }

    pub(crate) fn crc(&self, to: SocketAddr) -> FlowCrc {
        FlowCrc::new(&Flow {
            source: self.address.ip(),
            destination: to.ip(),
            source_port: self.address.port(),
            destination_port: to.port(),
        })
    }

    /// Sends a packet, to which the invariant CRC is appended.
    pub(crate) fn send(&self, to: SocketAddr, packet: &[u8]) {
        let mut crc = self.crc(to).seed(0, packet.len() + ICRC_LEN);
        crc.begin(packet);
        self.send_raw(to, &[packet, &crc.finish().to_le_bytes()].concat());
    }

    pub(crate) fn send_raw(&self, to: SocketAddr, datagram: &[u8]) {
        assert_eq!(self.socket.send_to(datagram, to).unwrap(), datagram.len());
    }

    /// A management datagram as a packet.
    pub(crate) fn ask(number: u32, transaction: u64, qkey: u32) -> Vec<u8> {
        datagram(GSI_QPN, qkey, &question(number, 0, transaction))
    }

    /// The next answer to such a question: its transaction, and the port that it names.
    pub(crate) fn answer(&self) -> (u64, u16) {
        let mut buffer = [0; 2048];
        let (count, from) = self.socket.recv_from(&mut buffer).expect("an answer");
        assert!(self.crc_back(from).verify(&buffer[..count]));
        let packet = Packet::parse(&buffer[..count]).unwrap();
        assert_eq!((packet.bth().destination(), packet.bth().pkey()), (GSI_QPN, DEFAULT_PKEY));
        assert_eq!(packet.deth().unwrap().qkey.get(), GSI_QKEY);
        let mad = Mad::parse(packet.payload().bytes().unwrap()).unwrap();
        assert_eq!(mad.header.method, method::GET_RESPONSE);
        let data = &mad.vendor().unwrap().data;
        (mad.header.transaction_id.get(), u16::from_be_bytes([data[4], data[5]]))
    }

    pub(crate) fn crc_back(&self, from: SocketAddr) -> FlowCrc {
        FlowCrc::new(&Flow {
            source: from.ip(),
            destination: self.address.ip(),
            source_port: from.port(),
            destination_port: self.address.port(),
        })
    }

    /// Where the queue pair of a side hears.
    pub(crate) fn find(&self, side: &Side, site: &Site) -> SocketAddr {
        self.send(site.at(ROCE), &Self::ask(side.queue_pair.number(), 7, GSI_QKEY));
        site.at(self.answer().1)
    }
}

pub(crate) fn opcode(service: WireService, operation: Operation) -> Opcode {
    Opcode::new(service, operation).unwrap()
}

/// A packet without its CRC: the headers, the payload, padding.
pub(crate) fn packet(bth: Bth, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut buffer = [0; MAX_HEADER];
    let length = HeaderWriter::new(&mut buffer).put(&bth.with_pad_for(payload.len())).len();
    [&buffer[..length], extensions, payload, &[0; 3][..padding(payload.len())]].concat()
}

pub(crate) fn send_only(side: &Side, psn: u32, payload: &[u8]) -> Vec<u8> {
    let bth =
        Bth::new(opcode(WireService::Rc, Operation::SendOnly), DEFAULT_PKEY, side.queue_pair.number(), psn);
    packet(bth.with_ack_request(true), &[], payload)
}

pub(crate) fn datagram(number: u32, qkey: u32, payload: &[u8]) -> Vec<u8> {
    let mut buffer = [0; MAX_HEADER];
    let length = HeaderWriter::new(&mut buffer).put(&Deth::new(qkey, GSI_QPN)).len();
    let bth = Bth::new(opcode(WireService::Ud, Operation::SendOnly), DEFAULT_PKEY, number, 0);
    packet(bth, &buffer[..length], payload)
}

/// Where does a queue pair live? A question of adverb's own, in the name of `asker`.
pub(crate) fn question(number: u32, asker: u32, transaction: u64) -> [u8; MAD_LEN] {
    let mut question = Vendor::new([0x02, 0xad, 0x7b], [0; _]);
    question.data[..4].copy_from_slice(&number.to_be_bytes());
    question.data[10..14].copy_from_slice(&asker.to_be_bytes());
    question.with_header(Header::new(0x3d, 1, method::GET, transaction, 1)).to_bytes()
}
