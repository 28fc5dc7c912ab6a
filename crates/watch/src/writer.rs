//! Values as text (`{wr_id=1, opcode=IBV_WR_SEND}`), as JSON (`{"wr_id":1,"opcode":"IBV_WR_SEND"}`), or as
//! tokens, of which either is made later.

use crate::names::{self, Values};
use std::io::Write as _;

/// What a writer makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
    /// A byte for each value, and its bytes ([`Writer::replay`]). Brackets are tokens by themselves.
    Tokens,
}

/// Tokens.
const KEY: u8 = b'k';
const ITEM: u8 = b'i';
const WORD: u8 = b'w';
const STRING: u8 = b's';
const NULL: u8 = b'n';
const UNSIGNED: u8 = b'u';
const SIGNED: u8 = b'g';
const HEX: u8 = b'x';

/// Appends values to bytes. Between the parts of a structure or a list it puts commas by itself.
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    style: Style,
    /// Whether the next part is the first of its structure or list.
    first: bool,
}

impl Writer {
    pub(crate) fn new(style: Style) -> Self {
        Self { bytes: Vec::with_capacity(256), style, first: true }
    }

    /// A token with bytes behind it. Longer ones than two bytes can say are cut.
    fn token(&mut self, token: u8, bytes: &[u8]) {
        let length = bytes.len().min(u16::MAX.into());
        self.bytes.push(token);
        self.bytes.extend_from_slice(&(length as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&bytes[..length]);
    }

    fn number(&mut self, token: u8, value: u64) {
        self.bytes.push(token);
        self.bytes.extend_from_slice(&value.to_ne_bytes());
    }

    fn part(&mut self) {
        if !std::mem::replace(&mut self.first, false) {
            self.bytes.extend_from_slice(if self.style == Style::Json { b"," } else { b", " });
        }
    }

    /// A part with a name. Its value is written next.
    pub(crate) fn key(&mut self, name: &str) -> &mut Self {
        if self.style == Style::Tokens {
            self.token(KEY, name.as_bytes());
            return self;
        }
        self.part();
        if self.style == Style::Json {
            self.string(name.as_bytes());
            self.bytes.push(b':');
        } else {
            self.bytes.extend_from_slice(name.as_bytes());
            self.bytes.push(b'=');
        }
        self
    }

    /// A part of a list. Its value is written next.
    pub(crate) fn item(&mut self) -> &mut Self {
        if self.style == Style::Tokens {
            self.bytes.push(ITEM);
        } else {
            self.part();
        }
        self
    }

    /// Begins a structure (`{`) or a list (`[`).
    pub(crate) fn open(&mut self, bracket: u8) {
        self.bytes.push(bracket);
        self.first = true;
    }

    /// Ends it.
    pub(crate) fn close(&mut self, bracket: u8) {
        self.bytes.push(bracket);
        self.first = false;
    }

    /// What is none of these. Not of tokens.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next part is the first one.
    pub(crate) fn begin(&mut self) {
        self.first = true;
    }

    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// A word of C.
    pub(crate) fn word(&mut self, word: &str) {
        match self.style {
            Style::Text => self.bytes.extend_from_slice(word.as_bytes()),
            Style::Json => self.string(word.as_bytes()),
            Style::Tokens => self.token(WORD, word.as_bytes()),
        }
    }

    /// No object.
    pub(crate) fn null(&mut self) {
        match self.style {
            Style::Text => self.raw(b"NULL"),
            Style::Json => self.raw(b"null"),
            Style::Tokens => self.bytes.push(NULL),
        }
    }

    /// A string, in quotes. Bytes that are no ASCII are written as U+00XX.
    pub(crate) fn string(&mut self, bytes: &[u8]) {
        if self.style == Style::Tokens {
            return self.token(STRING, bytes);
        }
        self.bytes.push(b'"');
        for byte in bytes {
            match byte {
                b'"' | b'\\' => self.bytes.extend_from_slice(&[b'\\', *byte]),
                b' '..=b'~' => self.bytes.push(*byte),
                _ => {
                    let _ = write!(self.bytes, "\\u{byte:04x}");
                }
            }
        }
        self.bytes.push(b'"');
    }

    pub(crate) fn unsigned(&mut self, mut value: u64) {
        if self.style == Style::Tokens {
            return self.number(UNSIGNED, value);
        }
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.bytes.extend_from_slice(&digits[at..]);
    }

    pub(crate) fn signed(&mut self, value: i64) {
        if self.style == Style::Tokens {
            return self.number(SIGNED, value as u64);
        }
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.unsigned(value.unsigned_abs());
    }

    /// `0x…`; in JSON a string, as numbers of 64 bits are not safe in every reader.
    pub(crate) fn hex(&mut self, value: u64) {
        if self.style == Style::Tokens {
            return self.number(HEX, value);
        }
        if self.style == Style::Json {
            self.bytes.push(b'"');
        }
        self.bytes.extend_from_slice(b"0x");
        let digits = (67 - (value | 1).leading_zeros()) / 4;
        for digit in (0..digits).rev() {
            self.bytes.push(b"0123456789abcdef"[(value >> (digit * 4)) as usize & 15]);
        }
        if self.style == Style::Json {
            self.bytes.push(b'"');
        }
    }

    /// A pointer that is not followed.
    pub(crate) fn pointer(&mut self, address: usize) {
        if address == 0 { self.null() } else { self.hex(address as u64) }
    }

    /// A value of an enumeration.
    pub(crate) fn name(&mut self, values: Values, value: u64) {
        match names::of(values, value) {
            Some(name) => self.word(name),
            None => self.unsigned(value),
        }
    }

    /// Flags: their names, with `|` between, and the bits that have no name.
    pub(crate) fn flags(&mut self, values: Values, value: u64) {
        if value == 0 {
            return self.unsigned(0);
        }
        let mut words = String::new();
        let mut left = value;
        for (bit, name) in values {
            if left & bit != 0 {
                words.push_str(if words.is_empty() { "" } else { "|" });
                words.push_str(name);
                left &= !bit;
            }
        }
        if left != 0 {
            words.push_str(if words.is_empty() { "" } else { "|" });
            words.push_str(&format!("{left:#x}"));
        }
        self.word(&words);
    }

    /// Writes what tokens stand for. They end where they are wrong: another process may have written them.
    /// What is written is whole nevertheless.
    pub(crate) fn replay(&mut self, tokens: &[u8], whole: TokenContents) {
        let mut open = Nesting { brackets: Vec::new(), wants_value: whole == TokenContents::Value, whole };
        self.replay_while_right(tokens, &mut open);
        if open.wants_value {
            self.null();
        }
        while let Some(bracket) = open.brackets.pop() {
            self.close(if bracket == b'{' { b'}' } else { b']' });
        }
    }

    fn replay_while_right(&mut self, mut tokens: &[u8], open: &mut Nesting) {
        while let Some((token, rest)) = tokens.split_first()
            && open.take(*token)
        {
            tokens = rest;
            match *token {
                b'{' | b'[' => self.open(*token),
                b'}' | b']' => self.close(*token),
                ITEM => _ = self.item(),
                NULL => self.null(),
                UNSIGNED | SIGNED | HEX => {
                    let Some((bytes, rest)) = tokens.split_first_chunk::<8>() else {
                        return self.null();
                    };
                    tokens = rest;
                    let value = u64::from_ne_bytes(*bytes);
                    match *token {
                        UNSIGNED => self.unsigned(value),
                        SIGNED => self.signed(value as i64),
                        _ => self.hex(value),
                    }
                }
                WORD | STRING => {
                    let Some((bytes, rest)) = split_off_bytes(tokens) else { return self.null() };
                    tokens = rest;
                    match printable(bytes) {
                        Some(word) if *token == WORD => self.word(word),
                        _ => self.string(bytes),
                    }
                }
                _ => {
                    let key = split_off_bytes(tokens).and_then(|(name, rest)| Some((printable(name)?, rest)));
                    let Some((name, rest)) = key else {
                        open.wants_value = false;
                        return;
                    };
                    tokens = rest;
                    self.key(name);
                }
            }
        }
    }
}

/// What tokens stand for as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenContents {
    /// Parts with names: the arguments of a call.
    Parts,
    /// A value.
    Value,
}

