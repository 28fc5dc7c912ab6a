//! Values as text (`{wr_id=1, opcode=IBV_WR_SEND}`), as JSON (`{"wr_id":1,"opcode":"IBV_WR_SEND"}`), or as tokens, of which either is made later.

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

    /// Writes what tokens stand for. They end where they are wrong.
    pub(crate) fn replay(&mut self, mut tokens: &[u8]) {
        while let Some((token, rest)) = tokens.split_first() {
            tokens = rest;
            match *token {
                b'{' | b'[' => self.open(*token),
                b'}' | b']' => self.close(*token),
                ITEM => _ = self.item(),
                NULL => self.null(),
                UNSIGNED | SIGNED | HEX => {
                    let Some((bytes, rest)) = tokens.split_first_chunk::<8>() else { return };
                    tokens = rest;
                    let value = u64::from_ne_bytes(*bytes);
                    match *token {
                        UNSIGNED => self.unsigned(value),
                        SIGNED => self.signed(value as i64),
                        _ => self.hex(value),
                    }
                }
                KEY | WORD | STRING => {
                    let Some((length, rest)) = tokens.split_first_chunk::<2>() else { return };
                    let Some((bytes, rest)) = rest.split_at_checked(u16::from_ne_bytes(*length).into())
                    else {
                        return;
                    };
                    tokens = rest;
                    let text = String::from_utf8_lossy(bytes);
                    match *token {
                        KEY => _ = self.key(&text),
                        WORD => self.word(&text),
                        _ => self.string(bytes),
                    }
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens must say the same.
    fn both(write: impl Fn(&mut Writer)) -> [String; 2] {
        let mut tokens = Writer::new(Style::Tokens);
        write(&mut tokens);
        [Style::Text, Style::Json].map(|style| {
            let mut writer = Writer::new(style);
            write(&mut writer);
            let mut replayed = Writer::new(style);
            replayed.replay(&tokens.bytes);
            assert_eq!(replayed.bytes, writer.bytes);
            String::from_utf8(writer.bytes).expect("ASCII")
        })
    }

    #[test]
    fn tokens_that_are_cut_or_wrong_end_there() {
        let mut tokens = Writer::new(Style::Tokens);
        tokens.key("name").string(b"value");
        tokens.key("number").hex(17);
        for length in 0..tokens.bytes.len() {
            let mut writer = Writer::new(Style::Text);
            writer.replay(&tokens.bytes[..length]);
            writer.replay(b"?k");
        }
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
