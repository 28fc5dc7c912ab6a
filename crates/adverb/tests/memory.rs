//! Memory that the program owns, lists of segments, and requests that report nothing.

mod ends;

use adverb::{
    Buffer, Context, Device, FileMapping, Mapping, MemoryRegion, PostError, RemoteMemory, Rights, Segments,
    Status, WorkRequest,
};
use ends::{End, SOON, each_device, pair, pair_with};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + (index >> 8)) as u8).collect()
}

/// Writes all of `buffer` to the beginning of `there`, and has it back.
fn write(from: &End, buffer: Buffer, there: &RemoteMemory) -> Buffer {
    from.connection.post_send(WorkRequest::write(buffer, there)).unwrap();
    from.sends.wait(SOON).unwrap().success().unwrap().into_buffer()
}

#[test]
fn memory_of_the_program_is_used_and_given_back() {
    each_device(|device| {
        let (client, server) = pair(device);
        for length in [1usize, 7, 8, 100, 5000, 1 << 20] {
            let bytes = pattern(length);
            let vector = client.domain.register_buffer(bytes.clone()).unwrap();
            let boxed = client.domain.register_buffer(bytes.clone().into_boxed_slice()).unwrap();
            let mut mapping = Mapping::new(length).unwrap();
            mapping.copy_from_slice(&bytes);
            let mapping = client.domain.register_buffer(mapping).unwrap();
            for (seed, source) in [vector, boxed, mapping].into_iter().enumerate() {
                let target = server.domain.register(vec![0u8; length], Rights::WRITE).unwrap();
                let source = write(&client, source, &target.remote());
                // A read behind the write has the write's bytes: the target's owner may look.
                match seed {
                    0 => assert_eq!(source.deregister::<Vec<u8>>().unwrap(), bytes),
                    1 => assert_eq!(*source.deregister::<Box<[u8]>>().unwrap(), bytes[..]),
                    _ => assert_eq!(source.deregister::<Mapping>().unwrap()[..], bytes[..]),
                }
                client.connection.post_send(WorkRequest::send(b"look")).unwrap();
                server.connection.post_receive(1, server.domain.buffer(8).unwrap()).unwrap();
                assert_eq!(server.receives.wait(SOON).unwrap().message(), b"look");
                client.sends.wait(SOON).unwrap().success().unwrap();
                assert_eq!(target.deregister::<Vec<u8>>().unwrap(), bytes);
            }
        }
    });
}

#[test]
fn a_key_opens_nothing_after_the_memory_was_given_back() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.register(vec![5u8; 64], Rights::all()).unwrap();
        let token = region.remote();
        let bytes: Vec<u8> = region.deregister().unwrap();
        client.connection.post_send(WorkRequest::write(b"too late", &token)).unwrap();
        assert!(client.connection.wait_disconnected(SOON));
        assert_eq!(bytes, [5; 64]);
    });
}

#[test]
fn memory_comes_back_only_when_nobody_else_has_a_part() {
    each_device(|device| {
        let (client, _server) = pair(device);
        let mut buffer = client.domain.register_buffer(vec![0u8; 64]).unwrap();
        let rest = buffer.split_off(32);
        let buffer = buffer.deregister::<Vec<u8>>().unwrap_err();
        client.connection.post_receive(1, rest).unwrap();
        let buffer = buffer.deregister::<Vec<u8>>().unwrap_err();
        // In flight until the end of the queue pair, which has both parts dropped or given back.
        drop(client.connection);
        let buffer = buffer.deregister::<Box<[u8]>>().unwrap_err();
        assert_eq!(buffer.deregister::<Vec<u8>>().unwrap().len(), 64);

        let region = client.domain.register(vec![0u8; 64], Rights::READ).unwrap();
        let (other, segment) = (region.clone(), region.slice(..8));
        let region = region.deregister::<Vec<u8>>().unwrap_err();
        drop(other);
        let region = region.deregister::<Vec<u8>>().unwrap_err();
        drop(segment);
        assert_eq!(region.deregister::<Vec<u8>>().unwrap().len(), 64);
        // Pages of the crate are no value of the program.
        let own = client.domain.buffer(8).unwrap();
        assert_eq!(own.deregister::<Vec<u8>>().unwrap_err().len(), 8);
    });
}

