//! What particular adapters and drivers do not offer: profiles, which find where a program relies on more.
//!
//! The figures are those of the drivers, which each profile names. Adapters of one driver differ: a profile
//! has the figures of common ones, and the program's own questions (`ibv_query_device`) stay the better way.

mod calls;

pub(super) use calls::{look, unfenced, unordered};

use super::finding::Kind;
use crate::names;
use adverb_libibverbs::abi::*;
use std::ffi::c_uint;

/// `IBV_QPT_DRIVER`: EFA's SRD.
const DRIVER: c_uint = 0xff;
/// What one scatter/gather element, and a block of mlx5's send queue, take there.
const MLX5_ELEMENT: u64 = 16;
const MLX5_BLOCK: u64 = 64;

const ATOMICS: u32 = 1 << IBV_WR_ATOMIC_CMP_AND_SWP | 1 << IBV_WR_ATOMIC_FETCH_AND_ADD;
const SENDS: u32 = 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM;
const WRITES: u32 = 1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM;
const WINDOWS: u32 = 1 << IBV_WR_BIND_MW | 1 << IBV_WR_LOCAL_INV | 1 << IBV_WR_SEND_WITH_INV;
/// All but those that are newer than most adapters: flush and atomic write.
const USUAL: u32 = SENDS | WRITES | 1 << IBV_WR_RDMA_READ | ATOMICS | WINDOWS;

const REMOTE: c_uint = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// An adapter or driver that a program is compared with.
#[derive(Debug)]
pub(super) struct Profile {
    /// For users.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Services of queue pairs.
    services: &'static [c_uint],
    /// Operations, a bit for each `IBV_WR_*`.
    opcodes: u32,
    /// Rights of regions.
    access: c_uint,
    windows: bool,
    shared_queues: bool,
    send_elements: u32,
    receive_elements: u32,
    /// The most elements of a Read.
    read_elements: u32,
    inline_bytes: u32,
    /// Requests in each queue of a queue pair.
    depth: u32,
    entries: u32,
    shared_depth: u32,
    shared_elements: u32,
    /// Reads and atomics under way.
    reads: u32,
    /// Each address has a GID of RoCE v1, and one of RoCE v2.
    has_old_gids: bool,
    /// ibv_modify_qp takes an address vector. Where it does not, rdma_cm alone connects queue pairs.
    takes_addresses: bool,
}

/// All profiles, in the order of the list that users see.
pub(super) static PROFILES: &[Profile] = &[MLX5, EFA, RXE, SIW, STRICT];

/// Linux, drivers/infiniband/hw/mlx5/main.c (`mlx5_ib_query_device`): elements are what fits into 512 bytes
/// behind the headers of a Write, and `MLX5_MAX_SGE_RD`. rdma-core, providers/mlx5/verbs.c (`sq_overhead`,
/// `mlx5_calc_send_wqe`): inline data is what fits into 1024 bytes. The other figures are the firmware's, as
/// `ibv_devinfo -v` shows them of ConnectX-4 to ConnectX-7.
const MLX5: Profile = Profile {
    name: "mlx5",
    kind: Kind::NotOnMlx5,
    services: &[
        IBV_QPT_RC,
        IBV_QPT_UC,
        IBV_QPT_UD,
        IBV_QPT_XRC_SEND,
        IBV_QPT_XRC_RECV,
        IBV_QPT_RAW_PACKET,
        DRIVER,
    ],
    opcodes: USUAL | 1 << IBV_WR_TSO,
    access: REMOTE
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB,
    windows: true,
    shared_queues: true,
    send_elements: 30,
    receive_elements: 32,
    read_elements: 30,
    inline_bytes: 956,
    depth: 32_768,
    entries: 4_194_303,
    shared_depth: 32_767,
    shared_elements: 31,
    reads: 16,
    has_old_gids: true,
    takes_addresses: true,
};

