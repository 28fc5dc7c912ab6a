//! What anybody's datagrams do to what is known.

use super::message::{QUEUE_PAIR, with_attribute};
use super::*;
use std::collections::HashMap;

/// Questions of ours, and datagrams of others in any order: what is known changes by answers to our questions
/// alone, from whom they went to, and all of it is bounded.
pub(crate) fn try_effect(bytes: &[u8]) {
    let locator = Locator::default();
    let local = IpAddr::from([10, 0, 0, 1]);
    let mut asked: Vec<(u64, (IpAddr, u32))> = Vec::new();
    let mut known = HashMap::<(IpAddr, u32), Place>::new();
    let mut now = Duration::ZERO;
    for step in bytes.as_chunks::<8>().0 {
        let [choice, host, number, which, rest @ ..] = *step;
        let word = u32::from_le_bytes(rest);
        let (peer, number) = (IpAddr::from([10, 0, 1, host & 3]), u32::from(number & 7));
        let from = MadSource::between((local, PORT).into(), peer, word as u16);
        let own = asked.get(usize::from(which) % asked.len().max(1)).copied();
        // Ours, as often as not.
        let transaction =
            own.map_or(word.into(), |(transaction, _)| transaction ^ u64::from(choice >> 6 == 3));
        let version = locator.version();
        match choice & 7 {
            0 => {
                // As `find` asks.
                let mut questions = lock(&locator.questions);
                if questions.about((peer, number)).is_none() {
                    let wanted = LocationQuery { local, peer: from.reply_to(), number };
                    let question = Question::new(wanted, Weak::new(), vec![1]);
                    asked.push((questions.add(question), (peer, number)));
                }
            }
            1 | 2 => {
                let lane = (choice & 8 == 0).then(Weak::new);
                match locator.returns(lane, number, from, now) {
                    Some(CounterQuestion::New(transaction)) => asked.push((transaction, (peer, number))),
                    Some(CounterQuestion::Again(transaction)) => {
                        assert!(asked.iter().any(|(known, _)| *known == transaction));
                    }
                    None => {}
                }
                assert_eq!(locator.version(), version, "a question changes nothing");
            }
            3 if choice & 8 != 0 => {
                if let Some((transaction, subject)) = own
                    && let Some(settled) = locator.end(transaction, None)
                {
                    assert_eq!(settled.place, Place::STANDARD_PORT);
                    known.insert(subject, Place::STANDARD_PORT);
                }
            }
            _ => {
                let port = if choice & 16 == 0 { word as u16 } else { 0 };
                let place = Place { port, room: Some(word), host: word.into() };
                let mad = with_attribute(QUEUE_PAIR, method::GET_RESPONSE, transaction, number, place, 0);
                let Some(mut answer) = parse(&mad) else { panic!("it is one of ours") };
                answer.refused = choice & 32 != 0;
                let subject = own.filter(|(own, _)| *own == transaction).map(|(_, subject)| subject);
                let waits = lock(&locator.questions).by_transaction.contains_key(&transaction);
                let settled = locator.believe(&answer, from);
                if !waits || subject != Some((peer, number)) {
                    assert!(settled.is_none() && locator.version() == version, "nobody asked");
                }
                if let Some(settled) = settled {
                    let refused = answer.refused || port == 0;
                    assert_eq!(settled.place, if refused { Place::STANDARD_PORT } else { place });
                    known.insert((peer, number), settled.place);
                    assert!(!lock(&locator.questions).by_transaction.contains_key(&transaction));
                }
            }
        }
        now += Duration::from_micros((word & 0xfff).into());
        let questions = lock(&locator.questions);
        assert_eq!(questions.by_subject.len(), questions.by_transaction.len());
        assert!(questions.by_transaction.len() <= asked.len().min(MOST));
        assert!(questions.by_transaction.values().all(|question| question.hurries <= HURRIES));
    }
    let mut answers = lock(&locator.answers);
    for host in 0..4 {
        for number in 0..8 {
            let subject = (IpAddr::from([10, 0, 1, host]), number);
            assert_eq!(answers.places.get(&subject), known.get(&subject).copied(), "{subject:?}");
        }
    }
}