/// A vector that tells of its drop.
struct DropWitness(Vec<u8>, Arc<AtomicBool>);

// SAFETY: the vector's bytes, which nobody touches meanwhile.
unsafe impl adverb::StableMemory for DropWitness {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        self.0.bytes()
    }
}

// SAFETY: as above.
unsafe impl adverb::ExclusiveMemory for DropWitness {}

impl Drop for DropWitness {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

fn told(length: usize) -> (DropWitness, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    (DropWitness(vec![0; length], dropped.clone()), dropped)
}

#[test]
fn memory_in_flight_lives_as_long_as_its_request_whatever_is_dropped_or_leaked() {
    each_device(|device| {
        // Each object of the end is dropped in an order of its own; the queue pair at last, and in the end
        // leaked.
        for leaks in [false, true] {
            let (client, server) = pair(device);
            let (memory, dropped) = told(4096);
            let buffer = server.domain.register_buffer(memory).unwrap();
            server.connection.post_receive(1, buffer).unwrap();
            let End { domain, sends, receives, connection } = server;
            drop((domain, sends, receives));
            assert!(!dropped.load(Ordering::SeqCst));
            if leaks {
                std::mem::forget(connection);
                // The peer may still send, and nobody's memory is overwritten.
                client.connection.post_send(WorkRequest::send(b"anybody there?")).unwrap();
                client.sends.wait(SOON).unwrap();
                assert!(!dropped.load(Ordering::SeqCst));
            } else {
                drop(connection);
                assert!(dropped.load(Ordering::SeqCst));
            }
        }
        // A leaked buffer keeps its memory for ever.
        let (client, server) = pair(device);
        let (memory, dropped) = told(4096);
        std::mem::forget(server.domain.register_buffer(memory).unwrap());
        // A leaked completion, too.
        let (memory, dropped_with_completion) = told(64);
        server.connection.post_receive(1, server.domain.register_buffer(memory).unwrap()).unwrap();
        client.connection.post_send(WorkRequest::send(b"you")).unwrap();
        std::mem::forget(server.receives.wait(SOON).unwrap());
        drop((server, client));
        assert!(!dropped.load(Ordering::SeqCst) && !dropped_with_completion.load(Ordering::SeqCst));
    });
}

#[test]
fn memory_that_cannot_be_registered_comes_back() {
    each_device(|device| {
        let domain = device.open().unwrap().protection_domain().unwrap();
        let refused = domain.register(Vec::new(), Rights::READ).unwrap_err();
        assert_eq!((refused.memory.len(), refused.error.errno()), (0, libc::EINVAL));
        let refused = domain.register_buffer(Vec::new()).unwrap_err();
        assert!(refused.to_string().contains("a memory region of 0 bytes"), "{refused}");
    });
}

#[test]
fn files_are_offered_to_peers() {
    each_device(|device| {
        let (client, server) = pair(device);
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("file-{}-{}", std::process::id(), device.name()));
        let bytes = pattern(10_001);
        std::fs::write(&path, &bytes).unwrap();
        let readable = std::fs::File::open(&path).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let shared = FileMapping::shared(&file, 4096, 10_001 - 4096).unwrap();
        let region = server.domain.register(shared, Rights::READ | Rights::WRITE).unwrap();
        write(&client, client.domain.register_buffer(vec![1u8; 3]).unwrap(), &region.remote());
        client
            .connection
            .post_send(WorkRequest::read(client.domain.buffer(5905).unwrap(), &region.remote()))
            .unwrap();
        let read = client.sends.wait(SOON).unwrap().success().unwrap().into_buffer();
        let mut wanted = bytes.clone();
        wanted[4096..4099].fill(1);
        assert_eq!(read[..], wanted[4096..]);
        // The file has it, too, and what this side writes.
        region.write(5900, b"12345");
        wanted[9996..].copy_from_slice(b"12345");
        assert_eq!(std::fs::read(&path).unwrap(), wanted);
        let private = server.domain.register(FileMapping::private(&readable, 0, 10).unwrap(), Rights::WRITE);
        let private = private.unwrap();
        private.write(0, b"here alone");
        assert_eq!((private.to_vec(..), std::fs::read(&path).unwrap()), (b"here alone".to_vec(), wanted));
        for (offset, length, what) in [
            (0, 0, "which has"),
            (0, 10_002, "which has"),
            (10_001, 1, "which has"),
            (1, 8, "mmap"),
            (u64::MAX, 1, "which has"),
        ] {
            let error = FileMapping::private(&file, offset, length).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        assert!(FileMapping::shared(&readable, 0, 10).is_err());
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn huge_pages_are_there_or_the_error_says_how_to_get_some() {
    let error = Mapping::huge_pages(1, 3).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    match Mapping::huge_pages(1, 21) {
        Ok(mapping) => assert_eq!(mapping.len(), 2 << 20),
        Err(error) => assert!(error.to_string().contains("sysctl vm.nr_hugepages"), "{error}"),
    }
}

static COUNTERS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Bytes of the statics from `offset` on, as a region.
fn of_statics(domain: &adverb::ProtectionDomain, offset: usize, length: usize) -> MemoryRegion {
    let start = NonNull::from(&COUNTERS).cast::<u8>();
    // SAFETY: statics stay for ever, the bytes are within them, and every access to them is atomic.
    unsafe { domain.register_raw(start.add(offset), length, Rights::all()).unwrap() }
}

#[test]
fn raw_memory_wherever_it_begins() {
    each_device(|device| {
        let (client, server) = pair(device);
        COUNTERS.iter().for_each(|counter| counter.store(0, Ordering::Release));
        // Nothing beside the bytes of the region is touched, and what is written is read.
        for (offset, length) in [(3, 20), (0, 32), (8, 9), (5, 2), (7, 1)] {
            let region = of_statics(&server.domain, offset, length);
            let bytes = pattern(length + 1);
            region.write(0, &bytes[1..]);
            assert_eq!(region.to_vec(..), bytes[1..]);
            for part in 0..length {
                assert_eq!(region.to_vec(part..), bytes[1 + part..]);
            }
            let there = region.remote();
            client
                .connection
                .post_send(WorkRequest::read(client.domain.buffer(length).unwrap(), &there))
                .unwrap();
            assert_eq!(client.sends.wait(SOON).unwrap().success().unwrap().into_buffer()[..], bytes[1..]);
            region.write(0, &vec![0; length]);
            assert!(COUNTERS.iter().all(|counter| counter.load(Ordering::Acquire) == 0));
            let words = region.words().len();
            assert_eq!(words, if offset % 8 == 0 { length / 8 } else { 0 });
            assert_eq!(region.word(8 - offset % 8).is_some(), length >= 16 - offset % 8);
        }
        if device.open().unwrap().attributes().atomics {
            let there = of_statics(&server.domain, 8, 8);
            let request = WorkRequest::fetch_add(client.domain.buffer(8).unwrap(), &there.remote(), 5);
            client.connection.post_send(request).unwrap();
            client.sends.wait(SOON).unwrap().success().unwrap();
            assert_eq!(COUNTERS[1].load(Ordering::Acquire), 5);
        }
    });
}

#[test]
fn a_message_is_gathered_and_scattered() {
    each_device(|device| {
        let (client, server) = pair_with(device, |parts| {
            (parts.options.max_gather, parts.options.max_scatter) = (4, 3);
        });
        let region = client.domain.register(pattern(100), Rights::empty()).unwrap();
        let mut buffers = client.domain.buffers(2, 50).unwrap();
        buffers.iter_mut().for_each(|buffer| buffer.fill(9));
        let (last, first) = (buffers.pop().unwrap(), buffers.pop().unwrap());
        let list = Segments::from(vec![first.slice(..10), region.slice(20..60), last.slice(49..)]);
        let wanted = [&[9; 10][..], &pattern(100)[20..60], &[9]].concat();
        let targets: Vec<_> =
            [20, 0, 100].map(|length| server.domain.buffer(length.max(1)).unwrap().slice(..length)).into();
        server.connection.post_receive(5, targets).unwrap();
        client.connection.post_send(WorkRequest::send(list)).unwrap();
        let sent = client.sends.wait(SOON).unwrap().success().unwrap();
        assert_eq!(sent.buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [50, 50]);
        assert!(sent.buffer.is_none());
        let got = server.receives.wait(SOON).unwrap().success().unwrap();
        assert_eq!((got.id, got.bytes, got.buffers.len()), (5, 51, 3));
        assert_eq!([&got.buffers[0][..], &got.buffers[2][..31]].concat(), wanted);

        // A write gathers, too.
        let there = server.domain.memory_region(64, Rights::WRITE).unwrap();
        let parts = [region.slice(..30), region.slice(70..)];
        client.connection.post_send(WorkRequest::write(parts, &there.remote())).unwrap();
        client.sends.wait(SOON).unwrap().success().unwrap();
        server.connection.post_receive(6, Vec::<Buffer>::new()).unwrap();
        client.connection.post_send(WorkRequest::send(Vec::<Buffer>::new())).unwrap();
        assert_eq!(server.receives.wait(SOON).unwrap().success().unwrap().bytes, 0);
        assert_eq!(there.to_vec(..60), [&pattern(100)[..30], &pattern(100)[70..]].concat());

        // Too many, or too long for the token: they come back.
        for count in [5, 33] {
            let many = client.domain.buffers(count, 1).unwrap();
            let rejected = client.connection.post_send(WorkRequest::send(many)).unwrap_err();
            assert_eq!((rejected.reason, rejected.buffers.len()), (PostError::TooManySges, count));
        }
        let parts = client.domain.buffers(2, 33).unwrap();
        let rejected = client.connection.post_send(WorkRequest::write(parts, &there.remote())).unwrap_err();
        assert_eq!((rejected.reason, rejected.buffers.len()), (PostError::PastToken, 2));
    });
}

#[test]
fn memory_of_another_domain_or_device_is_refused_when_it_is_posted() {
    let contexts: Vec<Context> = Device::all().unwrap().iter().map(|device| device.open().unwrap()).collect();
    each_device(|device| {
        let (client, _server) = pair(device);
        for context in &contexts {
            let foreign = context.protection_domain().unwrap().buffer(8).unwrap();
            let rejected = client.connection.post_receive(1, foreign).unwrap_err();
            assert_eq!(rejected.reason, PostError::OtherDomain);
            let rejected =
                client.connection.post_send(WorkRequest::send(rejected.buffer.unwrap())).unwrap_err();
            assert_eq!((rejected.reason, rejected.buffer.unwrap().len()), (PostError::OtherDomain, 8));
        }
    });
}

#[test]
fn requests_that_report_nothing_give_their_buffers_back_later() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.memory_region(4096, Rights::WRITE).unwrap();
        let there = region.remote();
        for round in 0..100u8 {
            for part in 0..8u8 {
                let buffer = client.domain.register_buffer(vec![round; 10 + usize::from(part)]).unwrap();
                client.connection.post_send(WorkRequest::write(buffer, &there).unsignalled()).unwrap();
                client.connection.post_send(WorkRequest::write(&[round; 4], &there).unsignalled()).unwrap();
            }
            client.connection.post_send(WorkRequest::write(b"end", &there).id(7)).unwrap();
            let done = client.sends.wait(SOON).unwrap().success().unwrap();
            let lengths: Vec<_> = done.earlier.iter().map(|buffer| buffer.len()).collect();
            assert_eq!((done.id, lengths), (7, (10..18).collect::<Vec<_>>()));
            assert!(client.sends.poll().unwrap().is_none());
            for buffer in done.earlier {
                buffer.deregister::<Vec<u8>>().unwrap();
            }
        }
    });
}

#[test]
fn a_request_that_reports_nothing_says_when_it_has_failed() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.memory_region(64, Rights::READ).unwrap();
        let good = client.domain.buffer(16).unwrap();
        client.connection.post_send(WorkRequest::send(good).id(1).unsignalled()).unwrap();
        server.connection.post_receive(1, server.domain.buffer(64).unwrap()).unwrap();
        server.receives.wait(SOON).unwrap().success().unwrap();
        let read = WorkRequest::read(
            client.domain.buffer(16).unwrap(),
            &RemoteMemory::new(1, 16, !region.remote().key()),
        );
        client.connection.post_send(read.id(2).unsignalled()).unwrap();
        let failed = client.sends.wait(SOON).unwrap();
        assert_ne!(failed.status, Status::Success);
        assert_eq!((failed.id, failed.earlier.len(), failed.into_buffer().len()), (2, 1, 16));
        // In error all report.
        let late = client.domain.buffer(16).unwrap();
        client.connection.post_send(WorkRequest::send(late).id(3).unsignalled()).unwrap();
        let flushed = client.sends.wait(SOON).unwrap();
        assert_eq!((flushed.id, flushed.status, flushed.earlier.len()), (3, Status::Flushed, 0));
    });
}

