//! Connection parameters out of one byte.

use adverb_proto::iwarp::mpa::{Parameters, RtrKind};

/// The bits that make a stream one that needs checking.
pub const CHECKED: u8 = 3;

/// Parameters with the options that these bits choose.
pub fn from(choice: u8) -> Parameters {
    Parameters {
        initiator: choice & 4 != 0,
        revision: 2,
        crc: choice & 1 != 0,
        markers_tx: choice & 2 != 0,
        markers_rx: choice & 2 != 0,
        ird: Some(4),
        ord: Some(4),
        rtr: if choice & 8 != 0 { Some(RtrKind::Send) } else { None },
        large_fpdu: choice & 16 != 0,
        extensions: choice & 32 != 0,
    }
}
