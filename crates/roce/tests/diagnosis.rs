//! What the log says of queue pairs that attributes connect and that do not fit.

mod support;

use adverb_core::conformance::fixture::{Home, Shape, Side, path};
use adverb_core::qp::{AttributeMask as M, Attributes, Service, State};
use adverb_core::request::{Opcode, Status};
use std::process::Command;
use support::site;

/// Says to the test that it is the program whose log is read, and what does not fit.
const ROLE: &str = "ADVERB_TEST_ROLE";

/// Where the peer begins.
const PSN: u32 = 0x1000;

/// The first request fails.
fn program(wrong: &str) {
    let site = site();
    let home = Home::new(&site);
    let sides = [0, 1].map(|_| Side::unconnected(&home, Shape::default(), Service::Rc));
    let [one, other] = &sides;
    for (side, peer) in [(one, other), (other, one)] {
        side.begin();
        let (expected, number) = match wrong {
            "ahead" => (PSN - 100, peer.queue_pair.number()),
            "behind" => (PSN + 100, peer.queue_pair.number()),
            // A number of this process's that nobody has.
            _ => (PSN, peer.queue_pair.number() ^ 0x800),
        };
        let attributes = Attributes {
            path: path(&side.context, site.address),
            path_mtu: 1024,
            destination: number,
            rq_psn: expected,
            sq_psn: PSN,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            timeout: 10,
            retry_count: 2,
            rnr_retry: 1,
            min_rnr_timer: 1,
            ..Attributes::default()
        };
        let to_receive =
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        side.to(State::Rtr, to_receive, &attributes);
        let to_send = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        side.to(State::Rts, to_send, &attributes);
    }
    other.post_receive(1, &[]);
    one.post(1, Opcode::Send, &[], (0, 0));
    let status = one.sent().status;
    assert_eq!(status, Status::RetryExceeded);
}

#[test]
fn the_log_warns_of_queue_pairs_that_do_not_fit() {
    if let Ok(wrong) = std::env::var(ROLE) {
        return program(&wrong);
    }
    for local in ["off", "auto"] {
        for wrong in ["ahead", "behind", "number"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "the_log_warns_of_queue_pairs_that_do_not_fit", "--nocapture"]);
            command.env(ROLE, wrong).env("ADVERB_LOCAL", local).env("ADVERB_LOG", "warn");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{local} {wrong}: {said}");
            let expected = "and is its rq_psn 0x1000, as sq_psn is here?";
            assert!(
                said.contains("never acknowledged") && said.contains(expected),
                "{local} {wrong}: {said}"
            );
        }
    }
}
