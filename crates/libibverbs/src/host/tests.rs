//! Whose an object is, with a library of the host's that consists of functions of these tests.

use super::*;
use crate::abi::{ibv_cq_init_attr_ex, ibv_pd, verbs_context};
use crate::errno::{errno, set_errno};
use std::cell::Cell;

thread_local! {
    /// The host's `errno`.
    static THEIRS: Cell<c_int> = const { Cell::new(0) };
}

extern "C" fn their_errno() -> *mut c_int {
    THEIRS.with(Cell::as_ptr)
}

fn load_for_tests() {
    let made = LIBRARY.find_or_add(|_| true, || Ok::<_, Infallible>(Library::for_tests(their_errno)));
    assert!(made.is_ok());
}

extern "C" fn theirs(_: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
    THEIRS.set(libc::ENOSPC);
    [b, c, d, e, f].iter().fold(2, |digits, digit| digits * 10 + digit)
}

extern "C" fn missing() -> usize {
    set_errno(libc::ENOSYS);
    7
}

/// An open context of the host's, that is closed when dropped. It is not freed: a later one is to stand
/// elsewhere.
struct Host(*mut verbs_context);

impl Host {
    fn open(mut table: verbs_context) -> Self {
        load_for_tests();
        table.sz = size_of::<verbs_context>();
        table.context.abi_compat = crate::abi::VERBS_ABI_IS_EXTENDED;
        let host = Self(Box::leak(Box::new(table)));
        // SAFETY: just made, and nobody else knows it.
        unsafe { Context::add(host.context()) };
        host
    }

    fn context(&self) -> *mut ibv_context {
        // SAFETY: a field of a live structure.
        unsafe { &raw mut (*self.0).context }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(context) = context_at(self.context() as usize) {
            context.address.store(FREE, Ordering::Release);
        }
    }
}

fn domain_of(context: *mut ibv_context) -> ibv_pd {
    let mut domain = ibv_pd::zeroed();
    domain.context = context;
    domain
}

#[test]
fn an_object_is_the_hosts_if_its_context_is() {
    let host = Host::open(verbs_context::zeroed());
    let (theirs, ours) = (domain_of(host.context()), domain_of((&raw const host).cast_mut().cast()));
    let address = |domain: &ibv_pd| std::ptr::from_ref(domain) as usize;
    // SAFETY: live objects, and numbers that are none.
    unsafe {
        assert!(owns(host.context() as usize) && owns(address(&theirs)));
        assert!(!owns(address(&ours)) && !owns(0) && !owns(address(&theirs) + 1));
        let context = host.context() as usize;
        drop(host);
        assert!(!owns(context) && !owns(address(&theirs)), "it is closed");
    }
}

#[test]
fn a_device_is_the_hosts_if_it_was_in_its_list() {
    let devices = [ibv_device::zeroed(), ibv_device::zeroed()];
    let address = |place: usize| std::ptr::from_ref(&devices[place]) as usize;
    assert!(DEVICES.find_or_add(|_| false, || Ok::<_, Infallible>(address(0))).is_ok());
    // SAFETY: live devices.
    unsafe { assert!(owns(address(0)) && !owns(address(1))) };
}

#[test]
fn a_call_goes_to_the_side_that_has_the_object_with_all_arguments_and_errno() {
    let host = Host::open(verbs_context::zeroed());
    let (mut with, mut without) = (
        ForwardedFunction::new("with", "NODE", missing as *const (), itself),
        ForwardedFunction::new("without", "NODE", missing as *const (), itself),
    );
    *with.theirs.get_mut() = theirs as *const () as usize;
    *without.theirs.get_mut() = MISSING;
    let (their, our) = (domain_of(host.context()), domain_of(std::ptr::null_mut()));
    let arguments = |domain: &ibv_pd| [std::ptr::from_ref(domain) as usize, 2, 3, 4, 5, 6];
    set_errno(libc::EPERM);
    // SAFETY: live objects, and functions that take any numbers.
    unsafe {
        assert_eq!((pass(&with, &arguments(&our)), errno()), (None, libc::EPERM));
        assert_eq!((pass(&with, &[0, 2, 3, 4, 5, 6]), errno()), (None, libc::EPERM));
        assert_eq!((pass(&with, &arguments(&their)), errno()), (Some(223_456), libc::ENOSPC));
        let answer = (pass(&without, &arguments(&their)), errno());
        assert_eq!(answer, (Some(7), libc::ENOSYS), "the host's library is older");
        assert_eq!(pass(&without, &arguments(&our)), None);
    }
}

#[test]
fn an_event_is_the_hosts_if_its_object_is_and_an_event_of_a_port_is_nobodys() {
    let host = Host::open(verbs_context::zeroed());
    let domain = domain_of(host.context());
    let subject = std::ptr::from_ref(&domain);
    for (event_type, expected) in
        [(0, subject as usize), (3, subject as usize), (9, 0), (17, 0), (19, subject as usize)]
    {
        let element = crate::abi::ibv_async_event_element { cq: subject.cast_mut().cast() };
        let event = ibv_async_event { element, event_type };
        // SAFETY: a live event.
        let found = unsafe { subject_of_event(std::ptr::from_ref(&event) as usize) };
        assert_eq!(found, expected, "{event_type}");
    }
    // SAFETY: NULL is allowed.
    assert_eq!(unsafe { subject_of_event(0) }, 0);
}

#[test]
fn a_call_by_the_tables_of_a_context_leaves_its_errno_to_the_program() {
    unsafe extern "C" fn fails(
        _: *mut ibv_context,
        _: *mut ibv_cq_init_attr_ex,
    ) -> *mut crate::abi::ibv_cq_ex {
        THEIRS.set(libc::EOPNOTSUPP);
        std::ptr::null_mut()
    }
    let mut table = verbs_context::zeroed();
    table.create_cq_ex = Some(fails);
    let host = Host::open(table);
    // SAFETY: a live structure.
    let (create, others) = unsafe { ((*host.0).create_cq_ex, (*host.0).create_qp_ex) };
    assert!(others.is_none(), "what the host's library does not have stays away");
    set_errno(0);
    // SAFETY: the function takes anything.
    let made = unsafe { create.expect("it is there")(host.context(), std::ptr::null_mut()) };
    assert!(made.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
}
