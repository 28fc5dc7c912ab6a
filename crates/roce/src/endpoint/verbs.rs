//! The calls of the access layer on a queue pair: its states, its attributes, its end.

use super::{Endpoint, EndpointKind};
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::Result;
use adverb_core::qp::{Attributes, SendCursor, State, Transition};
use adverb_core::request::SendRequest;
use adverb_core::transport::Takeover;
use adverb_core::{log, transport};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl transport::Endpoint for Endpoint {
    fn transmit(&self) {
        self.send_or_put_off();
    }

    fn send_off(&self) {
        if self.is_queued.load(Ordering::SeqCst) {
            self.lane.send_now();
        }
    }

    // PRACTICE-ORDER-1
    #[inline]
    fn before_post(&self) {
        self.net.settle_others(&self.lane);
    }

    #[inline]
    fn transmit_at_once(&self) -> bool {
        self.beside.send(self)
    }

    #[inline]
    fn take_over(&self, request: &SendRequest<'_>) -> Takeover {
        self.beside.take_over(self, request)
    }

    fn follow_up(&self) {
        self.beside.ring();
        self.expect_after_post();
    }

    fn modify(&self, transition: Transition, attributes: &Attributes) -> Result<()> {
        let mut inner = self.lock();
        let (mut event, mut words, mut locate, mut ready) = (None, Vec::new(), false, Vec::new());
        match (transition.from, transition.to) {
            (_, State::Error) => (event, words) = self.end(&mut inner, &mut ready),
            (_, State::Reset) => {
                // An event that was to be raised is forgotten with everything else.
                (_, words) = self.end(&mut inner, &mut ready);
                inner.cursor = SendCursor::default();
            }
            (State::Init, State::Rtr) => {
                self.begin(&mut inner, attributes)?;
                if let EndpointKind::Connected(link) = &inner.kind {
                    locate = true;
                    let route = link.packet_route().route;
                    log!(
                        Info,
                        "queue pair {:#x}: peer {} queue pair {:#x}, path MTU {}",
                        self.number(),
                        route.destination,
                        attributes.destination,
                        attributes.path_mtu
                    );
                    self.queues.counters.connections.add(1);
                }
            }
            (from, to) => {
                if (from, to) == (State::Sqe, State::Rts) {
                    inner.cursor = self.queues.send.resume_at();
                }
                if let EndpointKind::Datagram(link) = &mut inner.kind {
                    link.modify(transition, attributes);
                }
                if let EndpointKind::Connected(link) = &mut inner.kind {
                    if (from, to) == (State::Sqd, State::Sqd) {
                        locate = link.redirect(self, &attributes.path, &mut ready)?;
                    }
                    let drained = link.modify(transition, attributes);
                    if drained {
                        self.queues.send_queue_drained();
                    }
                } else if transition.to == State::Sqd {
                    // Datagrams are complete as soon as they are sent: nothing is under way.
                    self.queues.send_queue_drained();
                }
            }
        }
        inner.state = transition.to;
        let asks = match &inner.kind {
            EndpointKind::Connected(link) if locate => Some(link.packet_route().route),
            _ => None,
        };
        drop(inner);
        ready.iter().for_each(|other| other.ring());
        if let Some(event) = event {
            self.queues.raise(event);
        }
        if let Some(route) = asks {
            if transition.from == State::Init {
                self.net.local.connect(self, route, attributes);
            } else {
                // With requests under way, whose packets have a length already, it stays with the network.
                self.locate(route, attributes.destination);
            }
        }
        if matches!(transition.to, State::Error | State::Reset) {
            self.say(&words);
        }
        Ok(())
    }

    fn query(&self, attributes: &mut Attributes) {
        match &self.lock().kind {
            EndpointKind::Nothing => {}
            EndpointKind::Connected(link) => link.query(attributes),
            EndpointKind::Datagram(link) => link.query(attributes),
        }
    }

    fn is_connected_by_manager(&self) -> bool {
        false
    }

    fn close(&self) {
        self.net.leave(self.number());
        let mut ready = Vec::new();
        let (_, words) = {
            let mut inner = self.lock();
            inner.state = State::Error;
            self.end(&mut inner, &mut ready)
        };
        ready.iter().for_each(|other| other.ring());
        self.say(&words);
        self.tell_end();
        self.lane.forget(self);
        self.net.local.hub.copies.forget(self);
        let lane: Arc<dyn CqLane> = self.lane.clone();
        for cq in [&self.queues.send_cq, &self.queues.receive_cq] {
            cq.detach_lane(&lane);
        }
    }

    fn attach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.multicast(group, true)
    }

    fn detach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.multicast(group, false)
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}
