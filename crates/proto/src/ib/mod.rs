//! InfiniBand's transport: requester and responder of RC and UC, and UD.
