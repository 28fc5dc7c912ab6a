use super::*;
use crate::conformance::lingering::Lingering;
use crate::conformance::{rounds, runs_again};
use std::os::fd::AsRawFd;

/// Whenever it comes: before the connection is let in, at that instant, or later.
#[test]
fn every_message_tells_who_has_sent_it() {
    const COUNT: usize = 3000;
    let own = name(&format!("test/senders/{}", std::process::id()));
    let listener = Listener::bind(&own).unwrap();
    let sender = std::thread::spawn(move || {
        for _ in 0..COUNT {
            let connection = Connection::open(&own).unwrap();
            connection.send(&[b"message"]).unwrap();
            while !connection.has_hung_up() {
                std::thread::yield_now();
            }
        }
    });
    let mut buffer = [0; 64];
    for count in 0..COUNT {
        let connection = loop {
            match accept(listener.fd()) {
                Ok(connection) => break connection,
                Err(_) => std::thread::yield_now(),
            }
        };
        let along = loop {
            match connection.receive_with(&mut buffer) {
                Ok((message, along)) => {
                    assert_eq!(message, b"message");
                    break along;
                }
                Err(_) => std::thread::yield_now(),
            }
        };
        assert!(along.is_same_user, "message {count}");
    }
    sender.join().unwrap();
}

/// Has the close end, in the closing thread.
fn end(lingering: Lingering) {
    lingering.end();
    while closing::waiting() > 0 {
        std::thread::yield_now();
    }
}

fn connected(listener: &Listener, name: &[u8]) -> [Connection; 2] {
    let here = Connection::open(name).unwrap();
    [here, accept(listener.fd()).unwrap()]
}

/// Sends a descriptor and lets go of it.
fn pass(by: &Connection, descriptor: OwnedFd) {
    by.send_with(&[b"passes"], &[descriptor.as_raw_fd()]).unwrap();
}

/// Each kind of close meets the thread that must not wait: this one. They follow each other, since one thread
/// closes all. In a process of its own: a child of fork holds the descriptors, too, and tests beside this one
/// have such children.
#[test]
fn a_passed_descriptor_whose_close_waits_stops_no_thread_but_the_closing_one() {
    if rounds().is_none() {
        let own =
            "seqpacket::tests::a_passed_descriptor_whose_close_waits_stops_no_thread_but_the_closing_one";
        return runs_again(own, &[], 1);
    }
    let own = name(&format!("test/closing/{}", std::process::id()));
    let listener = Listener::bind_for_descriptors(&own).unwrap();
    let [here, there] = connected(&listener, &own);
    let [other_here, other_there] = connected(&listener, &own);
    let answers = || {
        let mut buffer = [0; 64];
        other_here.send(&[b"question"]).unwrap();
        assert_eq!(other_there.receive(&mut buffer).unwrap(), b"question");
    };
    let mut buffer = [0; 64];

    // It is received, and not wanted.
    let (lingering, descriptor) = Lingering::new();
    pass(&here, descriptor);
    assert_eq!(there.receive(&mut buffer).unwrap(), b"passes");
    lingering.wait();
    answers();
    assert!(lingering.closes_now(), "the answer came while a thread was in close(2)");
    end(lingering);

    // It waits in a connection that closes, behind messages without any, an empty one among them.
    let (lingering, descriptor) = Lingering::new();
    here.send(&[b"first"]).unwrap();
    here.send(&[]).unwrap();
    pass(&here, descriptor);
    drop(there);
    lingering.wait();
    answers();
    assert!(lingering.closes_now());
    end(lingering);

    // It waits in a connection that was not let in, as the listener goes.
    let (lingering, descriptor) = Lingering::new();
    let late = Connection::open(&own).unwrap();
    pass(&late, descriptor);
    drop(listener);
    lingering.wait();
    answers();
    assert!(lingering.closes_now());
    end(lingering);
}

#[test]
fn nothing_with_descriptors_is_received_from_another_user() {
    let own = name(&format!("test/refusal/{}", std::process::id()));
    let listener = Listener::bind_for_descriptors(&own).unwrap();
    let [here, mut there] = connected(&listener, &own);
    let (read, _write) = std::io::pipe().unwrap();
    here.send(&[b"plain"]).unwrap();
    pass(&here, read.try_clone().unwrap().into());
    // As for another user's process, which has sent all this before it was let in.
    take_descriptors(there.fd(), false);
    there.refuses_descriptors = true;
    let mut buffer = [0; 64];
    assert_eq!(there.receive(&mut buffer).unwrap(), b"plain");
    let error = there.receive_with(&mut buffer).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNABORTED));
    assert!(here.has_hung_up() && there.has_hung_up());
    there.socket.drain();
    assert_eq!(peek(there.fd()).unwrap(), NextMessage::WithDescriptors, "it is where it was");
}

/// Where the system cannot prevent it, they arrive.
#[test]
fn descriptors_are_taken_in_only_where_they_are_expected() {
    let own = name(&format!("test/expected/{}", std::process::id()));
    let listener = Listener::bind(&own).unwrap();
    let [here, there] = connected(&listener, &own);
    let (read, _write) = std::io::pipe().unwrap();
    let sent = here.send_with(&[b"one"], &[read.as_raw_fd()]);
    match takes_descriptors(there.fd()) {
        true => sent.unwrap(),
        false => assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPERM)),
    }
    // An answer may have some.
    there.send_with(&[b"answer"], &[read.as_raw_fd()]).unwrap();
    let mut buffer = [0; 64];
    let (message, along) = here.receive_with(&mut buffer).unwrap();
    assert_eq!((message, along.descriptors.len()), (&b"answer"[..], 1));
}

#[test]
fn messages_and_the_end() {
    let own = name(&format!("test/{}", std::process::id()));
    let listener = Listener::bind(&own).unwrap();
    assert_eq!(Listener::bind(&own).err().and_then(|error| error.raw_os_error()), Some(libc::EADDRINUSE));
    let here = Connection::open(&own).unwrap();
    let there = accept(listener.fd()).unwrap();
    assert!(accept(listener.fd()).is_err());
    assert!(here.is_same_user() && there.is_same_user());
    here.send(&[b"one ", b"message"]).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(there.receive(&mut buffer).unwrap(), b"one message");
    assert_eq!(there.receive(&mut buffer).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    assert!(!there.has_hung_up());
    drop(here);
    assert!(there.has_hung_up());
    assert_eq!(there.receive(&mut buffer).unwrap(), b"");
    drop((listener, there));
    assert_eq!(Connection::open(&own).err().and_then(|error| error.raw_os_error()), Some(libc::ECONNREFUSED));
}
