// Every name that librdmacm.so.1 exports, under its version node. The engine and the code behind these names
// live in libibverbs.so.1, which exports each as `adverb_<name>` in a private node; librdmacm.so.1 jumps
// there. The including file defines the macro `rdmacm_exports` first. The calls of rdma_cm can be watched,
// and those of sockets cannot.
rdmacm_exports! {
    calls "RDMACM_1.0":
        rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep rdma_create_event_channel
        rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex rdma_destroy_ep
        rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect
        rdma_event_str rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event rdma_get_devices rdma_get_dst_port
        rdma_get_request rdma_get_src_port rdma_getaddrinfo rdma_join_multicast rdma_leave_multicast rdma_listen
        rdma_migrate_id rdma_notify rdma_reject rdma_resolve_addr rdma_resolve_route rdma_set_option;
    sockets "RDMACM_1.0":
        raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite
        rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown
        rsocket rwrite rwritev;
    calls "RDMACM_1.1": rdma_join_multicast_ex;
    calls "RDMACM_1.2": rdma_establish rdma_init_qp_attr;
    calls "RDMACM_1.3": rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece;
    calls "RDMACM_1.4": rdma_query_addrinfo rdma_resolve_addrinfo rdma_write_cm_event;
    sockets "RDMACM_1.5": repoll_create repoll_ctl repoll_wait;
}
