//! The messages between importer and exporter.

/// The subject of an importer's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The context itself: which device it is of.
    Context = 1,
    /// A protection domain of it.
    Domain = 2,
    /// A region in the domain.
    Region = 3,
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) subject: Subject,
    /// The secret number of the context.
    pub(super) secret: u64,
    /// Number of the domain.
    pub(super) domain: u32,
    /// Key of the region.
    pub(super) key: u32,
}

const MAGIC: [u8; 4] = *b"aex1";
pub(super) const QUESTION: usize = 24;
const HEAD: usize = 40;
/// Bytes of text at most.
const MOST_TEXT: usize = 200;
pub(super) const LONGEST: usize = HEAD + MOST_TEXT;

impl Question {
    pub(super) fn bytes(&self) -> [u8; QUESTION] {
        let mut bytes = [0; QUESTION];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.subject as u8;
        bytes[8..16].copy_from_slice(&self.secret.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.domain.to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.key.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; QUESTION] = bytes.try_into().ok()?;
        let subject = [Subject::Context, Subject::Domain, Subject::Region]
            .into_iter()
            .find(|subject| *subject as u8 == bytes[4])?;
        (bytes[..4] == MAGIC).then(|| Self {
            subject,
            secret: u64::from_ne_bytes(word(bytes, 8)),
            domain: u32::from_ne_bytes(word(bytes, 16)),
            key: u32::from_ne_bytes(word(bytes, 20)),
        })
    }
}

/// An answer. With that about a region its memory descriptor comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// 0, or the error number of the refusal; of a region whose import was answered before: it has ended.
    pub(super) errno: i32,
    pub(super) access: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    /// Where in the descriptor it begins.
    pub(super) offset: u64,
    /// Name of the device, or why not.
    pub(super) text: String,
}

impl Answer {
    pub(super) fn refusal(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, text: why.into(), ..Self::default() }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LONGEST);
        bytes.extend(MAGIC);
        bytes.extend(self.errno.to_ne_bytes());
        bytes.extend(self.access.to_ne_bytes());
        bytes.extend([0; 4]);
        for word in [self.iova, self.length, self.offset] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(self.text.bytes().take(MOST_TEXT));
        bytes
    }

    /// Reads an answer. Bytes that are no plain text become question marks, since the text goes to a log.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, text) = bytes.split_first_chunk::<HEAD>()?;
        let plain = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' };
        (head[..4] == MAGIC && text.len() <= MOST_TEXT).then(|| Self {
            errno: i32::from_ne_bytes(word(head, 4)),
            access: u32::from_ne_bytes(word(head, 8)),
            iova: u64::from_ne_bytes(word(head, 16)),
            length: u64::from_ne_bytes(word(head, 24)),
            offset: u64::from_ne_bytes(word(head, 32)),
            text: text.iter().map(plain).collect(),
        })
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

/// Tries any bytes. They are a question or an answer that is the same when it is made again, or none. The
/// text for the log is plain.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    if let Some(question) = Question::parse(bytes) {
        assert_eq!(Question::parse(&question.bytes()), Some(question));
    }
    if let Some(answer) = Answer::parse(bytes) {
        assert!(
            answer.text.len() <= MOST_TEXT && answer.text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        );
        assert_eq!(Answer::parse(&answer.bytes()), Some(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_and_an_answer_are_read_back_and_other_bytes_are_refused() {
        let question = Question { subject: Subject::Region, secret: 7 << 40, domain: 8, key: 9 };
        assert_eq!(Question::parse(&question.bytes()), Some(question));
        let answer = Answer {
            errno: 5,
            access: 6,
            iova: 1 << 50,
            length: 2 << 40,
            offset: 3 << 30,
            text: "why not".into(),
        };
        assert_eq!(Answer::parse(&answer.bytes()), Some(answer.clone()));
        let long = Answer { text: "x".repeat(1000), ..answer.clone() };
        assert!(Answer::parse(&long.bytes()).is_some_and(|answer| answer.text.len() == MOST_TEXT));
        let odd = Answer { text: "a\nb\x1b".into(), ..answer };
        assert!(Answer::parse(&odd.bytes()).is_some_and(|answer| answer.text == "a?b?"));
        for at in 0..5 {
            let (mut first, mut second) = (question.bytes(), odd.bytes());
            first[at] ^= 0x40;
            assert_eq!(Question::parse(&first), None);
            second[at.min(3)] ^= 0x40;
            assert_eq!(Answer::parse(&second), None);
        }
        assert_eq!(Question::parse(&question.bytes()[1..]), None);
        assert_eq!(Answer::parse(&odd.bytes()[..HEAD - 1]), None);
        assert_eq!(Answer::parse(&[&odd.bytes()[..], &[b'x'; MOST_TEXT]].concat()), None);
    }
}
