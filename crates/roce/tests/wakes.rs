//! A process of the same host that sleeps is woken for a message, also where the queue pair ends whose post
//! was told that the process sleeps.

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Pair, TEST_TIMEOUT, signalled};
use adverb_core::error::PostError;
use adverb_core::qp::{AttributeMask, Attributes, State};
use adverb_core::request::Opcode;
use adverb_core::transport::TransportFactory;
use std::sync::mpsc;

fn site() -> Site {
    const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", "127.0.0.1").by_attributes()
}

/// One post tells a single thread that the other side sleeps. The queue pair of that post ends before the
/// list of posts does, and the other side has to be woken all the same: messages of other queue pairs find
/// nobody who says so again.
#[test]
fn a_queue_pair_that_ends_amid_posts_leaves_nobody_asleep() {
    const ROUNDS: u64 = 20;
    let site = site();
    let other = Pair::connect(&site);
    let queue = other.server.receives.clone();
    let (wait, permitted) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for () in permitted {
            queue.arm(false).unwrap();
            tell.send(()).unwrap();
            queue.channel().unwrap().wait().unwrap();
            while queue.poll(1, |_| ()).unwrap() == 0 {}
            tell.send(()).unwrap();
        }
    });
    for round in 0..ROUNDS {
        let ending = Pair::connect(&site);
        ending.server.post_receive(0, &[]);
        other.server.post_receive(round, &[]);
        wait.send(()).unwrap();
        told.recv().unwrap();
        let pair = &ending.client.queue_pair;
        let posted: Result<(), PostError> = pair.post_sends(|batch| {
            batch.post(&signalled(&[], (0, 0)))?;
            let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
            pair.modify(&attributes, AttributeMask::STATE).unwrap();
            Ok(())
        });
        posted.unwrap();
        other.client.post(round, Opcode::Send, &[], (0, 0));
        told.recv_timeout(TEST_TIMEOUT).expect("the thread that waits for the message sleeps for ever");
        other.client.sent_well(round);
    }
}
