//! Devices: the list, names and attributes.

use core::ffi::{c_char, c_int, c_void};
use std::convert::Infallible;
use std::ptr::null;
use std::sync::Arc;

use adverb_core::attributes::{DeviceAttributes, TransportType};
use adverb_core::clock;
use adverb_core::device::{Context, Device};
use adverb_core::qp::Service;
use adverb_core::request::Opcode;
use adverb_core::rss::{HashFields, MOST_ENTRIES};
use adverb_core::{setting, sysfs};

use crate::abi::{
    IBV_ATOMIC_HCA, IBV_ATOMIC_NONE, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_MANAGED_FLOW_STEERING,
    IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE,
    IBV_DEVICE_SYS_IMAGE_GUID, IBV_DEVICE_UD_AV_PORT_ENFORCE, IBV_DEVICE_XRC, IBV_NODE_CA, IBV_NODE_RNIC,
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ,
    IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE,
    IBV_QPT_RAW_PACKET, IBV_RX_HASH_FUNC_TOEPLITZ, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP,
    IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_cq_moderation_caps, ibv_device, ibv_device_attr,
    ibv_device_attr_ex, ibv_odp_caps, ibv_values_ex,
};
use crate::context::context;
use crate::errno::{Call, fail_null, refusal};
use crate::grow_list::GrowList;
use crate::host;
use crate::object::Object;

/// The device's clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// A vendor's number that is none, as the kernel's software drivers have it.
const NO_VENDOR: u32 = 0x00ff_ffff;

/// What stands behind a `struct ibv_device`.
pub struct DeviceSide {
    /// The device.
    pub device: Arc<Device>,
}

/// A device as C sees it.
pub type DeviceObject = Object<ibv_device, DeviceSide>;

/// The object of a device. There is one for each device of a process: programs keep the pointers of devices
/// that they opened.
struct DevicePointer(*mut DeviceObject);

// SAFETY: the object is never freed once it is in the list, and its fields are only read.
unsafe impl Send for DevicePointer {}
// SAFETY: as above.
unsafe impl Sync for DevicePointer {}

impl Drop for DevicePointer {
    fn drop(&mut self) {
        // SAFETY: only an object that never got into the list is dropped.
        unsafe { Object::free(self.0) };
    }
}

static KNOWN: GrowList<DevicePointer> = GrowList::new();

/// The devices of this process. The first call builds the engine; every entry point that needs it comes
/// through here.
pub fn devices() -> adverb_core::error::Result<Vec<Arc<Device>>> {
    let _call = Call::new();
    adverb_core::engine::install(crate::TRANSPORTS);
    Device::all()
}

/// The C object of a device.
pub fn device_object(device: &Arc<Device>) -> *mut ibv_device {
    // SAFETY: objects in the list are never freed.
    let is_it = |known: &DevicePointer| Arc::ptr_eq(unsafe { &(*known.0).inner.device }, device);
    let make = || {
        Ok::<_, Infallible>(DevicePointer(DeviceObject::allocate(
            describe(device),
            DeviceSide { device: device.clone() },
        )))
    };
    match KNOWN.find_or_add(is_it, make) {
        Ok(known) => known.0.cast(),
        Err(never) => match never {},
    }
}

/// The device of a pointer from C, or `None` for NULL and for what is no device. Programs copy the structure
/// and pass their copy, as they may where everything that is asked for stands in it: its name says which
/// device it is.
///
/// # Safety
/// `pointer` is NULL or points to a readable `ibv_device`.
// PRACTICE-CALL-2
pub unsafe fn device_of(pointer: *const ibv_device) -> Option<&'static DeviceObject> {
    if pointer.is_null() || !pointer.is_aligned() {
        return None;
    }
    // SAFETY: objects in the list are never freed.
    let object = |known: &DevicePointer| -> &'static DeviceObject { unsafe { &*known.0 } };
    let itself = KNOWN.find(|known| std::ptr::eq(known.0.cast::<ibv_device>(), pointer));
    if let Some(known) = itself {
        return Some(object(known));
    }
    // SAFETY: the caller's promise: a copy has all that the structure has, and nothing behind it is read.
    let name = unsafe { (&raw const (*pointer).name).read() };
    // SAFETY: the structure of a device is written once, before it is in the list.
    let is_it = |known: &DevicePointer| unsafe { (*object(known).c()).name == name };
    KNOWN.find(is_it).map(object)
}

