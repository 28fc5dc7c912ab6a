//! The RoCEv2 transport: InfiniBand packets over unprivileged UDP sockets.
