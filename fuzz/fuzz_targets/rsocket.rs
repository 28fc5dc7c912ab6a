//! A stream of rsockets whose peer says anything, and datagrams that are none: what is lent and read stays
//! inside of the buffers.
#![no_main]

use adverb_proto::rsocket::{
    Connect, Mapping, Message, Settings, ShutdownSide, SourceFamily, Stream, TARGET_LENGTH, Target, WriteTo,
    read_hello, read_source,
};
use libfuzzer_sys::fuzz_target;

const SETTINGS: Settings = Settings {
    send_requests: 16,
    receive_requests: 16,
    send_buffer: 5000,
    receive_buffer: 3000,
    mappings: 3,
    separate: true,
};

fuzz_target!(|input: &[u8]| {
    let _ = read_source(input);
    let _ = (read_hello(input, SourceFamily::V4), read_hello(input, SourceFamily::V6));
    let Ok(peer) = Connect::read(input) else { return };
    let mut stream = Stream::new(SETTINGS);
    stream.introduce(WriteTo { address: 1, key: 2 }, WriteTo { address: 3, key: 4 });
    stream.meet(&peer);
    let mut sent = Vec::new();
    for step in input[40..].chunks(5) {
        let [choice, word @ ..] = step else { break };
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        let number = u32::from_le_bytes(bytes);
        match choice % 8 {
            0 | 1 => drop(stream.message(number)),
            2 => {
                let mut target = [0; TARGET_LENGTH];
                target[12..]
                    .copy_from_slice(&if choice & 8 == 0 { peer.data.length } else { number }.to_ne_bytes());
                stream.target_seen(Target::read(&target));
            }
            3 => {
                if let Some(offer) = stream.offer(number as usize % 100_000, 64) {
                    assert!(offer.place.iter().all(|(at, length)| at + length <= SETTINGS.send_buffer));
                    stream.take(&offer);
                    sent.push(offer.id);
                }
            }
            4 => {
                let length = number as usize % 4000;
                let pieces = stream.peek(0, length);
                assert!(pieces.iter().all(|(at, length)| at + length <= SETTINGS.receive_buffer));
                stream.consume(length);
            }
            5 => sent.extend(stream.grant().map(|grant| grant.id)),
            6 => {
                let mapping = Mapping { offset: number.into(), target: Target::default() };
                sent.extend(stream.map(number as u16, &mapping).map(|(_, offer)| offer.id));
                let direct = Target { address: u64::MAX, key: 0, length: number };
                if let Some(offer) = stream.offer_direct(5000, 0, direct) {
                    stream.take(&offer);
                    sent.push(offer.id);
                }
            }
            _ => match choice >> 6 {
                0 => drop(stream.shut(ShutdownSide::Write)),
                1 => sent.extend(stream.take_control(Message::Keepalive)),
                _ => drop(sent.pop().map(|id| stream.completed(id))),
            },
        }
        assert!(stream.unread() <= SETTINGS.receive_buffer);
    }
    for id in sent {
        stream.completed(id);
    }
    assert!(stream.all_sent());
});
