//! The kinds of findings: their names, what each means, and what a program does about it.

macro_rules! kinds {
    ($($kind:ident $name:literal: $meaning:literal, $remedy:literal;)*) => {
        /// A kind of finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $meaning] $kind,)*
        }

        impl Kind {
            /// All, in the order of the list that users see.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name by which users, suppressions and tests know it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }

            /// The meaning of the kind, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$kind => $meaning),* }
            }

            /// What a program does about it, in a sentence.
            pub fn remedy(self) -> &'static str {
                match self { $(Self::$kind => $remedy),* }
            }
        }
    };
}

kinds! {
    SlotReused "slot-reused":
        "More requests are posted to a send queue than it has slots; a slot is free when a signalled completion behind it was polled.",
        "poll the completion of a signalled request before the queue is full, or create the queue pair with a larger max_send_wr";
    UnsignalledForever "unsignalled-forever":
        "A send queue is full of requests without IBV_SEND_SIGNALED: no completion will ever free its slots.",
        "set IBV_SEND_SIGNALED at least once in every max_send_wr requests, and poll that completion";
    CompletionQueueOverrun "completion-queue-overrun":
        "A completion queue holds more completions than it was created for; an adapter loses completions and breaks the queue pairs.",
        "create the completion queue with room for all outstanding requests of its queue pairs, or poll it sooner";
    BufferChanged "buffer-changed":
        "The program changed the bytes of a request before its completion was polled: the peer may get either content.",
        "leave the buffer alone until the completion of the request was polled, or send the data inline";
    BufferFreed "buffer-freed":
        "The pages of a registered region are unmapped while a request uses them.",
        "deregister the region before its memory is freed, and free neither before the completion was polled";
    ReceivesOverlap "receives-overlap":
        "Two posted receives share a part of their memory: the later message overwrites the earlier one.",
        "give each receive a buffer of its own";
    RegionInUse "region-in-use":
        "A region is deregistered or changed while posted requests use its lkey.",
        "poll the completions of all requests of the region first, or destroy the queue pair or move it to the error state";
    WindowInUse "window-in-use":
        "A memory window is deallocated or invalidated while posted requests use it.",
        "poll the completions of all requests that use the window first";
    AccessRefused "access-refused":
        "A request failed because a key did not open the bytes: wrong key, rights, bounds or protection domain.",
        "correct the key, the address, the length or the access flags as the sentence says";
    NoReceive "no-receive":
        "A message waits for a receive that the receiver has not posted, or its sender gave up.",
        "post receives before the peer sends, and agree on how many messages may be under way";
    Deadlock "deadlock":
        "Messages of both directions of a connection wait for receives, for more than a second: neither side posts one before the other does.",
        "post receives before the first send, keep some free for the peer's answers, and send no more than the peer has receives for";
    RetriesRunOut "retries-run-out":
        "A request is sent for the last time, or was sent as often as the queue pair permits, and the peer has not answered.",
        "see that the peer lives and has led its queue pair to RTR; retry_cnt 7 and a longer timeout bear a loss";
    ReceiveTooSmall "receive-too-small":
        "A message is longer than the receive that it takes.",
        "post receives as long as the longest message that the peer sends";
    WrongQkey "wrong-q-key":
        "A datagram has another Q_Key than the queue pair that it goes to: it is dropped, and its sender learns nothing of that.",
        "set remote_qkey of the request to the qkey of the receiver: that of its ibv_modify_qp, or of the event of rdma_cm";
    WrongPsn "wrong-psn":
        "The first request of a peer has another packet sequence number than the queue pair expects: it is taken for an old one, or for one behind a loss.",
        "exchange the first packet sequence numbers with the numbers of the queue pairs: rq_psn of each side must be sq_psn of the other";
    InFlightAtExit "in-flight-at-exit":
        "The program ends while a request is under way, or without a poll of its completion: nobody knows whether it has succeeded.",
        "poll the completions of all requests before the program ends, or destroy the queue pair";
    ObjectLeaked "object-leaked":
        "An object is never destroyed.",
        "destroy the object when its last user is gone";
    ObjectDestroyedTwice "object-destroyed-twice":
        "An object is destroyed that is destroyed already.",
        "destroy each object once, and forget its pointer then";
    ObjectUsedAfterDestroy "object-used-after-destroy":
        "A call uses an object that is destroyed already.",
        "destroy an object only after its last use";
    DestroyRefused "destroy-refused":
        "A destroying call answered EBUSY, and the program never repeated it.",
        "destroy the users of an object first, and look at the result of the call";
    UsedInChild "used-in-child":
        "A child of fork uses an object of its parent; objects do not survive a fork.",
        "use verbs only in the process that made the objects, or after fork open the device anew in the child";
    WrongState "wrong-state":
        "A queue pair is not in a state for the call, or the attributes do not lead to the next state.",
        "take the queue pair through INIT, RTR and RTS with the attributes that ibv_modify_qp(3) lists";
    ResultIgnored "result-ignored":
        "A call failed, and the program went on as if it had succeeded.",
        "look at the result of the call that failed";
    EventNotAcknowledged "event-not-acknowledged":
        "A destroying call waits for ever, because events of the object are not acknowledged.",
        "acknowledge each event that was got: ibv_ack_cq_events, ibv_ack_async_event, rdma_ack_cm_event";
    CompletionMissed "completion-missed":
        "A thread sleeps for a completion event while completions are in the queue that no event will announce.",
        "after ibv_req_notify_cq, poll the queue once more before sleeping in ibv_get_cq_event";
    InlineTooLong "inline-too-long":
        "A request has more inline data than max_inline_data of its queue pair.",
        "ask for a larger max_inline_data at creation, or post longer requests without IBV_SEND_INLINE";
    TooManyElements "too-many-elements":
        "A request has more scatter/gather elements than its queue permits.",
        "ask for a larger max_send_sge, max_recv_sge or max_sge at creation, or split the request";
    NotOnMlx5 "not-on-mlx5":
        "With --check=mlx5: the program relies on what adapters of the driver mlx5 do not offer.",
        "ask for what mlx5 offers, or ask ibv_query_device first";
    NotOnEfa "not-on-efa":
        "With --check=efa: the program relies on what EFA adapters do not offer.",
        "ask for what efa offers, or ask ibv_query_device and efadv_query_device first";
    NotOnRxe "not-on-rxe":
        "With --check=rxe: the program relies on what Linux's driver rxe does not offer.",
        "ask for what rxe offers, or ask ibv_query_device first";
    NotOnSiw "not-on-siw":
        "With --check=siw: the program relies on what Linux's driver siw does not offer.",
        "ask for what siw offers, or ask ibv_query_device first";
    NotOnStrict "not-on-strict":
        "With --check=strict: the program relies on what not every one of mlx5, rxe and siw offers, or on an order that no standard promises.",
        "ask for less, or ask ibv_query_device first";
}

impl Kind {
    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_their_kinds() {
        assert_eq!(Kind::ALL.len(), 32);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
            assert!(kind.meaning().ends_with('.') && !kind.remedy().ends_with('.'), "{kind:?}");
            let longest = [kind.meaning(), kind.remedy()].map(|text| text.split_whitespace().count());
            assert!(longest.iter().all(|words| *words <= 30), "{kind:?}");
        }
        assert_eq!(Kind::from_name("slots-reused"), None);
    }
}
