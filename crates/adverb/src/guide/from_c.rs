//! The names of verbs beside those of this crate.
//!
//! The objects are those of libibverbs and librdmacm, and so are their rules. Two things differ: a request owns its memory until its completion brings it
//! back, and the end of every object is its drop.
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
//! # fn main() -> adverb::Result<()> {
//! # const SOON: std::time::Duration = std::time::Duration::from_secs(10);
//! # fn queue_pair(domain: &adverb::ProtectionDomain) -> adverb::Result<adverb::QueuePair> {
//! #     let completions = [domain.context().completion_queue(64)?, domain.context().completion_queue(64)?];
//! #     let options = adverb::QueuePairOptions::new(&completions[0]);
//! #     domain.queue_pair(adverb::QueuePairOptions { receive_queue: completions[1].clone(), ..options })
//! # }
//! # type Ends = (adverb::Connection, adverb::Connection);
//! # fn connected(a: adverb::QueuePair, b: adverb::QueuePair, data: &[u8]) -> adverb::Result<Ends> {
//! #     let listener = adverb::Listener::bind(a.domain().context(), "127.0.0.1:0".parse().unwrap(), 1)?;
//! #     let address = listener.local_address();
//! #     std::thread::scope(|scope| {
//! #         let accepted = scope.spawn(|| -> adverb::Result<_> { Ok(listener.accept(SOON)?.accept(b, data, SOON)?) });
//! #         let client = a.connect(address, b"", SOON)?;
//! #         Ok((client, accepted.join().unwrap()?))
//! #     })
//! # }
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
//! The example [`rc_pingpong`](https://github.com/adverb-rdma/adverb/blob/main/examples/rc_pingpong.rs) is the client of libibverbs'
//! `ibv_rc_pingpong`. It talks to the server in C. The [tutorial](https://github.com/adverb-rdma/adverb/blob/main/docs/tutorial/index.md) has its lessons in both languages.

// The links of this chapter.
use crate::*;
