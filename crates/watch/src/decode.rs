//! Arguments and results by what they mean.
//!
//! Programs pass structures by pointer. They are read as the function itself reads them, so a pointer that
//! kills the program here would have killed it there.

mod completions;
mod device;
mod manager;
mod memory;
mod objects;
mod pair;
mod queues;
mod requests;

use crate::names::Values;
use crate::writer::Writer;
use adverb_libibverbs::abi::Layout;
use adverb_libibverbs::seam::Arguments;
use core::ffi::{CStr, c_char};

pub(crate) use completions::*;
pub(crate) use device::*;
pub(crate) use manager::*;
pub(crate) use memory::*;
pub(crate) use objects::*;
pub(crate) use pair::*;
pub(crate) use queues::*;
pub(crate) use requests::*;

/// A call that has ended.
#[derive(Clone, Copy)]
pub(crate) struct CallOutcome<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) value: usize,
    pub(crate) failed: bool,
}

/// What an argument, a result or a field is.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Signed,
    /// A number of 32 bits, or as wide as the field.
    Unsigned,
    Byte,
    Half,
    Wide,
    Hex,
    /// A number of 64 bits, hexadecimal.
    Address,
    /// A GUID: 64 bits in network order, hexadecimal, with as many digits as in `ibv_devices`.
    Guid,
    /// A pointer that is not followed.
    Pointer,
    Name(Values),
    Flags(Values),
    /// Flags in 64 bits.
    WideFlags(Values),
    /// A C string.
    Text,
    /// A pointer that is followed, before the call.
    Of(fn(&mut Writer, usize)),
    /// What depends on other arguments.
    With(fn(&mut Writer, usize, &Arguments)),
    /// A result, which is looked at after the call.
    After(fn(&mut Writer, usize, CallOutcome<'_>)),
    /// A structure inside a structure: its address is given.
    Inside(fn(&mut Writer, usize)),
    /// Not shown.
    Skip,
}

impl Form {
    /// Whether the argument is known only after the call.
    pub(crate) fn is_result(&self) -> bool {
        matches!(self, Self::After(_))
    }

    /// Writes a word.
    pub(crate) fn write(&self, writer: &mut Writer, word: usize, seen: CallOutcome<'_>) {
        match *self {
            Self::Signed => writer.signed(i64::from(word as i32)),
            Self::Unsigned => writer.unsigned(u64::from(word as u32)),
            Self::Byte => writer.unsigned(u64::from(word as u8)),
            Self::Half => writer.unsigned(u64::from(word as u16)),
            Self::Wide => writer.unsigned(word as u64),
            Self::Hex => writer.hex(u64::from(word as u32)),
            Self::Address => writer.hex(word as u64),
            Self::Guid => writer.word(&format!("{:016x}", u64::from_be(word as u64))),
            Self::Pointer => writer.pointer(word),
            Self::Name(values) => writer.name(values, u64::from(word as u32)),
            Self::Flags(values) => writer.flags(values, u64::from(word as u32)),
            Self::WideFlags(values) => writer.flags(values, word as u64),
            Self::Text => text(writer, word),
            Self::Of(_) if word == 0 => writer.null(),
            Self::Of(write) | Self::Inside(write) => write(writer, word),
            Self::With(write) => write(writer, word, seen.arguments),
            Self::After(_) if word == 0 => writer.null(),
            Self::After(write) => write(writer, word, seen),
            Self::Skip => {}
        }
    }
}

/// Reads a value of C.
///
/// The address is one that the program passed for such a value, and not NULL: what the function was given, it
/// may read.
fn read<T: Copy>(address: usize) -> T {
    // SAFETY: as above.
    unsafe { (address as *const T).read_unaligned() }
}

/// Writes the fields of a structure, in their order, that `shown` accepts; as `forms` say, otherwise as
/// numbers. The others are not read: a program of an older header may not have them.
fn fields<T: Layout>(
    writer: &mut Writer,
    address: usize,
    forms: &[(&str, Form)],
    shown: impl Fn(&str) -> bool,
) {
    const NONE: Arguments = [0; 6];
    let seen = CallOutcome { arguments: &NONE, value: 0, failed: false };
    writer.open(b'{');
    for (name, offset, size) in T::FIELDS {
        let name = name.trim_start_matches("r#");
        let form = forms.iter().find(|(known, _)| *known == name).map(|(_, form)| form);
        if matches!(form, Some(Form::Skip)) || !shown(name) {
            continue;
        }
        let place = address + offset;
        if let Some(Form::Inside(write)) = form {
            write(writer.key(name), place);
            continue;
        }
        let word = match size {
            1 => usize::from(read::<u8>(place)),
            2 => usize::from(read::<u16>(place)),
            4 => read::<u32>(place) as usize,
            8 => read::<usize>(place),
            _ => continue,
        };
        match form {
            Some(form) => form.write(writer.key(name), word, seen),
            None => writer.key(name).unsigned(word as u64),
        }
    }
    writer.close(b'}');
}

fn all(_: &str) -> bool {
    true
}

fn text(writer: &mut Writer, address: usize) {
    if address == 0 {
        return writer.null();
    }
    // SAFETY: a C string, as the function wants it.
    writer.string(unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes());
}

/// A name in an array of characters.
fn array(writer: &mut Writer, characters: &[c_char]) {
    let end = characters.iter().position(|c| *c == 0).unwrap_or(characters.len());
    let bytes: Vec<u8> = characters[..end].iter().map(|c| *c as u8).collect();
    writer.string(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::Style;
    use adverb_libibverbs::abi::*;
    use adverb_libibverbs::seam::{MOST_ELEMENTS, MOST_REQUESTS};
    use adverb_librdmacm::abi::rdma_addrinfo;

    fn shown(write: impl FnOnce(&mut Writer)) -> String {
        let mut writer = Writer::new(Style::Json);
        write(&mut writer);
        String::from_utf8_lossy(&writer.bytes).into_owned()
    }

    /// No program may read there.
    const NOWHERE: usize = 16;

    #[test]
    fn hints_are_read_as_far_as_the_function_reads_them() {
        // SAFETY: plain data.
        let mut hints: rdma_addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_next = NOWHERE as *mut rdma_addrinfo;
        hints.ai_src_addr = NOWHERE as *mut _;
        let text = shown(|writer| super::hints(writer, &raw const hints as usize));
        assert!(text.contains("ai_port_space") && !text.contains("ai_src_addr"), "{text}");
    }

    #[test]
    fn queues_of_a_target_of_xrc_are_not_read() {
        // SAFETY: plain data.
        let mut init: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        (init.send_cq, init.recv_cq) = (NOWHERE as *mut ibv_cq, NOWHERE as *mut ibv_cq);
        (init.srq, init.qp_type) = (NOWHERE as *mut ibv_srq, IBV_QPT_XRC_RECV);
        let text = shown(|writer| pair_init_ex(writer, &raw const init as usize));
        assert!(text.contains("XRC_RECV") && !text.contains("send_cq"), "{text}");
        let text = shown(|writer| pair_init(writer, &raw const init as usize));
        assert!(!text.contains("srq"), "{text}");
    }

    #[test]
    fn a_list_that_no_request_can_have_is_not_read() {
        for count in [-1, i64::from(MOST_ELEMENTS) + 1, i64::from(i32::MAX)] {
            assert!(
                shown(|writer| requests::element_list(writer, NOWHERE, count)).contains("0x10"),
                "{count}"
            );
        }
    }

    #[test]
    fn a_list_of_requests_that_goes_round_ends() {
        // SAFETY: plain data.
        let mut receive: ibv_recv_wr = unsafe { std::mem::zeroed() };
        receive.next = &raw mut receive;
        let text = shown(|writer| receive_list(writer, &raw const receive as usize));
        assert_eq!(text.matches("wr_id").count(), MOST_REQUESTS);
    }
}