/// Structures and lists inside each other. Values of calls have fewer; readers of JSON take 128.
const MOST_BRACKETS: usize = 32;

/// Where the tokens are.
struct Nesting {
    /// Of structures and lists that have not ended.
    brackets: Vec<u8>,
    /// A value comes next.
    wants_value: bool,
    whole: TokenContents,
}

impl Nesting {
    /// Whether a token may come here, as it does then.
    fn take(&mut self, token: u8) -> bool {
        let inside = self.brackets.last().copied();
        let (is_right, wants_value) = match token {
            b'{' | b'[' => (self.wants_value && self.brackets.len() < MOST_BRACKETS, false),
            b'}' => (!self.wants_value && inside == Some(b'{'), false),
            b']' => (!self.wants_value && inside == Some(b'['), false),
            ITEM => (!self.wants_value && inside == Some(b'['), true),
            KEY => {
                let is_inside = inside.map_or(self.whole == TokenContents::Parts, |bracket| bracket == b'{');
                (!self.wants_value && is_inside, true)
            }
            NULL | UNSIGNED | SIGNED | HEX | WORD | STRING => (self.wants_value, false),
            _ => (false, false),
        };
        if is_right {
            match token {
                b'{' | b'[' => self.brackets.push(token),
                b'}' | b']' => _ = self.brackets.pop(),
                _ => {}
            }
            self.wants_value = wants_value;
        }
        is_right
    }
}