/// Linux, drivers/infiniband/hw/efa/efa_io_defs.h (`EFA_IO_TX_DESC_NUM_BUFS`, `_NUM_RDMA_BUFS`,
/// `_INLINE_MAX_SIZE`) and efa_verbs.c (`efa_qp_validate_attr`, `efa_alloc_mr`). Depths are the device's own:
/// they are not compared.
const EFA: Profile = Profile {
    name: "efa",
    kind: Kind::NotOnEfa,
    services: &[IBV_QPT_UD, DRIVER],
    opcodes: SENDS | WRITES | 1 << IBV_WR_RDMA_READ,
    access: REMOTE,
    windows: false,
    shared_queues: false,
    send_elements: 2,
    receive_elements: u32::MAX,
    read_elements: 1,
    inline_bytes: 32,
    depth: u32::MAX,
    entries: u32::MAX,
    shared_depth: 0,
    shared_elements: 0,
    reads: u32::MAX,
    has_old_gids: false,
    takes_addresses: true,
};

/// Linux, drivers/infiniband/sw/rxe/rxe_param.h (`enum rxe_device_param`), rxe_opcode.c
/// (`rxe_wr_opcode_info`) and rxe_verbs.h; of Linux 6.1.
const RXE: Profile = Profile {
    name: "rxe",
    kind: Kind::NotOnRxe,
    services: &[IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD],
    opcodes: USUAL,
    access: REMOTE
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_HUGETLB,
    windows: true,
    shared_queues: true,
    send_elements: 32,
    receive_elements: 32,
    read_elements: 32,
    inline_bytes: 512,
    depth: 1 << 20,
    entries: 32_767,
    shared_depth: 1 << 20,
    shared_elements: 27,
    reads: 128,
    has_old_gids: false,
    takes_addresses: true,
};

/// Linux, drivers/infiniband/sw/siw/siw.h (`SIW_MAX_*`, `IWARP_ACCESS_MASK`), include/uapi/rdma/siw-abi.h
/// (`SIW_MAX_SGE`, `SIW_MAX_INLINE`); rdma-core, providers/siw/siw.c (`map_send_opcode`).
const SIW: Profile = Profile {
    name: "siw",
    kind: Kind::NotOnSiw,
    services: &[IBV_QPT_RC],
    opcodes: 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_INV | 1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_READ,
    access: REMOTE,
    windows: false,
    shared_queues: true,
    send_elements: 6,
    receive_elements: 6,
    read_elements: 1,
    inline_bytes: 80,
    depth: 32_768,
    entries: 3_276_800,
    shared_depth: 327_680,
    shared_elements: 6,
    reads: 128,
    has_old_gids: false,
    takes_addresses: false,
};

/// The least of mlx5, rxe and siw in figures, and what the standards let every adapter of the transport do.
const STRICT: Profile = Profile {
    name: "strict",
    kind: Kind::NotOnStrict,
    services: &[IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD],
    opcodes: USUAL & !WINDOWS | 1 << IBV_WR_SEND_WITH_INV,
    access: REMOTE | IBV_ACCESS_REMOTE_ATOMIC,
    windows: false,
    shared_queues: true,
    send_elements: SIW.send_elements,
    receive_elements: SIW.receive_elements,
    read_elements: SIW.read_elements,
    inline_bytes: SIW.inline_bytes,
    depth: MLX5.depth,
    entries: RXE.entries,
    shared_depth: MLX5.shared_depth,
    shared_elements: SIW.shared_elements,
    reads: MLX5.reads,
    has_old_gids: true,
    takes_addresses: true,
};

/// A queue pair that a program creates.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) service: c_uint,
    pub(super) capacity: ibv_qp_cap,
    pub(super) has_shared_queue: bool,
}

/// A request that a program posts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) opcode: c_uint,
    pub(super) flags: c_uint,
    pub(super) elements: u32,
    pub(super) length: u64,
    pub(super) remote_address: u64,
}

