//! The files of counters that programs find beside a port (`ports/1/counters/port_xmit_data`), and how they
//! follow from the processes' counters.
//!
//! The library that `adverb run` preloads writes such a file anew whenever a program opens it. The value is
//! the sum of counters of all processes of the run, of those that have ended, too. The library knows nothing
//! of this crate. So the command writes down for it which words of a page each file is the sum of
//! ([`recipes`]).

use super::page::{self, CounterSet, DEVICES, NAME, Page};
use super::{Counter, Counters};
use crate::attributes::TransportType;
use std::mem::offset_of;

/// The folder with the pages of processes, in the run's.
pub const PLACE: &str = "counted";
/// How the name of a page's file begins.
pub(super) const PAGE: &str = "adverb-counters-";
/// Most pages. Processes beyond are not in the files.
pub(super) const PAGES: u32 = 1024;

/// The file of the page with a number.
pub(super) fn page(folder: &str, number: u32) -> String {
    format!("{folder}/{PLACE}/{}", page_name(number))
}

/// The name of a page's file in its folder.
pub(super) fn page_name(number: u32) -> String {
    format!("{PAGE}{number}")
}

/// A file of a port.
struct File {
    /// The file's name, with its folder.
    name: &'static str,
    /// The sum is divided by this.
    unit: u64,
    /// Counters, by their place in the set.
    of: &'static [usize],
}

macro_rules! files {
    ($($name:literal: [$($field:ident),*] / $unit:literal;)*) => {
        &[$(File { name: $name, unit: $unit, of: &[$(offset_of!(Counters, $field)),*] }),*]
    };
}

/// The files that the kernel shows for every port of an adapter (`pma_attrs`), as far as they can be true.
/// The others count events that cannot happen without such a link. Data is in units of four bytes. It is
/// payload; packets and frames are those of the protocol. An operation that is done in the peer's memory at
/// once counts as one.
const PORT: &[File] = files! {
    "counters/port_xmit_data": [tx_bytes] / 4;
    "counters/port_rcv_data": [rx_bytes] / 4;
    "counters/port_xmit_packets": [tx_frames, tx_direct] / 1;
    "counters/port_rcv_packets": [rx_frames] / 1;
    "counters/port_rcv_errors": [damaged] / 1;
    "counters/excessive_buffer_overrun_errors": [overflowed] / 1;
};

/// How many files of a port always say 0.
pub const ALWAYS_ZERO: usize = NEVER.len();

/// The files of a port that always say 0.
const NEVER: [&str; 11] = [
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_remote_physical_errors",
    "counters/port_rcv_switch_relay_errors",
    "counters/port_xmit_discards",
    "counters/port_xmit_constraint_errors",
    "counters/port_rcv_constraint_errors",
    "counters/local_link_integrity_errors",
    "counters/VL15_dropped",
    "counters/port_xmit_wait",
];

/// The files that the kernel's rxe shows beside them, under its names, as far as their events are counted
/// here.
const ROCE: &[File] = files! {
    "hw_counters/sent_pkts": [tx_frames, tx_direct] / 1;
    "hw_counters/rcvd_pkts": [rx_frames] / 1;
    "hw_counters/duplicate_request": [duplicates] / 1;
    "hw_counters/out_of_seq_request": [out_of_sequence] / 1;
    "hw_counters/rcvd_rnr_err": [not_ready_received] / 1;
    "hw_counters/send_rnr_err": [not_ready_sent] / 1;
    "hw_counters/rcvd_seq_err": [naks_received] / 1;
    "hw_counters/completer_retry_err": [timeouts, naks_received] / 1;
    "hw_counters/rdma_recvs": [rx_sends] / 1;
};

// PRACTICE-FILES-3
/// The names of the files of a device's port, with their folders. All say 0 when a run begins.
pub fn names(transport: TransportType) -> impl Iterator<Item = &'static str> {
    let own = match transport {
        TransportType::Ib => ROCE,
        TransportType::Iwarp => &[],
    };
    NEVER.into_iter().chain(PORT.iter().chain(own).map(|file| file.name))
}

