//! Regions, device memory and domains.

use super::*;
use crate::names;
use adverb_libibverbs::abi::*;

pub(crate) fn region_init(writer: &mut Writer, address: usize) {
    let init = read::<ibv_mr_init_attr>(address);
    writer.open(b'{');
    writer.key("length").unsigned(init.length as u64);
    writer.key("access").flags(names::ACCESS, (init.access as u32).into());
    writer.key("comp_mask").flags(names::MR_INIT_MASK, init.comp_mask);
    if init.comp_mask & IBV_REG_MR_MASK_IOVA != 0 {
        writer.key("iova").hex(init.iova);
    }
    if init.comp_mask & IBV_REG_MR_MASK_ADDR != 0 {
        writer.key("addr").pointer(init.addr as usize);
    }
    writer.close(b'}');
}

pub(crate) fn memory_init(writer: &mut Writer, address: usize) {
    fields::<ibv_alloc_dm_attr>(writer, address, &[], all);
}

pub(crate) fn parent_init(writer: &mut Writer, address: usize) {
    let forms = [
        ("pd", Form::Of(domain)),
        ("td", Form::Pointer),
        ("comp_mask", Form::Hex),
        ("alloc", Form::Pointer),
        ("free", Form::Pointer),
        ("pd_context", Form::Pointer),
    ];
    let mask = read::<u32>(address + core::mem::offset_of!(ibv_parent_domain_init_attr, comp_mask));
    fields::<ibv_parent_domain_init_attr>(writer, address, &forms, |name| match name {
        "alloc" | "free" => mask & 1 != 0,
        "pd_context" => mask & 2 != 0,
        _ => true,
    });
}

pub(crate) fn xrc_init(writer: &mut Writer, address: usize) {
    let forms = [("comp_mask", Form::Flags(names::XRCD_MASK)), ("fd", Form::Signed), ("oflags", Form::Hex)];
    fields::<ibv_xrcd_init_attr>(writer, address, &forms, all);
}