impl Profile {
    /// The profiles that a list of words names.
    pub(super) fn named(words: &str) -> Vec<&'static Self> {
        let named = |profile: &&Self| words.split(',').any(|word| word.trim() == profile.name);
        PROFILES.iter().filter(named).collect()
    }

    /// A limit of it, if it is exceeded.
    fn limit(&self, what: &str, wanted: u32, most: u32) -> Option<String> {
        let owner =
            if self.is_strict() { "some adapters have".to_owned() } else { format!("{} has", self.name) };
        (wanted > most).then(|| format!("{what} {wanted}, and {owner} at most {most}"))
    }

    fn is_strict(&self) -> bool {
        self.kind == Kind::NotOnStrict
    }

    /// The text of a finding: adapters of this profile lack something.
    fn lacks(&self, what: impl std::fmt::Display) -> String {
        let owner =
            if self.is_strict() { "some adapters lack".to_owned() } else { format!("{} lacks", self.name) };
        format!("{what}, which {owner}")
    }

    /// What adapters of the profile lack for a queue pair that is created.
    pub(super) fn pair(&self, pair: &Pair) -> Vec<String> {
        let cap = &pair.capacity;
        let mut found = Vec::new();
        if !self.services.contains(&pair.service) {
            found.push(self.lacks(format_args!("the service {}", service(pair.service))));
            // Its figures mean nothing there.
            return found;
        }
        if pair.has_shared_queue && !self.shared_queues {
            found.push(self.lacks("a shared receive queue"));
        }
        found.extend(self.limit("max_send_wr", cap.max_send_wr, self.depth));
        found.extend(self.limit("max_send_sge", cap.max_send_sge, self.send_elements));
        found.extend(self.limit("max_inline_data", cap.max_inline_data, self.inline_bytes));
        if !pair.has_shared_queue {
            found.extend(self.limit("max_recv_wr", cap.max_recv_wr, self.depth));
            found.extend(self.limit("max_recv_sge", cap.max_recv_sge, self.receive_elements));
        }
        if self.name == "mlx5" && found.is_empty() {
            found.extend(mlx5_send_queue(pair));
        }
        found
    }

    /// What adapters of the profile lack for a completion queue of so many entries.
    pub(super) fn completion_queue(&self, entries: u32) -> Option<String> {
        self.limit("cqe", entries, self.entries)
    }

    /// What adapters of the profile lack for a shared receive queue.
    pub(super) fn shared_queue(&self, attributes: &ibv_srq_attr) -> Option<String> {
        if !self.shared_queues {
            return Some(self.lacks("a shared receive queue"));
        }
        self.limit("max_wr", attributes.max_wr, self.shared_depth)
            .or_else(|| self.limit("max_sge", attributes.max_sge, self.shared_elements))
    }

    /// What adapters of the profile lack for a region with these rights.
    pub(super) fn region(&self, access: c_uint) -> Option<String> {
        let missing = access & !IBV_ACCESS_OPTIONAL_RANGE & !self.access;
        (missing != 0).then(|| self.lacks(format_args!("the access {}", rights(missing))))
    }

    /// What adapters of the profile lack for the use of a port.
    pub(super) fn port(&self, port: u8) -> Option<String> {
        self.limit("port_num", port.into(), 1)
    }

    /// What adapters of the profile lack for a way to a peer. `knows_kinds`: the program has asked for the
    /// kinds of GIDs.
    pub(super) fn address(&self, attributes: &ibv_ah_attr, knows_kinds: bool) -> Option<String> {
        let is_first = attributes.is_global != 0 && attributes.grh.sgid_index == 0;
        let owner = if self.is_strict() { "some adapters" } else { self.name };
        (is_first && self.has_old_gids && !knows_kinds).then(|| {
            format!("sgid_index 0, and has not asked for its kind (ibv_query_gid_ex); that of {owner} is one of RoCE v1")
        })
    }

    /// What adapters of the profile lack for a queue pair that the program itself leads to its peer, by an
    /// address.
    pub(super) fn connection(&self) -> Option<String> {
        // Linux, siw_qp.c, `siw_qp_nextstate_from_idle`: a queue pair of iWARP becomes ready with a TCP
        // connection alone.
        (!self.takes_addresses).then(|| format!("{}: connect by rdma_cm", self.lacks("an address vector")))
    }

    /// What adapters of the profile lack for memory windows.
    pub(super) fn window(&self) -> Option<String> {
        (!self.windows).then(|| self.lacks("a memory window"))
    }

    /// What adapters of the profile lack for so many Reads and atomics under way.
    pub(super) fn reads(&self, wanted: u32) -> Option<String> {
        self.limit("max_rd_atomic", wanted, self.reads)
    }

    /// What adapters of the profile lack for a request that is posted.
    pub(super) fn request(&self, request: &Request) -> Option<String> {
        let bit = 1u32.checked_shl(request.opcode).unwrap_or(0);
        if self.opcodes & bit == 0 {
            return Some(self.lacks(format_args!("the operation {}", opcode(request.opcode))));
        }
        if bit & ATOMICS != 0 && !request.remote_address.is_multiple_of(8) {
            return Some(format!(
                "an atomic operation at {:#x}; adapters want an address that is a multiple of 8",
                request.remote_address
            ));
        }
        let most = if request.opcode == IBV_WR_RDMA_READ { self.read_elements } else { self.send_elements };
        if request.flags & IBV_SEND_INLINE == 0 {
            return self.limit("elements", request.elements, most);
        }
        let bytes = u32::try_from(request.length).unwrap_or(u32::MAX);
        self.limit("bytes of inline data", bytes, self.inline_bytes)
    }
}