#[test]
fn threads_post_with_and_without_report() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.memory_region(4096, Rights::WRITE).unwrap();
        let there = region.remote();
        const EACH: u64 = 200;
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (client, there) = (&client, &there);
                scope.spawn(move || {
                    for round in 0..EACH {
                        let request = || WorkRequest::write(client.domain.buffer(8).unwrap(), there);
                        let request =
                            if (round + thread) % 4 == 0 { request() } else { request().unsignalled() };
                        let mut next = Some(request.id(thread));
                        while let Some(request) = next.take() {
                            match client.connection.post_send(request) {
                                Ok(()) => {}
                                Err(rejected) => {
                                    assert_eq!(rejected.reason, PostError::QueueFull);
                                    next = Some(WorkRequest::write(rejected.buffer.unwrap(), there));
                                    std::thread::yield_now();
                                }
                            }
                        }
                    }
                });
            }
            // All buffers come back, but those behind the last request that reports.
            let mut back = 0;
            while back < 3 * EACH - 64 {
                let completion = client.sends.wait(SOON).unwrap().success().unwrap();
                back += 1 + completion.earlier.len() as u64;
            }
        });
    });
}

#[test]
fn a_window_opens_its_part_to_its_peer_until_it_is_taken_back() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.register(vec![7u8; 256], Rights::BIND).unwrap();
        let window = server.domain.memory_window().unwrap();
        let run = |request: WorkRequest<'_>| {
            server.connection.post_send(request).unwrap();
            server.sends.wait(SOON).unwrap()
        };
        let (bind, token) = window.bind(&region, 64..128, Rights::READ);
        run(bind).success().unwrap();
        let read = |token: &RemoteMemory| {
            let target = client.domain.buffer(token.len() as usize).unwrap();
            client.connection.post_send(WorkRequest::read(target, token)).unwrap();
            client.sends.wait(SOON).unwrap()
        };
        assert_eq!(read(&token).success().unwrap().into_buffer()[..], [7; 64]);
        // It is open, so its rights and its bytes stay what they are.
        let refused = region.reregister(Rights::READ).unwrap_err();
        assert_eq!(refused.error.errno(), libc::EBUSY);
        let region = refused.memory;
        run(WorkRequest::take_back(&token)).success().unwrap();
        let (bind, next) = window.bind(&region, .., Rights::READ);
        run(bind).success().unwrap();
        assert_ne!(token.key(), next.key());
        assert_eq!(read(&next).success().unwrap().into_buffer().len(), 256);
        // The old token opens nothing, and the connection ends.
        assert_ne!(read(&token).status, Status::Success);
        // The bytes come back, though the window is still bound.
        assert_eq!(region.deregister::<Vec<u8>>().unwrap(), [7; 256]);
    });
}

