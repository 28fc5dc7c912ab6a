//! What tests of two processes have in common.
#![allow(dead_code, reason = "not every test needs all of it")]

use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Side, TEST_TIMEOUT, path};
use adverb_core::qp::{AttributeMask as M, Attributes, State};
use adverb_core::transport::TransportFactory;
use std::io::BufRead;
use std::time::Instant;

const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];

/// Where the tests run; memory is shared there unless the environment says otherwise.
pub(crate) fn site() -> Site {
    if std::env::var_os("ADVERB_LOCAL").is_none() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: before the first engine of the process, whose background thread is the only one that reads
        // it; the tests' own threads wait here.
        ONCE.call_once(|| unsafe { std::env::set_var("ADVERB_LOCAL", "auto") });
    }
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", "127.0.0.1")
}

/// Takes the queue pair to RTS with a peer that gives up after half a second, but waits for receives.
pub(crate) fn join(side: &Side, site: &Site, number: u32) {
    let attributes = Attributes {
        path: path(&side.context, site.address),
        path_mtu: 1024,
        destination: number,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..Attributes::default()
    };
    let to_receive = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    side.to(State::Rtr, to_receive, &attributes);
    let to_send = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    side.to(State::Rts, to_send, &attributes);
}

/// Stops a process until it is dropped.
pub(crate) struct StoppedProcess(libc::pid_t);

impl StoppedProcess {
    /// A process that its parent has not waited for.
    pub(crate) fn new(process: libc::pid_t) -> Self {
        // SAFETY: the process is there, at least as one that has ended.
        unsafe { libc::kill(process, libc::SIGSTOP) };
        // Stopped in all its threads: the state in its status file says so.
        let state = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !state().contains(") T ") {
            assert!(Instant::now() < deadline, "it is not stopped");
            std::thread::yield_now();
        }
        Self(process)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// The number in the next line that begins like this; what else there is the test harness has written.
pub(crate) fn number_behind(word: &str, lines: &mut impl BufRead) -> u32 {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "{word:?} does not come");
        if let Some((_, number)) = line.split_once(word) {
            return number.trim().parse().unwrap();
        }
    }
}