/// rdma-core, providers/mlx5/verbs.c (`mlx5_calc_sq_size`): all requests of a send queue, each with its
/// elements or its inline data behind the largest header of the service, have 32,768 blocks of 64 bytes
/// together.
fn mlx5_send_queue(pair: &Pair) -> Option<String> {
    const BLOCKS: u64 = 32_768;
    const LONGEST: u64 = 1024;
    // A control segment, and behind it a bind of a memory window, a datagram's address, or an Ethernet
    // header.
    let head = match pair.service {
        IBV_QPT_UD => 64,
        IBV_QPT_RAW_PACKET => 32,
        IBV_QPT_XRC_RECV | DRIVER => return None,
        _ => 192,
    };
    let cap = &pair.capacity;
    let inline = match u64::from(cap.max_inline_data) {
        0 => 0,
        bytes => (bytes + 4).next_multiple_of(MLX5_ELEMENT),
    };
    let longest = head + inline.max(u64::from(cap.max_send_sge) * MLX5_ELEMENT);
    if longest > LONGEST {
        return Some(format!(
            "max_inline_data {}; of a queue pair of {} mlx5 has at most {}",
            cap.max_inline_data,
            service(pair.service),
            LONGEST - head - 4
        ));
    }
    let blocks = longest.div_ceil(MLX5_BLOCK);
    let most = BLOCKS / blocks;
    let wanted = u64::from(cap.max_send_wr);
    (wanted * blocks > BLOCKS).then(|| {
        format!(
            "max_send_wr {wanted}; with these elements and this inline data mlx5 has room for {most} in a queue pair of {}",
            service(pair.service)
        )
    })
}

fn service(service: c_uint) -> &'static str {
    names::of(names::QP_TYPE, u64::from(service)).unwrap_or("unknown")
}

fn opcode(opcode: c_uint) -> String {
    names::of(names::WR_OPCODE, u64::from(opcode)).map_or_else(|| opcode.to_string(), str::to_owned)
}