fn describe(device: &Arc<Device>) -> ibv_device {
    let mut c = ibv_device::zeroed();
    (c.node_type, c.transport_type) = match device.transport().attributes().transport {
        TransportType::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
        TransportType::Ib => (IBV_NODE_CA, IBV_TRANSPORT_IB),
    };
    let verbs_name = sysfs::verbs_name(device.index(), setting::host_library().is_some());
    put(&mut c.name, device.name());
    put(&mut c.dev_name, &verbs_name);
    put(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{verbs_name}"));
    put(&mut c.ibdev_path, &format!("/sys/class/infiniband/{}", device.name()));
    c
}

/// Copies as much of `text` as fits, with a terminator.
pub(crate) fn put(target: &mut [c_char], text: &str) {
    let room = target.len() - 1;
    for (slot, byte) in target.iter_mut().zip(text.bytes().take(room).chain([0])) {
        *slot = byte as c_char;
    }
}

/// The devices, ours and then the host's, as an array that ends with NULL (`ibv_get_device_list(3)`). NULL
/// and `errno` when there is no memory or no descriptor left; an empty array when there is no device.
///
/// # Safety
/// `count` is NULL or valid.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let found = match devices() {
        Ok(found) => found,
        Err(error) => return fail_null(refusal(&error)),
    };
    let found: Vec<_> = found.iter().map(device_object).chain(host::devices()).collect();
    // SAFETY: room for the devices and the NULL; zeroed memory is an array of NULLs.
    let list =
        unsafe { libc::calloc(found.len() + 1, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
    if list.is_null() {
        return fail_null(libc::ENOMEM);
    }
    for (place, device) in found.iter().enumerate() {
        // SAFETY: inside the array.
        unsafe { *list.add(place) = *device };
    }
    // SAFETY: the caller's promise.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = found.len() as c_int;
    }
    list
}

/// Frees the array; the devices stay (`ibv_get_device_list(3)`).
///
/// # Safety
/// `list` is NULL or came from [`ibv_get_device_list`].
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: it was allocated with calloc.
    unsafe { libc::free(list.cast::<c_void>()) }
}

/// The device's name (`ibv_get_device_name(3)`), as its structure has it: programs make such structures
/// themselves, too. NULL for NULL.
///
/// # Safety
/// `device` is NULL or points to a readable `ibv_device`.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return null();
    }
    // SAFETY: the caller's promise; no reference is made, so nothing is asked of its alignment.
    // PRACTICE-CALL-2
    unsafe { (&raw const (*device).name).cast::<c_char>() }
}

/// The node GUID in network order (`ibv_get_device_guid(3)`).
///
/// # Safety
/// `device` is NULL or points to a readable `ibv_device`.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's promise.
    let object = unsafe { device_of(device) };
    object.map_or(0, |object| object.inner.device.transport().attributes().node_guid.to_be())
}

/// The index that the kernel's netlink knows a device by (`ibv_get_device_index(3)`): -1, for it knows none
/// of ours, and may know another by any number.
///
/// # Safety
/// None is needed: the device is not looked at.
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// Limits and abilities (`ibv_query_device(3)`).
///
/// # Safety
/// `context` is NULL or an open context; `attr` is NULL or has room.
pub unsafe extern "C" fn ibv_query_device(pointer: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), false) = (unsafe { context(pointer) }, attr.is_null()) else { return libc::EINVAL };
    // SAFETY: the caller's promise.
    unsafe { attr.write(attributes(&context.inner.core)) };
    0
}

/// Limits and abilities, with the extended attributes (`ibv_query_device_ex(3)`). Fills as much as the caller
/// has room for.
pub(crate) unsafe extern "C" fn query_device_ex(
    pointer: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // The input structure is one word, a mask of which no bit has a meaning yet.
    // SAFETY: `input` is NULL or points to a `struct ibv_query_device_ex_input`.
    let asked = unsafe { input.cast::<u32>().as_ref() }.copied().unwrap_or(0);
    if asked != 0 || attr.is_null() || size < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return libc::EINVAL };
    let core = context.inner.core.attributes();
    let mut full = ibv_device_attr_ex::zeroed();
    full.orig_attr = attributes(&context.inner.core);
    full.device_cap_flags_ex = full.orig_attr.device_cap_flags.into();
    full.completion_timestamp_mask = u64::MAX;
    full.hca_core_clock = CLOCK_KHZ;
    full.phys_port_cnt_ex = 1;
    full.odp_caps = paging(&core);
    if core.services.contains(&Service::RawPacket) {
        full.max_wq_type_rq = core.max_srq;
        full.rss_caps.supported_qpts = 1 << IBV_QPT_RAW_PACKET;
        full.rss_caps.max_rwq_indirection_tables = core.max_srq;
        full.rss_caps.max_rwq_indirection_table_size = MOST_ENTRIES as u32;
        full.rss_caps.rx_hash_fields_mask = HashFields::all().bits();
        full.rss_caps.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
    }
    full.xrc_odp_caps = paging_of(&core, Service::XrcSend);
    full.max_dm_size = core.max_dm_size;
    full.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
    // SAFETY: the caller has room for `size` bytes; what is beyond our structure becomes zero.
    unsafe {
        let filled = size.min(size_of::<ibv_device_attr_ex>());
        attr.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast::<u8>(), filled);
        attr.cast::<u8>().add(filled).write_bytes(0, size - filled);
    }
    0
}

