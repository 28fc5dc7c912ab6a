//! Queue pairs connected by numbers, the unreliable services, atomic writes and flushes, and events.

mod ends;

use adverb::{
    AddressHandle, AsyncEvent, Buffer, ConnectionOptions, Context, DATAGRAM_HEADER, DatagramQueuePair,
    DatagramRequest, Error, PostError, RawAddress, Rights, Service, Status, UnreliableRequest, WorkRequest,
};
use ends::{Parts, SOON, each_device, pair, pair_with, parts};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const QKEY: u32 = 0x1111_2222;

/// Contexts of the devices that have a service; the test has one at least.
fn with_service(service: Service, test: impl Fn(&Context)) {
    let contexts = adverb::Device::all().unwrap().into_iter().map(|device| device.open().unwrap());
    let contexts: Vec<_> =
        contexts.filter(|context| context.attributes().services.contains(&service)).collect();
    assert!(!contexts.is_empty());
    contexts.iter().for_each(test);
}

#[test]
fn two_programs_connect_by_numbers_that_they_exchange_over_a_socket() {
    with_service(Service::Uc, |context| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let talk = |mut stream: TcpStream, text: &'static [u8], other: &'static [u8]| {
            let parts = parts(context);
            let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
            queue_pair.post_receive(1, parts.domain.buffer(64).unwrap()).unwrap();
            let own = queue_pair.raw_address(LOCAL).unwrap();
            own.write_to(&mut stream).unwrap();
            let peer = RawAddress::read_from(&mut stream).unwrap();
            let options = ConnectionOptions::new().path_mtu(512).retries(7);
            let connection = queue_pair.connect_raw(&own, &peer, &options).unwrap();
            // Neither side sends before the other one is connected, since retries end after two seconds.
            std::io::Write::write_all(&mut stream, b"c").unwrap();
            std::io::Read::read_exact(&mut stream, &mut [0]).unwrap();
            connection.post_send(WorkRequest::send(text)).unwrap();
            parts.sends.wait(SOON).unwrap().success().unwrap();
            assert_eq!(parts.receives.wait(SOON).unwrap().success().unwrap().message(), other);
            // Neither side ends before the other one has its message.
            std::io::Write::write_all(&mut stream, b"x").unwrap();
            std::io::Read::read_exact(&mut stream, &mut [0]).unwrap();
            let mut queue_pair = connection.into_queue_pair();
            assert!(queue_pair.reset().unwrap().is_empty());
        };
        std::thread::scope(|scope| {
            scope.spawn(|| talk(TcpStream::connect(address).unwrap(), b"to the server", b"to the client"));
            talk(listener.accept().unwrap().0, b"to the client", b"to the server");
        });
    });
}

#[test]
fn wrong_numbers_are_refused_and_the_queue_pair_comes_back() {
    each_device(|device| {
        let context = device.open().unwrap();
        let parts = parts(&context);
        let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
        // iWARP: the connection manager connects.
        let by_numbers = context.attributes().services.contains(&Service::Uc);
        let wanted = if by_numbers { libc::EADDRNOTAVAIL } else { libc::EOPNOTSUPP };
        assert_eq!(queue_pair.raw_address([192, 0, 2, 1].into()).unwrap_err().errno(), wanted);
        let peer = RawAddress { number: 5, first_packet: 7, gid: [0; 16] };
        let own = RawAddress { gid: Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(), ..peer };
        let failed = queue_pair.connect_raw(&own, &peer, &ConnectionOptions::new()).unwrap_err();
        let mut queue_pair = failed.queue_pair;
        queue_pair.reset().unwrap();
        if by_numbers {
            let again =
                queue_pair.connect_raw(&own, &own, &ConnectionOptions::new().path_mtu(3)).unwrap_err();
            assert!(again.to_string().contains("path_mtu 3"), "{again}");
        } else {
            let again = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new()).unwrap_err();
            assert!(matches!(Error::from(again), Error::Invalid(_) | Error::System { .. }));
        }
    });
}

#[test]
fn unreliable_connections_send_and_write() {
    with_service(Service::Uc, |context| {
        let [a, b] = [(); 2].map(|()| parts(context));
        let make = |parts: &Parts| parts.domain.unreliable_queue_pair(parts.options.clone()).unwrap();
        let (of_a, of_b) = (make(&a), make(&b));
        let (at_a, at_b) = (of_a.raw_address(LOCAL).unwrap(), of_b.raw_address(LOCAL).unwrap());
        of_b.post_receive(4, b.domain.buffer(64).unwrap()).unwrap();
        let options = ConnectionOptions::new();
        let from = of_a.connect_raw(&at_a, &at_b, &options).unwrap();
        let to = of_b.connect_raw(&at_b, &at_a, &options).unwrap();
        let region = b.domain.memory_region(64, Rights::WRITE).unwrap();
        from.post_send(UnreliableRequest::write(b"written", &region.remote()).unsignalled()).unwrap();
        let buffer = a.domain.register_buffer(b"sent".to_vec()).unwrap();
        from.post_send(UnreliableRequest::send(buffer).immediate(9).id(3)).unwrap();
        let sent = a.sends.wait(SOON).unwrap().success().unwrap();
        assert_eq!((sent.id, sent.into_buffer().deregister::<Vec<u8>>().unwrap()), (3, b"sent".to_vec()));
        let received = b.receives.wait(SOON).unwrap().success().unwrap();
        assert_eq!(
            (received.message(), received.immediate, received.queue_pair),
            (&b"sent"[..], Some(9), to.number())
        );
        assert_eq!(region.to_vec(..7), b"written");
    });
}

