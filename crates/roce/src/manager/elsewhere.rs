//! Requests for a service port of another user's process. The holder of UDP port 4791 may not forward them.
//! It passes on the question where that process lives. The process tells the sender, which then asks there.

#[cfg(any(test, fuzzing))]
mod effect;

use super::MOST_UNANSWERED;
use crate::gsi::MadSource;
use crate::limit::Limit;
use crate::net::Net;
use crate::time;
use adverb_core::log;
use adverb_wire::ib::cm::Message;
use adverb_wire::ib::mad::{Header, MAD_LEN, Mad, Vendor, method};
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(test, fuzzing))]
pub(crate) use effect::try_effect;

/// The management class: one that vendors divide among themselves by OUI.
pub(super) const CLASS: u8 = 0x3e;
/// An OUI of our own: locally administered, so nobody else's.
const OUI: [u8; 3] = [0x02, 0xad, 0x7b];
const LIVES_HERE: u16 = 1;
/// Notices in a second to the addresses of a share, and at once: as many as requests wait for a service.
const NOTICES: (u32, u32) = (MOST_UNANSWERED as u32, MOST_UNANSWERED as u32);

/// What the sender of a request calls it.
pub(super) fn name_of(mad: &[u8; MAD_LEN]) -> Option<u32> {
    match Message::parse(Mad::parse(mad)?).ok()? {
        Message::Req(request) => Some(request.local_communication_id),
        Message::SidrReq(request) => Some(request.request_id),
        _ => None,
    }
}

/// The transaction of a management datagram, which of a request only those know who have got it.
pub(super) fn transaction_of(mad: &[u8; MAD_LEN]) -> Option<u64> {
    Some(Mad::parse(mad)?.header.transaction_id.get())
}

/// Tells senders of requests at which UDP port this process hears requests. Any user's process can name a
/// sender, so there is a limit. Thread-safe.
pub(crate) struct Notifier(Limit);

impl Default for Notifier {
    fn default() -> Self {
        Self(Limit::new(NOTICES.0, NOTICES.1))
    }
}

impl Notifier {
    /// Tells the sender of a request.
    pub(crate) fn tell_where(&self, net: &Arc<Net>, mad: &[u8; MAD_LEN], from: MadSource) {
        let Ok(lane) = net.primary() else { return };
        let Some(notice) = self.notice_about(mad, from, lane.socket.port(), time::now()) else { return };
        if let Err(error) = net.gsi.send(net, from.local, from.reply_to(), &notice) {
            log!(Info, "{} cannot be told where to ask: {error}", from.peer);
        }
    }

    /// The notice that the sender of a request gets, if it may have one now.
    fn notice_about(
        &self,
        mad: &[u8; MAD_LEN],
        from: MadSource,
        port: u16,
        now: Duration,
    ) -> Option<[u8; MAD_LEN]> {
        let (name, transaction) = (name_of(mad)?, transaction_of(mad)?);
        self.0.allows(&from.peer, now).then(|| notice(transaction, name, port))
    }
}

fn notice(transaction: u64, name: u32, port: u16) -> [u8; MAD_LEN] {
    let mut vendor = Vendor::new(OUI, [0; _]);
    vendor.data[..4].copy_from_slice(&name.to_be_bytes());
    vendor.data[4..6].copy_from_slice(&port.to_be_bytes());
    vendor.with_header(Header::new(CLASS, 1, method::SEND, transaction, LIVES_HERE)).to_bytes()
}

/// The request that a notice is about, by its transaction and name, and the port.
pub(super) fn parse(mad: &[u8; MAD_LEN]) -> Option<(u64, u32, u16)> {
    let mad = Mad::parse(mad)?;
    let vendor = mad.vendor()?;
    if vendor.oui != OUI || mad.header.method != method::SEND || mad.header.attribute_id.get() != LIVES_HERE {
        return None;
    }
    let name = u32::from_be_bytes(vendor.data[..4].try_into().ok()?);
    let port = u16::from_be_bytes(vendor.data[4..6].try_into().ok()?);
    (port != 0).then_some((mad.header.transaction_id.get(), name, port))
}

/// Any bytes are a notice that reads the same when it is made again, or none; and no notice is a request.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(mad: &[u8; MAD_LEN]) {
    if let Some((transaction, name, port)) = parse(mad) {
        assert_eq!(parse(&notice(transaction, name, port)), Some((transaction, name, port)));
        assert_eq!(name_of(mad), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::PORT;
    use adverb_wire::ib::cm::{Req, Rtu, SidrReq};
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn there_and_back() {
        assert_eq!(parse(&notice(7, 0x1234_5678, 4000)), Some((7, 0x1234_5678, 4000)));
        assert_eq!(parse(&notice(7, 1, 0)), None);
        let request = Message::from(Req { local_communication_id: 5, ..Req::default() });
        assert_eq!(name_of(&request.to_mad(1).to_bytes()), Some(5));
        assert_eq!(parse(&request.to_mad(1).to_bytes()), None);
        let request = Message::from(SidrReq { request_id: 6, ..SidrReq::default() });
        assert_eq!(name_of(&request.to_mad(1).to_bytes()), Some(6));
        assert_eq!(name_of(&Message::from(Rtu::default()).to_mad(1).to_bytes()), None);
    }

    /// Another user's process that has this one send notices to an address gets only so many sent there, and
    /// hardly any other address has fewer.
    #[test]
    fn notices_to_an_address_have_a_limit() {
        let notifier = Notifier::default();
        let now = Duration::from_secs(1000);
        let request = |id| Message::from(Req { local_communication_id: id, ..Req::default() }).to_mad(7);
        let tells = |id, host: u8, now| {
            let peer = IpAddr::from([192, 0, 2, host]);
            let from = MadSource::between((Ipv4Addr::LOCALHOST, PORT).into(), peer, 4000);
            let notice = notifier.notice_about(&request(id).to_bytes(), from, 4001, now);
            notice.inspect(|notice| assert_eq!(parse(notice), Some((7, id, 4001)))).is_some()
        };
        assert_eq!((0..10_000).filter(|id| tells(*id, 1, now)).count(), NOTICES.1 as usize);
        assert!((2..=101).filter(|host| tells(5, *host, now)).count() > 50);
        let later = now + Duration::from_secs(1);
        assert!(tells(5, 1, later));
        let other = Message::from(Rtu::default()).to_mad(1).to_bytes();
        let from = MadSource::between((Ipv4Addr::LOCALHOST, PORT).into(), Ipv4Addr::LOCALHOST.into(), 4000);
        assert_eq!(notifier.notice_about(&other, from, 4001, later), None);
    }
}