fn rights(access: c_uint) -> String {
    let names: Vec<_> = names::ACCESS
        .iter()
        .filter(|(bit, _)| u64::from(access) & *bit != 0)
        .map(|(_, name)| *name)
        .collect();
    names.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(service: c_uint, depth: u32, elements: u32, inline: u32) -> Pair {
        let capacity = ibv_qp_cap {
            max_send_wr: depth,
            max_recv_wr: 16,
            max_send_sge: elements,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        Pair { service, capacity, has_shared_queue: false }
    }

    fn request(opcode: c_uint) -> Request {
        Request { opcode, flags: 0, elements: 1, length: 8, remote_address: 64 }
    }

    #[test]
    fn a_modest_program_is_at_home_on_most() {
        for profile in PROFILES.iter().filter(|profile| profile.name != "efa") {
            assert!(profile.pair(&pair(IBV_QPT_RC, 1024, 2, 64)).is_empty(), "{}", profile.name);
            for opcode in [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
                assert_eq!(profile.request(&request(opcode)), None, "{}", profile.name);
            }
            assert_eq!(profile.region(REMOTE), None);
            assert_eq!((profile.completion_queue(1024), profile.reads(16)), (None, None));
        }
        assert!(EFA.pair(&pair(IBV_QPT_UD, 128, 2, 32)).is_empty());
    }

    #[test]
    fn each_says_what_it_does_not_have() {
        let first = |profile: &Profile, pair: &Pair| profile.pair(pair).remove(0);
        assert!(first(&EFA, &pair(IBV_QPT_RC, 16, 1, 0)).contains("IBV_QPT_RC, which efa lacks"));
        assert!(first(&SIW, &pair(IBV_QPT_UD, 16, 1, 0)).contains("service IBV_QPT_UD"));
        assert!(first(&SIW, &pair(IBV_QPT_RC, 16, 8, 0)).contains("max_send_sge 8, and siw has at most 6"));
        assert!(first(&RXE, &pair(IBV_QPT_RC, 16, 1, 600)).contains("max_inline_data 600"));
        assert!(
            SIW.request(&request(IBV_WR_ATOMIC_FETCH_AND_ADD))
                .is_some_and(|text| text.contains("ATOMIC_FETCH"))
        );
        assert!(
            SIW.region(REMOTE | IBV_ACCESS_REMOTE_ATOMIC).is_some_and(|text| text.contains("REMOTE_ATOMIC"))
        );
        assert!(SIW.window().is_some() && RXE.window().is_none());
        let two = Request { elements: 2, ..request(IBV_WR_RDMA_READ) };
        assert!(SIW.request(&two).is_some_and(|text| text.contains("elements 2")));
        let odd = Request { remote_address: 12, ..request(IBV_WR_ATOMIC_CMP_AND_SWP) };
        assert!(MLX5.request(&odd).is_some_and(|text| text.contains("multiple of 8")));
        let long = Request { flags: IBV_SEND_INLINE, length: 81, ..request(IBV_WR_SEND) };
        assert!(SIW.request(&long).is_some() && RXE.request(&long).is_none());
    }

    #[test]
    fn room_in_the_send_queue_of_mlx5_depends_on_its_requests() {
        // 192 bytes of head and one element take four blocks.
        assert!(MLX5.pair(&pair(IBV_QPT_RC, 8192, 1, 0)).is_empty());
        assert!(MLX5.pair(&pair(IBV_QPT_RC, 8193, 1, 0))[0].contains("room for 8192"));
        assert!(MLX5.pair(&pair(IBV_QPT_RC, 16, 1, 828)).is_empty());
        assert!(MLX5.pair(&pair(IBV_QPT_RC, 16, 1, 829))[0].contains("at most 828"));
        assert!(MLX5.pair(&pair(IBV_QPT_UD, 16_384, 1, 0)).is_empty());
    }

    #[test]
    fn names_lead_to_profiles() {
        for profile in PROFILES {
            assert_eq!(
                Profile::named(profile.name).iter().map(|found| found.kind).collect::<Vec<_>>(),
                [profile.kind]
            );
            assert_eq!(profile.kind.name(), format!("not-on-{}", profile.name));
        }
        assert_eq!(Profile::named("siw, efa").len(), 2);
        assert!(Profile::named("on,mlx4").is_empty());
    }
}