/// The bytes of a token, and what follows them.
fn split_off_bytes(tokens: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = tokens.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_ne_bytes(*length).into())
}

/// A text that is written without quotes: words of C, addresses, flags.
fn printable(bytes: &[u8]) -> Option<&str> {
    let is_printable = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    std::str::from_utf8(bytes).ok().filter(|_| is_printable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::random;

    /// Tokens must say the same.
    fn both(write: impl Fn(&mut Writer)) -> [String; 2] {
        let mut tokens = Writer::new(Style::Tokens);
        write(&mut tokens);
        [Style::Text, Style::Json].map(|style| {
            let mut writer = Writer::new(style);
            write(&mut writer);
            let mut replayed = Writer::new(style);
            replayed.replay(&tokens.bytes, TokenContents::Value);
            assert_eq!(replayed.bytes, writer.bytes);
            String::from_utf8(writer.bytes).expect("ASCII")
        })
    }

    #[test]
    fn tokens_that_are_cut_or_wrong_end_there() {
        let mut tokens = Writer::new(Style::Tokens);
        tokens.key("name").string(b"value");
        tokens.key("number").hex(17);
        let written = |tokens: &[u8]| {
            let mut writer = Writer::new(Style::Text);
            writer.replay(tokens, TokenContents::Parts);
            String::from_utf8(writer.bytes).expect("ASCII")
        };
        assert_eq!(written(&tokens.bytes), "name=\"value\", number=0x11");
        let of_name = 3 + 4;
        for length in 0..tokens.bytes.len() {
            let cut = written(&tokens.bytes[..length]);
            assert!(length < of_name || cut.starts_with("name=\"value\"") || cut == "name=NULL", "{cut}");
        }
        assert_eq!(written(b"?k"), "");
    }

    /// Tokens of any kind, most of which may stand where they stand.
    fn random_tokens(whole: TokenContents) -> Vec<u8> {
        const ALL: &[u8] = b"{}[]kiwsnugx?";
        let mut nesting = Nesting { brackets: Vec::new(), wants_value: whole == TokenContents::Value, whole };
        let mut tokens = Vec::new();
        for _ in 0..random::word() % 256 {
            let token = ALL[random::word() as usize % ALL.len()];
            if !nesting.take(token) && !random::word().is_multiple_of(64) {
                continue;
            }
            tokens.push(token);
            match token {
                KEY | WORD | STRING => {
                    let length = random::word() % 4;
                    tokens.extend_from_slice(&(length as u16).to_ne_bytes());
                    let any = b"a\"\\\n\x1b\xff}b";
                    let is_plain = token == KEY && !random::word().is_multiple_of(64);
                    let letter = |_| if is_plain { b'a' } else { any[random::word() as usize % any.len()] };
                    tokens.extend((0..length).map(letter));
                }
                UNSIGNED | SIGNED | HEX => tokens.extend(random::word().to_ne_bytes()),
                _ => {}
            }
        }
        tokens
    }

    /// A program can put any tokens into its ring.
    #[test]
    fn tokens_of_any_kind_and_order_are_written_as_a_whole() {
        let mut longest = 0;
        for whole in [TokenContents::Parts, TokenContents::Value].into_iter().cycle().take(20_000) {
            let tokens = random_tokens(whole);
            let [text, json] = [Style::Text, Style::Json].map(|style| {
                let mut writer = Writer::new(style);
                writer.replay(&tokens, whole);
                String::from_utf8(writer.bytes).expect("ASCII")
            });
            let json = if whole == TokenContents::Parts { format!("{{{json}}}") } else { json };
            let read = serde_json::from_str::<serde_json::Value>(&json);
            assert!(read.is_ok(), "{json} {}", tokens.escape_ascii());
            assert!(!text.contains(char::is_control), "{text}");
            longest = longest.max(json.len());
        }
        assert!(longest > 200, "{longest}");
        let mut writer = Writer::new(Style::Json);
        writer.replay(&b"[i".repeat(1000), TokenContents::Value);
        assert!(serde_json::from_slice::<serde_json::Value>(&writer.bytes).is_ok());
    }

    #[test]
    fn structures_have_commas_between_their_parts() {
        let [text, json] = both(|writer| {
            writer.open(b'{');
            writer.key("wr_id").unsigned(7);
            writer.key("sg_list").open(b'[');
            writer.item().hex(0x10);
            writer.item().hex(0);
            writer.close(b']');
            writer.key("opcode").name(names::WR_OPCODE, 2);
            writer.close(b'}');
        });
        assert_eq!(text, "{wr_id=7, sg_list=[0x10, 0x0], opcode=IBV_WR_SEND}");
        assert_eq!(json, r#"{"wr_id":7,"sg_list":["0x10","0x0"],"opcode":"IBV_WR_SEND"}"#);
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }

    #[test]
    fn flags_have_names_and_what_has_none_is_a_number() {
        let [text, json] = both(|writer| writer.flags(names::SEND_FLAGS, 0x10a));
        assert_eq!(
            (text.as_str(), json.as_str()),
            ("IBV_SEND_SIGNALED|IBV_SEND_INLINE|0x100", "\"IBV_SEND_SIGNALED|IBV_SEND_INLINE|0x100\"")
        );
        assert_eq!(both(|writer| writer.flags(names::ACCESS, 0))[0], "0");
        assert_eq!(both(|writer| writer.name(names::QP_STATE, 77))[0], "77");
    }

    #[test]
    fn strings_and_numbers_are_right_at_their_ends() {
        let [text, json] = both(|writer| writer.string(b"a\"b\\\n\xff"));
        assert_eq!(text, json);
        assert_eq!(serde_json::from_str::<String>(&json).expect("a string"), "a\"b\\\n\u{ff}");
        assert_eq!(both(|writer| writer.unsigned(u64::MAX))[0], u64::MAX.to_string());
        assert_eq!(both(|writer| writer.signed(i64::MIN))[0], i64::MIN.to_string());
        for value in [0, 1, 0xf, 0x10, u64::MAX] {
            assert_eq!(both(|writer| writer.hex(value))[0], format!("{value:#x}"));
        }
    }
}
