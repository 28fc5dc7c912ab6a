//! Values as text (`{wr_id=1, opcode=IBV_WR_SEND}`) or as JSON (`{"wr_id":1,"opcode":"IBV_WR_SEND"}`).

use crate::names::{self, Values};
use std::io::Write as _;

/// Appends values to bytes. Between the parts of a structure or a list it puts commas by itself.
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    json: bool,
    /// Whether the next part is the first of its structure or list.
    first: bool,
}

impl Writer {
    pub(crate) fn new(json: bool) -> Self {
        Self { bytes: Vec::with_capacity(256), json, first: true }
    }

    fn part(&mut self) {
        if !std::mem::replace(&mut self.first, false) {
            self.bytes.extend_from_slice(if self.json { b"," } else { b", " });
        }
    }

    /// A part with a name. Its value is written next.
    pub(crate) fn key(&mut self, name: &str) -> &mut Self {
        self.part();
        if self.json {
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
        self.part();
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

    /// What is neither.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next part is the first one.
    pub(crate) fn begin(&mut self) {
        self.first = true;
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// A word of C.
    pub(crate) fn word(&mut self, word: &str) {
        if self.json {
            self.string(word.as_bytes());
        } else {
            self.bytes.extend_from_slice(word.as_bytes());
        }
    }

    /// No object.
    pub(crate) fn null(&mut self) {
        self.raw(if self.json { b"null" } else { b"NULL" });
    }

    /// A string, in quotes. Bytes that are no ASCII are written as U+00XX.
    pub(crate) fn string(&mut self, bytes: &[u8]) {
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
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.unsigned(value.unsigned_abs());
    }

    /// `0x…`; in JSON a string, as numbers of 64 bits are not safe in every reader.
    pub(crate) fn hex(&mut self, value: u64) {
        if self.json {
            self.bytes.push(b'"');
        }
        self.bytes.extend_from_slice(b"0x");
        let digits = (67 - (value | 1).leading_zeros()) / 4;
        for digit in (0..digits).rev() {
            self.bytes.push(b"0123456789abcdef"[(value >> (digit * 4)) as usize & 15]);
        }
        if self.json {
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
        if self.json {
            self.bytes.push(b'"');
        }
        let mut left = value;
        let mut separator: &[u8] = b"";
        for (bit, name) in values {
            if left & bit != 0 {
                self.bytes.extend_from_slice(separator);
                self.bytes.extend_from_slice(name.as_bytes());
                (left, separator) = (left & !bit, b"|");
            }
        }
        if left != 0 {
            self.bytes.extend_from_slice(separator);
            let _ = write!(self.bytes, "{left:#x}");
        }
        if self.json {
            self.bytes.push(b'"');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(write: impl Fn(&mut Writer)) -> [String; 2] {
        [false, true].map(|json| {
            let mut writer = Writer::new(json);
            write(&mut writer);
            String::from_utf8(writer.bytes).expect("ASCII")
        })
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