/// The device's clock (`ibv_query_rt_values_ex(3)`): its counter in the nanoseconds, as other drivers have
/// it, so that it compares with the timestamps of completions.
pub(crate) unsafe extern "C" fn query_rt_values(
    pointer: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(_), Some(values)) = (unsafe { context(pointer) }, unsafe { values.as_mut() }) else {
        return libc::EINVAL;
    };
    if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: clock::device() as i64 };
    }
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    0
}

/// What a service does. Memory is never pinned, so it does all of that with pages on demand.
fn paging_of(core: &DeviceAttributes, service: Service) -> u32 {
    if !core.services.contains(&service) {
        return 0;
    }
    let shared = if core.max_srq > 0 { IBV_ODP_SUPPORT_SRQ_RECV } else { 0 };
    let messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | shared;
    match service {
        Service::Ud => messages,
        Service::Uc => messages | IBV_ODP_SUPPORT_WRITE,
        _ => {
            let atomics = if core.atomics { IBV_ODP_SUPPORT_ATOMIC } else { 0 };
            messages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | atomics
        }
    }
}

fn paging(core: &DeviceAttributes) -> ibv_odp_caps {
    let of = |service| paging_of(core, service);
    ibv_odp_caps {
        general_caps: IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT,
        per_transport_caps: [of(Service::Rc), of(Service::Uc), of(Service::Ud)],
    }
}

/// The C structure of a device's attributes.
fn attributes(context: &Context) -> ibv_device_attr {
    let core = &context.attributes();
    let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let mut c = ibv_device_attr::zeroed();
    put(&mut c.fw_ver, env!("CARGO_PKG_VERSION"));
    c.node_guid = core.node_guid.to_be();
    (c.vendor_id, c.vendor_part_id) = context.device().description().identity.unwrap_or((NO_VENDOR, 0));
    c.sys_image_guid = core.node_guid.to_be();
    c.max_mr_size = core.max_mr_size;
    // Registration works on bytes, so any page size will do: all of 4 KiB and more.
    c.page_size_cap = !0xfff;
    c.max_qp = number(core.max_qp);
    c.max_qp_wr = number(core.max_qp_wr);
    c.max_sge = number(core.max_sge);
    c.max_sge_rd = number(core.max_sge_rd);
    c.max_cq = number(core.max_cq);
    c.max_cqe = number(core.max_cqe);
    c.max_mr = number(core.max_mr);
    c.max_mw = number(core.max_mw);
    c.max_pd = number(core.max_pd);
    c.max_qp_rd_atom = number(core.max_qp_rd_atom);
    c.max_res_rd_atom = number(core.max_qp_rd_atom.saturating_mul(core.max_qp));
    c.max_qp_init_rd_atom = number(core.max_qp_init_rd_atom);
    c.atomic_cap = if core.atomics { IBV_ATOMIC_HCA } else { IBV_ATOMIC_NONE };
    c.max_ah = number(core.max_ah);
    c.max_mcast_grp = number(core.max_mcast_grp);
    c.max_mcast_qp_attach = number(core.max_mcast_qp_attach);
    c.max_total_mcast_qp_attach = number(core.max_mcast_grp.saturating_mul(core.max_mcast_qp_attach));
    c.max_srq = number(core.max_srq);
    c.max_srq_wr = number(core.max_srq_wr);
    c.max_srq_sge = number(core.max_srq_sge);
    c.max_pkeys = 1;
    c.phys_port_cnt = 1;
    if core.max_srq > 0 {
        c.device_cap_flags |= IBV_DEVICE_SRQ_RESIZE;
    }
    if core.max_mw > 0 {
        // One window serves one queue pair and its domain.
        c.device_cap_flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    }
    if core.operations.contains(&Opcode::SendWithInvalidate)
        && core.operations.contains(&Opcode::LocalInvalidate)
    {
        c.device_cap_flags |= IBV_DEVICE_MEM_MGT_EXTENSIONS;
    }
    if core.transport == TransportType::Ib {
        c.device_cap_flags |= IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_UD_AV_PORT_ENFORCE
            | IBV_DEVICE_CURR_QP_STATE_MOD;
    }
    if core.services.contains(&Service::RawPacket) {
        c.device_cap_flags |= IBV_DEVICE_MANAGED_FLOW_STEERING;
    }
    if core.services.contains(&Service::XrcReceive) {
        c.device_cap_flags |= IBV_DEVICE_XRC;
    }
    c
}