struct Member {
    parts: Parts,
    pair: DatagramQueuePair,
}

impl Member {
    fn new(context: &Context) -> Self {
        let parts = parts(context);
        let pair = parts.domain.datagram_queue_pair(parts.options.clone(), QKEY).unwrap();
        Self { parts, pair }
    }

    fn offer(&self) {
        self.pair.post_receive(1, self.parts.domain.buffer(DATAGRAM_HEADER + 100).unwrap()).unwrap();
    }

    fn received(&self) -> adverb::Completion {
        self.parts.receives.wait(SOON).unwrap().success().unwrap()
    }

    fn send(&self, request: DatagramRequest<'_>) -> Option<Buffer> {
        self.pair.post_send(request).unwrap();
        self.parts.sends.wait(SOON).unwrap().success().unwrap().buffer
    }
}

#[test]
fn a_datagram_is_answered_by_the_way_that_it_came() {
    with_service(Service::Ud, |context| {
        let (asks, answers) = (Member::new(context), Member::new(context));
        answers.offer();
        asks.offer();
        let way = AddressHandle::new(&asks.parts.domain, LOCAL, LOCAL).unwrap();
        let buffer = asks.parts.domain.register_buffer(b"question".to_vec()).unwrap();
        let back = asks.send(DatagramRequest::send(buffer, &way, answers.pair.number(), QKEY).immediate(4));
        assert_eq!(back.unwrap().deregister::<Vec<u8>>().unwrap(), b"question");
        let question = answers.received();
        assert_eq!((question.datagram(), question.immediate), (Some(&b"question"[..]), Some(4)));
        assert_eq!(question.bytes, DATAGRAM_HEADER + 8);
        let way = AddressHandle::of_sender(&answers.parts.domain, &question).unwrap();
        answers.send(DatagramRequest::send(b"answer", &way, question.sender.unwrap(), QKEY));
        let answer = asks.received();
        assert_eq!((answer.datagram(), answer.sender), (Some(&b"answer"[..]), Some(answers.pair.number())));

        // Who has no key is not heard; a handle of another domain is refused.
        answers.offer();
        let way = AddressHandle::new(&asks.parts.domain, LOCAL, LOCAL).unwrap();
        asks.send(DatagramRequest::send(b"stranger", &way, answers.pair.number(), QKEY + 1));
        asks.send(DatagramRequest::send(b"friend", &way, answers.pair.number(), QKEY));
        assert_eq!(answers.received().datagram(), Some(&b"friend"[..]));
        let foreign = AddressHandle::new(&answers.parts.domain, LOCAL, LOCAL).unwrap();
        let buffer = asks.parts.domain.buffer(9).unwrap();
        let request = DatagramRequest::send(buffer, &foreign, answers.pair.number(), QKEY);
        let rejected = asks.pair.post_send(request).unwrap_err();
        assert_eq!((rejected.reason, rejected.buffer.unwrap().len()), (PostError::OtherDomain, 9));
        assert!(AddressHandle::of_sender(&asks.parts.domain, &answer).is_some());
    });
}

#[test]
fn everybody_in_a_group_hears_a_datagram() {
    with_service(Service::Ud, |context| {
        let members = [(); 3].map(|()| Member::new(context));
        let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
        assert_eq!(members[0].pair.join(LOCAL).unwrap_err().errno(), libc::EINVAL);
        for member in &members[..2] {
            member.pair.join(group).unwrap();
            member.offer();
        }
        members[2].offer();
        let way = AddressHandle::multicast(&members[2].parts.domain, LOCAL, group).unwrap();
        members[2].send(DatagramRequest::send(b"everybody", &way, AddressHandle::EVERYBODY, QKEY));
        for member in &members[..2] {
            let heard = member.received();
            assert_eq!(heard.datagram(), Some(&b"everybody"[..]));
            assert!(AddressHandle::of_sender(&member.parts.domain, &heard).is_none(), "by multicast");
        }
        assert!(members[2].parts.receives.poll().unwrap().is_none());
        members[0].pair.leave(group).unwrap();
        assert_eq!(members[0].pair.leave(group).unwrap_err().errno(), libc::EINVAL);
    });
}

