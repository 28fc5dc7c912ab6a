//! Over RoCE: peers that ask for connections and then say nothing keep nobody else out.

use adverb_core::transport::TransportFactory;
use adverb_proto::rsocket::{Connect, Target};
use adverb_rsocket::{Socket, find, socket};
use adverb_wire::ib::cm::{IpAddresses, Message, Path, Req, gid, port_space, private_data, service_id};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, Deth, HeaderWriter, ICRC_LEN, MAX_HEADER};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The port of RoCE.
const ROCE: u16 = 4791;

static TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];

fn stream() -> Socket {
    adverb_core::engine::install(TRANSPORTS);
    find(socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap()).unwrap()
}

/// Does something that may wait, within bounded time.
fn soon<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(TEST_TIMEOUT).unwrap()
}

/// Asks for a connection of rsockets in the name of a host that takes no answer.
fn ask(socket: &UdpSocket, whom: SocketAddr, number: u32) {
    let own = socket.local_addr().unwrap();
    let place = Target { address: 1 << 20, key: 7, length: 2 };
    let introduction = Connect { big_endian: false, credits: 384, mappings: 0, targets: place, data: place };
    let addresses = IpAddresses { source_port: own.port(), source: own.ip(), destination: whom.ip() };
    let request = Req {
        service_id: service_id(port_space::TCP, whom.port()),
        local_communication_id: number,
        local_qpn: number,
        local_ca_guid: 9,
        starting_psn: 1,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        max_cm_retries: 15,
        retry_count: 7,
        rnr_retry_count: 7,
        pkey: DEFAULT_PKEY,
        // 1024 bytes.
        path_mtu: 3,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: gid(own.ip()),
            remote_gid: gid(whom.ip()),
            packet_rate: 3,
            hop_limit: 64,
            local_ack_timeout: 19,
            ..Path::default()
        },
        private_data: private_data(&[&addresses.to_bytes()[..], &introduction.bytes()].concat()).unwrap(),
        ..Req::default()
    };
    let mut space = [0; MAX_HEADER];
    let opcode = Opcode::new(Service::Ud, Operation::SendOnly).unwrap();
    let (bth, deth) = (Bth::new(opcode, DEFAULT_PKEY, GSI_QPN, 0), Deth::new(GSI_QKEY, GSI_QPN));
    let length = HeaderWriter::new(&mut space).put(&bth).put(&deth).len();
    let mut packet = [&space[..length], &Message::from(request).to_mad(number.into()).to_bytes()].concat();
    let (source, destination) = (own.ip(), whom.ip());
    let flow = Flow { source, destination, source_port: own.port(), destination_port: ROCE };
    let mut crc = FlowCrc::new(&flow).seed(0, packet.len() + ICRC_LEN);
    crc.begin(&packet);
    packet.extend_from_slice(&crc.finish().to_le_bytes());
    socket.send_to(&packet, (whom.ip(), ROCE)).unwrap();
}

#[test]
fn requests_that_nobody_follows_up_keep_nobody_out() {
    const SILENT: u32 = 80;
    let listener = stream();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    listener.listen(4).unwrap();
    // Each that is accepted has a queue pair.
    let device = adverb_core::device::Device::all().unwrap().remove(0);
    let accepted = || device.counters().queue_pairs.get();
    let before = accepted();
    let silent = UdpSocket::bind((Ipv4Addr::new(127, 0, 9, 9), 0)).unwrap();
    // One after the other: more at once than the backlog are refused. One that is lost is sent again after a
    // while; nothing comes back.
    silent.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    for number in 1..=SILENT {
        for look in 0u32.. {
            if accepted() >= before + u64::from(number) {
                break;
            }
            assert!(Instant::now() < deadline, "{} of {SILENT} have come", accepted() - before);
            if look.is_multiple_of(200) {
                ask(&silent, address, number);
            }
            let _ = silent.recv(&mut [0; 512]);
        }
    }
    let client = soon(move || {
        let client = stream();
        client.connect(address).map(|()| client)
    })
    .unwrap();
    let own = client.local_address().unwrap();
    let (_, peer) = soon(move || listener.accept()).unwrap();
    assert_eq!(peer, own);
}
