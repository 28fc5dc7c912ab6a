//! The names of verbs beside those of this crate.
//!
//! The objects are those of libibverbs and librdmacm, and so are their rules. Two things differ: a request
//! owns its memory until its completion brings it back, and the end of every object is its drop.
//!
//! | verbs | this crate |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_open_device` | [`Device::all`], [`Context::open`], [`Context::open_default`] |
//! | `ibv_query_device`, `ibv_query_port`, `ibv_query_gid` | [`Context::attributes`], [`Context::port`], [`Context::gids`] |
//! | `ibv_alloc_pd` | [`Context::protection_domain`] |
//! | `ibv_reg_mr`, for this program's requests | [`ProtectionDomain::buffer`], [`ProtectionDomain::register_buffer`] |
//! | `ibv_reg_mr`, for peers | [`ProtectionDomain::memory_region`], [`ProtectionDomain::register`], [`ProtectionDomain::register_raw`] |
//! | `ibv_rereg_mr`, `ibv_dereg_mr` | [`MemoryRegion::reregister`], [`MemoryRegion::deregister`] or drop |
//! | `addr`, `length`, `rkey` | [`RemoteMemory`], from [`MemoryRegion::remote`] |
//! | `IBV_ACCESS_REMOTE_*` | [`Rights`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw` | [`ProtectionDomain::memory_window`], [`MemoryWindow::bind`] |
//! | `ibv_create_cq`, `ibv_create_comp_channel` | [`Context::completion_queue`], which has a channel of its own |
//! | `ibv_poll_cq` | [`CompletionQueue::poll`], [`CompletionQueue::poll_many`] |
//! | `ibv_req_notify_cq`, `ibv_get_cq_event` | [`CompletionQueue::arm`] and its descriptor, or [`CompletionQueue::wait`] |
//! | `ibv_ack_cq_events` | nothing: done inside |
//! | `struct ibv_wc`, `vendor_err` | [`Completion`], [`Cause`] |
//! | `ibv_create_qp` | [`ProtectionDomain::queue_pair`], with [`QueuePairOptions`] |
//! | `ibv_modify_qp`, to RTR and RTS | [`QueuePair::connect_raw`] |
//! | `ibv_modify_qp`, to RESET; `ibv_query_qp` | [`QueuePair::reset`], [`QueuePair::attributes`] |
//! | `ibv_create_srq`, `ibv_open_xrcd` | [`ProtectionDomain::shared_receive_queue`], [`Context::xrc_domain`] |
//! | `ibv_post_recv` | [`QueuePair::post_receive`] |
//! | `ibv_post_send` | [`Connection::post_send`], with a [`WorkRequest`] |
//! | `wr_id` | [`WorkRequest::id`], [`Completion::id`]; [`RequestIds`] for values of any type |
//! | `IBV_SEND_INLINE` | a slice as the payload |
//! | `IBV_SEND_FENCE`, `IBV_SEND_SOLICITED` | [`WorkRequest::fence`], [`WorkRequest::solicited`] |
//! | no `IBV_SEND_SIGNALED` | [`WorkRequest::unsignalled`] |
//! | `imm_data`, `IBV_WR_SEND_WITH_INV` | [`WorkRequest::immediate`], [`WorkRequest::invalidate`] |
//! | `ibv_create_ah`, `ibv_attach_mcast` | [`AddressHandle::new`], [`DatagramQueuePair::join`] |
//! | `ibv_get_async_event` | [`Context::next_event`] |
//! | `rdma_bind_addr`, `rdma_listen` | [`Listener::bind`] |
//! | `rdma_get_request`, `rdma_accept`, `rdma_reject` | [`Listener::accept`], [`ConnectionRequest::accept`], [`ConnectionRequest::reject`] |
//! | `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_connect` | [`QueuePair::connect`] |
//! | `rdma_conn_param` | [`ConnectionOptions`] |
//! | `rdma_disconnect`, `RDMA_CM_EVENT_DISCONNECTED` | [`Connection::disconnect`], [`Connection::wait_ended`] |
//!
//! # A Send and a receive, side by side
//!
//! In C, an error of any of these calls needs an `if`, and the memory must outlive the completion:
//!
//! ```c
//! struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
//! struct ibv_sge sge = { (uintptr_t)buffer, 5, mr->lkey };
//! struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
//! ibv_post_send(qp, &wr, &bad);
//! struct ibv_wc wc;
//! while (ibv_poll_cq(cq, 1, &wc) == 0) ;
//! ```
//!
//! The same here:
//!
//! ```
//! use adverb::WorkRequest;
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! # server.post_receive(0, domain.buffer(64)?)?;
//! # let (connection, server) = connected(client, server, b"")?;
//! let mut buffer = domain.buffer(64)?;
//! buffer[..5].copy_from_slice(b"hello");
//! connection.post_send(WorkRequest::send(buffer.slice(..5)).id(1))?;
//! let completion = loop {
//!     if let Some(completion) = connection.send_queue().poll()? {
//!         break completion.success()?;
//!     }
//! };
//! assert_eq!((completion.id, completion.into_buffer().len()), (1, 64));
//! # assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Peers in C, and other crates
//!
//! Two examples talk to programs in C, which are as the distribution has them:
//!
//! - [`rc_pingpong`](https://github.com/adverb-rdma/adverb/blob/main/examples/rc_pingpong.rs) is libibverbs'
//!   `ibv_rc_pingpong`, server and client. It connects by numbers.
//! - [`rping`](https://github.com/adverb-rdma/adverb/blob/main/examples/rping.rs) is the client of
//!   librdmacm's `rping`. It connects by the connection manager.
//!
//! The [tutorial](https://github.com/adverb-rdma/adverb/blob/main/docs/tutorial/index.md) has its lessons in
//! both languages. [A page of the
//! book](https://github.com/adverb-rdma/adverb/blob/main/docs/how-to/rust-crates.md) ports examples of the
//! crates `ibverbs` and `sideway`.

// The links of this chapter.
use crate::*;
