//! Objects, by the names that they have in a trace.

use super::*;
use adverb_libibverbs::abi::*;
use adverb_librdmacm::abi::*;

pub(crate) fn device(writer: &mut Writer, address: usize) {
    let device = read::<ibv_device>(address);
    array(writer, &device.name);
}

pub(crate) fn context(writer: &mut Writer, address: usize) {
    match read::<ibv_context>(address).device as usize {
        0 => writer.pointer(address),
        found => device(writer, found),
    }
}

macro_rules! handles {
    ($($name:ident: $structure:ty = $field:ident $form:ident;)*) => {
        $(pub(crate) fn $name(writer: &mut Writer, address: usize) {
            let word = address + core::mem::offset_of!($structure, $field);
            writer.$form(u64::from(read::<u32>(word)));
        })*
    };
}

handles! {
    domain: ibv_pd = handle unsigned;
    window: ibv_mw = handle unsigned;
    completion_queue: ibv_cq = handle unsigned;
    shared_queue: ibv_srq = handle unsigned;
    address_handle: ibv_ah = handle unsigned;
    device_memory: ibv_dm = handle unsigned;
    work_queue: ibv_wq = wq_num hex;
    pair: ibv_qp = qp_num hex;
}

pub(crate) fn region(writer: &mut Writer, address: usize) {
    let region = read::<ibv_mr>(address);
    writer.open(b'{');
    writer.key("lkey").hex(region.lkey.into());
    writer.key("rkey").hex(region.rkey.into());
    writer.close(b'}');
}

pub(crate) fn channel(writer: &mut Writer, address: usize) {
    let fd = read::<ibv_comp_channel>(address).fd;
    writer.open(b'{');
    writer.key("fd").signed(fd.into());
    writer.close(b'}');
}

pub(crate) fn event_channel(writer: &mut Writer, address: usize) {
    let fd = read::<rdma_event_channel>(address).fd;
    writer.open(b'{');
    writer.key("fd").signed(fd.into());
    writer.close(b'}');
}

macro_rules! followed {
    ($($name:ident = $write:ident;)*) => {
        $(/// An object whose pointer the function has written.
        pub(crate) fn $name(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
            let found = if seen.failed { 0 } else { read::<usize>(address) };
            if found == 0 { writer.null() } else { $write(writer, found) }
        })*
    };
}

followed! {
    new_id = identifier;
    found_queue = completion_queue;
    found_event = cm_event;
    found_addresses = addresses;
    found_pointer = pointer;
}

fn pointer(writer: &mut Writer, address: usize) {
    writer.pointer(address);
}