/// The names of a device port's files whose values follow from counters, with their folders.
pub fn moving() -> impl Iterator<Item = &'static str> {
    PORT.iter().chain(ROCE).map(|file| file.name)
}

/// The value of a file for a device with these counters.
pub fn value(name: &str, counters: &Counters) -> Option<u64> {
    let file = PORT.iter().chain(ROCE).find(|file| file.name == name)?;
    let all = counters.all();
    let values = file.of.iter().filter_map(|place| all.get(place / size_of::<Counter>()));
    Some(values.fold(0u64, |sum, (_, _, value)| sum.wrapping_add(*value)) / file.unit)
}

/// The sums of a run's processes for each device, those that have ended included. `folder` is the run's.
pub fn totals(folder: &str) -> Vec<(String, Counters)> {
    let mut totals: Vec<(String, Counters)> = Vec::new();
    let pages = (0..PAGES).map_while(|number| page::read(&page(folder, number)).ok());
    for device in pages.flatten() {
        let at = totals.iter().position(|(name, _)| *name == device.name).unwrap_or_else(|| {
            totals.push((device.name, Counters::private()));
            totals.len() - 1
        });
        totals[at].1.add_all(&device.own);
        totals[at].1.add_all(&device.before);
    }
    totals
}

/// Lines for the preloaded library: how a page is laid out, then a line for each file that follows from
/// counters.
pub fn recipes() -> String {
    let layout = [
        offset_of!(Page, changing),
        offset_of!(Page, names),
        NAME,
        DEVICES,
        offset_of!(Page, sets),
        size_of::<CounterSet>(),
        offset_of!(CounterSet, before),
    ];
    // Each is two words, to be added.
    const { assert!(size_of::<Counter>() == 16) };
    let words = |numbers: &[usize]| numbers.iter().map(|number| format!(" {number}")).collect::<String>();
    let files =
        PORT.iter().chain(ROCE).map(|file| format!("={} {}{}\n", file.name, file.unit, words(file.of)));
    format!("={PLACE}/{PAGE}{}\n", words(&layout)) + &files.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_one_line() {
        let lines = recipes();
        let mut names: Vec<_> = names(TransportType::Ib).collect();
        assert_eq!(lines.lines().count(), 1 + names.len() - NEVER.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PORT.len() + NEVER.len() + ROCE.len());
        let frames = offset_of!(Counters, tx_frames);
        let direct = offset_of!(Counters, tx_direct);
        assert!(lines.contains(&format!("=hw_counters/sent_pkts 1 {frames} {direct}\n")), "{lines}");
    }

    #[test]
    fn files_say_sums_in_their_units() {
        let counters = Counters::private();
        counters.tx_bytes.add(43);
        counters.tx_frames.count(3, true);
        counters.tx_direct.add(2);
        assert_eq!(value("counters/port_xmit_data", &counters), Some(10));
        assert_eq!(value("hw_counters/sent_pkts", &counters), Some(5));
        assert_eq!(value("counters/link_downed", &counters), None);
        assert!(moving().all(|name| value(name, &counters).is_some()));
    }

    #[test]
    fn processes_of_a_run_are_added_up() {
        let folder = std::env::temp_dir().join(format!("adverb-totals-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(PLACE)).unwrap();
        let name = folder.to_str().unwrap();
        assert!(totals(name).is_empty(), "nobody counts");
        // Two processes, one after the other with the same page, and beside them one that has not begun.
        let pages: Vec<_> = (0..2).map(|number| Page::in_file(&page(name, number), &["a0", "b0"])).collect();
        std::fs::write(page(name, 2), "").unwrap();
        for page in &pages {
            page.set(0).tx_bytes.add(7);
            page.set(1).tx_bytes.add(1);
        }
        pages[0].end(2);
        pages[0].set(0).tx_bytes.add(100);
        let said: Vec<_> =
            totals(name).into_iter().map(|(name, counters)| (name, counters.tx_bytes.get())).collect();
        assert_eq!(said, [("a0".to_owned(), 114), ("b0".to_owned(), 2)]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
