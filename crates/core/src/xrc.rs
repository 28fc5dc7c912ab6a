//! Extended reliable connections (XRC; the InfiniBand Architecture Specification, volume 1, annex A14):
//! domains, in which connections and shared receive queues come together.
//!
//! A *target* queue pair has no queues, no completion queue and no protection domain of its own. Each message
//! names a shared receive queue of its domain, and uses those of that queue. So the domain has a protection
//! domain and a completion queue that no program sees; polls of a shared receive queue's completion queue
//! drive the latter's lanes, too.

use crate::cq::{CompletionQueue, Lane};
use crate::device::{Context, Seat};
use crate::error::{Error, Result};
use crate::qp::{QueuePair, Service};
use crate::region::ProtectionDomain;
use crate::srq::SharedReceiveQueue;
use crate::users::DependentCount;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// A file that names a domain: device and inode.
pub type FileId = (u64, u64);

/// How a domain is opened (struct ibv_xrcd_init_attr).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcDomainOptions {
    /// The file by which others of this process find the same domain; None: no other finds it.
    pub file: Option<FileId>,
    /// Make it if there is none (O_CREAT).
    pub create: bool,
    /// Fail if there is one (O_EXCL).
    pub exclusive: bool,
}

/// An open XRC domain (ibv_open_xrcd(3)). The domain itself lives as long as the program has a handle of it
/// open.
///
/// Domains are this process's own: the file of one that another process has made names none here.
pub struct XrcDomain {
    seat: Seat,
    members: Arc<Members>,
    users: DependentCount,
}

/// The domain behind all that have it open.
pub(crate) struct Members {
    file: Option<FileId>,
    /// The objects that target queue pairs are made with.
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) queue: Arc<CompletionQueue>,
    lists: RwLock<Lists>,
}

#[derive(Default)]
pub(crate) struct Lists {
    queues: BTreeMap<u32, Weak<SharedReceiveQueue>>,
    targets: BTreeMap<u32, Weak<QueuePair>>,
}

impl XrcDomain {
    /// Opens the domain of a file, or a new one.
    ///
    /// # Errors
    /// As Linux: EAGAIN if there is none and none shall be made; EINVAL if there is one and `exclusive` is
    /// wanted; EOPNOTSUPP if the device has no XRC.
    pub fn open(context: &Arc<Context>, options: XrcDomainOptions) -> Result<Arc<Self>> {
        context.born.check()?;
        if !context.attributes().services.contains(&Service::XrcReceive) {
            return Err(Error::unsupported(format!("{} has no XRC", context.device().name())));
        }
        let mut all = lock(&context.device().xrc_domains);
        all.retain(|members| members.strong_count() > 0);
        let known = options
            .file
            .and_then(|file| all.iter().filter_map(Weak::upgrade).find(|members| members.file == Some(file)));
        // IB-XRC-10
        let members = match known {
            Some(_) if options.exclusive => return Err(Error::invalid("the file has an XRC domain already")),
            Some(members) => members,
            None if options.file.is_some() && !options.create => {
                return Err(Error::new(libc::EAGAIN, "the file has no XRC domain in this process"));
            }
            None => {
                let (domain, queue) =
                    (ProtectionDomain::new(context)?, CompletionQueue::new(context, 1, None)?);
                // The program has neither: the context may be closed while another has the domain open.
                domain.retire();
                queue.leave();
                let lists = RwLock::default();
                let members = Arc::new(Members { file: options.file, domain, queue, lists });
                all.push(Arc::downgrade(&members));
                members
            }
        };
        drop(all);
        Ok(Arc::new(Self { seat: Seat::take(context), members, users: DependentCount::new() }))
    }

    /// The context it was opened on.
    pub fn context(&self) -> &Arc<Context> {
        self.seat.context()
    }

    /// Shared receive queues and target queue pairs that were made or opened with it: closing is EBUSY while
    /// there are any.
    pub fn users(&self) -> &DependentCount {
        &self.users
    }

    /// The target queue pair with this number (ibv_open_qp(3)).
    ///
    /// # Errors
    /// EINVAL if the domain has none.
    pub fn target(&self, number: u32) -> Result<Arc<QueuePair>> {
        let lists = self.members.hold();
        let found = lists.targets.get(&number).and_then(Weak::upgrade);
        found.ok_or_else(|| Error::invalid(format!("the XRC domain has no target queue pair {number:#x}")))
    }

    /// The program closes the domain (ibv_close_xrcd(3)): the context may go, though a queue pair that is
    /// still ending may hold the domain a little longer.
    ///
    /// # Errors
    /// EBUSY while there are [users](Self::users).
    pub fn retire(&self) -> Result<()> {
        // IB-XRC-11
        if self.context().is_here() && self.users.count() > 0 {
            return Err(Error::busy(format!(
                "{} queues still use the XRC domain: destroy them first",
                self.users.count()
            )));
        }
        self.seat.leave();
        Ok(())
    }

    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.members
    }
}

impl Members {
    /// The members as they are; none of them goes while this is held, which must not be for a second time in
    /// one thread.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, Lists> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Lists)) {
        change(&mut self.exclude());
    }

    /// The members, while no packet is taken in for one.
    pub(crate) fn exclude(&self) -> RwLockWriteGuard<'_, Lists> {
        self.lists.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_queue(&self, queue: &Arc<SharedReceiveQueue>) {
        self.change(|lists| {
            lists.queues.insert(queue.number(), Arc::downgrade(queue));
        });
    }

    /// When this returns no message takes a receive of the queue any more, or touches memory for one.
    pub(crate) fn remove_queue(&self, number: u32) {
        self.change(|lists| {
            lists.queues.remove(&number);
        });
    }

    pub(crate) fn add_target(&self, pair: &Arc<QueuePair>) {
        self.change(|lists| {
            lists.targets.insert(pair.number(), Arc::downgrade(pair));
        });
    }

    pub(crate) fn remove_target(&self, number: u32) {
        self.change(|lists| {
            lists.targets.remove(&number);
        });
    }
}

impl Lists {
    pub(crate) fn queue(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.queues.get(&number)?.upgrade()
    }
}

impl Lane for Members {
    fn poll(&self) -> bool {
        self.queue.progress()
    }

    fn found(&self) {
        self.queue.found();
    }

    fn arm(&self) {
        // It has no channel: this only says to the lanes that the program is about to sleep.
        let _ = self.queue.arm(false);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
