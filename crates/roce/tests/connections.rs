//! The conformance suite of the access layer with queue pairs that the connection manager connects, over UDP
//! on the loopback.

use adverb_core::conformance::Site;
use adverb_core::transport::TransportFactory;

mod ipv4 {
    adverb_core::conformance_tests!(super::site("127.0.0.1"));
}

mod ipv6 {
    adverb_core::conformance_tests!(super::site("::1"));
}

const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];

fn site(address: &str) -> Site {
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", address)
}