#[test]
fn the_rights_of_a_region_change_and_its_key_stays() {
    each_device(|device| {
        let (client, server) = pair(device);
        let region = server.domain.register(vec![0u8; 64], Rights::WRITE).unwrap();
        let token = region.remote();
        write(&client, client.domain.register_buffer(vec![3; 64]).unwrap(), &token);
        let clone = region.clone();
        let refused = region.reregister(Rights::READ).unwrap_err();
        assert_eq!(refused.error.errno(), libc::EBUSY);
        drop(clone);
        let region = refused.memory.reregister(Rights::READ).unwrap();
        assert_eq!(region.remote(), token);
        client.connection.post_send(WorkRequest::read(client.domain.buffer(64).unwrap(), &token)).unwrap();
        assert_eq!(client.sends.wait(SOON).unwrap().success().unwrap().into_buffer()[..], [3; 64]);
        client.connection.post_send(WorkRequest::write(b"no", &token)).unwrap();
        assert!(client.connection.wait_disconnected(SOON));
        assert_eq!(region.deregister::<Vec<u8>>().unwrap(), [3; 64]);
        let own = server.domain.memory_region(64, Rights::READ).unwrap();
        assert_eq!(own.reregister(Rights::WRITE).unwrap_err().error.errno(), libc::EOPNOTSUPP);
    });
}