#[test]
fn words_are_written_in_one_piece_and_flushed() {
    each_device(|device| {
        let (client, server) = pair_with(device, |parts| parts.options.rights = Rights::all());
        let region = server.domain.memory_region(64, Rights::WRITE | Rights::FLUSH).unwrap();
        let there = region.remote();
        let word =
            WorkRequest::atomic_write(client.domain.buffer(8).unwrap(), &there.slice(8..16).unwrap(), 77);
        let has = |opcode| device.open().unwrap().attributes().operations.contains(&opcode);
        if !has(adverb::Opcode::AtomicWrite) {
            let rejected = client.connection.post_send(word).unwrap_err();
            assert_eq!((rejected.reason, rejected.buffer.unwrap().len()), (PostError::Unsupported, 8));
            return;
        }
        client.connection.post_send(word).unwrap();
        client.connection.post_send(WorkRequest::flush(&there).id(2)).unwrap();
        client.sends.wait(SOON).unwrap().success().unwrap();
        assert_eq!(client.sends.wait(SOON).unwrap().success().unwrap().id, 2);
        assert_eq!(region.word(8).unwrap().load(std::sync::atomic::Ordering::Acquire), 77);
        // Without the right it is refused.
        let closed = server.domain.memory_region(64, Rights::WRITE).unwrap();
        client.connection.post_send(WorkRequest::flush(&closed.remote())).unwrap();
        assert_eq!(client.sends.wait(SOON).unwrap().status, Status::RemoteAccess);
    });
}

#[test]
fn a_peer_that_breaks_a_rule_raises_an_event() {
    each_device(|device| {
        let (client, server) = pair(device);
        let context = server.domain.context();
        assert!(context.next_event(Duration::ZERO).unwrap().is_none());
        let region = server.domain.memory_region(64, Rights::READ).unwrap();
        client.connection.post_send(WorkRequest::write(b"no", &region.remote())).unwrap();
        let number = server.connection.number();
        loop {
            let event = context.next_event(SOON).unwrap().expect("an event");
            if let AsyncEvent::QueuePair { number: of, .. } = event
                && of == number
            {
                assert!(event.to_string().starts_with(&format!("queue pair {number:#x}: ")), "{event}");
                break;
            }
        }
    });
}

#[test]
fn a_device_without_a_service_says_so() {
    let contexts = adverb::Device::all().unwrap().into_iter().map(|device| device.open().unwrap());
    for context in contexts.filter(|context| !context.attributes().services.contains(&Service::Ud)) {
        let parts = parts(&context);
        let error = parts.domain.datagram_queue_pair(parts.options.clone(), QKEY).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        let error = parts.domain.unreliable_queue_pair(parts.options).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    }
}

#[test]
fn a_message_of_an_extended_connection_names_its_queue() {
    with_service(Service::XrcSend, |context| {
        let [here, there] = [(); 2].map(|()| parts(context));
        let xrc = context.xrc_domain().unwrap();
        let small = context.completion_queue(16).unwrap();
        let error = xrc.receive_queue(&there.domain, &small, 64, 1).unwrap_err().to_string();
        assert!(error.contains("no room for the 64 receives"), "{error}");
        let queues = [(); 2].map(|()| xrc.receive_queue(&there.domain, &there.receives, 8, 1).unwrap());
        for (id, queue) in (0..).zip(&queues) {
            for buffer in there.domain.buffers(4, 64).unwrap() {
                queue.post_receive(id, buffer).unwrap();
            }
        }
        let (target, initiator) =
            (xrc.target().unwrap(), here.domain.xrc_initiator(here.options.clone()).unwrap());
        let (from, to) = (initiator.raw_address(LOCAL).unwrap(), target.raw_address(LOCAL).unwrap());
        let options = ConnectionOptions::new().no_receive_retries(0);
        target.connect_raw(&to, &from, &options).unwrap();
        let connection = initiator.connect_raw(&from, &to, &options).unwrap();
        for (id, queue) in [(1, &queues[1]), (0, &queues[0]), (1, &queues[1])] {
            let buffer = here.domain.register_buffer(vec![9; 5]).unwrap();
            connection.post_send(queue.number(), WorkRequest::send(buffer)).unwrap();
            let received = there.receives.wait(SOON).unwrap().success().unwrap();
            assert_eq!((received.id, received.message()), (id, &[9; 5][..]));
            assert_eq!(received.queue_pair, target.number());
            here.sends.wait(SOON).unwrap().success().unwrap();
        }
        // A queue that goes takes its completions along, and its receives; messages for it fail.
        there.receives.arm().unwrap();
        connection.post_send(queues[0].number(), WorkRequest::send(b"unheard")).unwrap();
        here.sends.wait(SOON).unwrap().success().unwrap();
        let [first, second] = queues;
        let number = first.number();
        drop(first);
        assert!(there.receives.poll().unwrap().is_none());
        connection.post_send(number, WorkRequest::send(b"too late")).unwrap();
        assert_ne!(here.sends.wait(SOON).unwrap().status, Status::Success);
        drop((xrc, target, second));
        assert!(there.receives.poll().unwrap().is_none());
    });
}
