//! Two queue pairs of one process, connected over TCP on loopback, through the transport interface alone.

mod pair;

use adverb_core::cm::ConnectionEvent;
use adverb_core::memory::Access;
use adverb_core::memory::ways::Memory;
use adverb_core::qp::State;
use adverb_core::region::{DeviceMemory, Pages};
use adverb_core::request::{Data, Opcode, ReceiveRequest, Status};
use pair::{TEST_TIMEOUT, connect, fill, memory, poll, request};

#[test]
fn every_operation_moves_the_right_bytes() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (client, server) = connect(address.parse().unwrap());
        for length in [0usize, 1, 8, 255, 256, 257, 4096, 65536, 100_000, 3_000_001] {
            let mut source = memory(&client, length.max(1), Access::LOCAL_WRITE | Access::REMOTE);
            let target = memory(&server, length.max(1), Access::LOCAL_WRITE | Access::REMOTE);
            fill(&mut source, 3);
            // Send.
            let half = length / 2;
            let sges = [target.sge(0, half), target.sge(half, length - half)];
            server.queue_pair.post_receive(&ReceiveRequest { wr_id: 9, sges: &sges }).unwrap();
            let sges = [source.sge(0, length)];
            client.queue_pair.post_send(&request(Opcode::Send, Data::Registered(&sges))).unwrap();
            let received = poll(&server);
            assert_eq!((received.status, received.byte_length), (Status::Success, length as u32));
            assert_eq!(poll(&client).status, Status::Success);
            assert_eq!(source.bytes[..length], target.bytes[..length]);
            // Write.
            fill(&mut source, 5);
            let mut write = request(Opcode::Write, Data::Registered(&sges));
            (write.remote_address, write.rkey) = (target.bytes.as_ptr() as u64, target.region.key());
            client.queue_pair.post_send(&write).unwrap();
            assert_eq!(poll(&client).status, Status::Success);
            // Read back over the same stream: it comes after the write.
            let back = memory(&client, length.max(1), Access::LOCAL_WRITE);
            let sges = [back.sge(0, length)];
            let mut read = request(Opcode::Read, Data::Registered(&sges));
            (read.remote_address, read.rkey) = (target.bytes.as_ptr() as u64, target.region.key());
            client.queue_pair.post_send(&read).unwrap();
            assert_eq!(poll(&client).status, Status::Success);
            assert_eq!(source.bytes[..length], back.bytes[..length]);
        }
        client.queue_pair.destroy();
        assert!(matches!(client.events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Disconnected));
        assert!(matches!(server.events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Disconnected));
    }
}

#[test]
fn a_wrong_key_is_refused_and_nothing_is_touched() {
    let (client, server) = connect("127.0.0.1:0".parse().unwrap());
    let source = memory(&client, 64, Access::LOCAL_WRITE);
    let target = memory(&server, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let sges = [source.sge(0, 64)];
    let mut read = request(Opcode::Read, Data::Registered(&sges));
    (read.remote_address, read.rkey) = (target.bytes.as_ptr() as u64 + 1, target.region.key());
    client.queue_pair.post_send(&read).unwrap();
    assert_eq!(poll(&client).status, Status::RemoteAccess);
    assert!(matches!(client.events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Disconnected));
    assert!(matches!(server.events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Disconnected));
    assert_eq!(client.queue_pair.state(), State::Error);
}

/// A thread that sleeps on the connection's descriptors has asked for what arrives alone: nobody but the
/// background thread waits for room.
#[test]
fn a_post_of_another_thread_leaves_while_one_thread_sleeps() {
    const LENGTH: usize = 1 << 20;
    let (client, server) = connect("127.0.0.1:0".parse().unwrap());
    let mut source = memory(&client, LENGTH, Access::LOCAL_WRITE);
    let target = memory(&server, LENGTH, Access::LOCAL_WRITE | Access::REMOTE);
    client.cq.serve();
    for round in 0..4 {
        source.bytes.fill(round + 1);
        let sleeper = client.cq.begin_sleep().unwrap();
        let (sges, room) = ([source.sge(0, LENGTH)], [target.sge(0, LENGTH)]);
        for _ in 0..32 {
            server.queue_pair.post_receive(&ReceiveRequest { wr_id: 7, sges: &room }).unwrap();
        }
        for _ in 0..32 {
            client.queue_pair.post_send(&request(Opcode::Send, Data::Registered(&sges))).unwrap();
        }
        // Another sleeper comes, knows of the full socket, and goes.
        drop(client.cq.begin_sleep().unwrap());
        // Behind them: nothing here polls, and all the same it leaves.
        let last = [source.sge(0, 8)];
        let mut send = request(Opcode::Send, Data::Registered(&last));
        send.wr_id = 8;
        let room = [target.sge(0, 8)];
        server.queue_pair.post_receive(&ReceiveRequest { wr_id: 9, sges: &room }).unwrap();
        client.queue_pair.post_send(&send).unwrap();
        for wr_id in (0..33).map(|count| if count < 32 { 7 } else { 9 }) {
            let received = poll(&server);
            assert_eq!((received.wr_id, received.status), (wr_id, Status::Success));
        }
        assert_eq!(target.bytes, source.bytes);
        drop(sleeper);
        for _ in 0..33 {
            assert_eq!(poll(&client).status, Status::Success);
        }
    }
    client.queue_pair.destroy();
    assert!(matches!(server.events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Disconnected));
}

/// Peers of this host map the engine's own memory as it is.
#[test]
fn memory_of_the_engine_is_made_where_peers_map_it() {
    let (client, _server) = connect("127.0.0.1:0".parse().unwrap());
    let pages = Pages::for_peers(&client.domain, 4096, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let memory = DeviceMemory::new(client.domain.context(), 4096, 0, 1).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::ZERO_BASED;
    let of_device = memory.register(&client.domain, 0, 4096, access).unwrap();
    for region in [client.domain.region(pages.key()).unwrap(), of_device] {
        assert!(matches!(region.memory(), Memory::Own(_)), "{:?}", region.memory());
    }
}
