use super::*;
use crate::memory::until::until;

fn entry(memory: &mut [u8], access: Access) -> Entry {
    Entry {
        address: memory.as_mut_ptr() as usize,
        length: memory.len() as u64,
        iova: 0x1000,
        access,
        domain: 7,
        window: None,
        kind: Kind::Program,
    }
}

#[test]
fn the_permutation_is_one() {
    let keys = Keys::new();
    for index in (0..1 << 24).step_by(997) {
        assert_eq!(keys.open(keys.close(index)), index);
    }
}

// RFC5041-7.1-6, RFC5041-7.1-7, RFC5041-7.1-8, RFC5041-7.1-9, RFC5041-7.1-10, RFC5041-8.2-1, RFC5041-8.3.1-1
// RFC5040-7.2-6, RFC5040-7.2-7, RFC5040-7.2-8, RFC5040-7.2-9, RFC5040-7.2-10
// IB-QP-42, IB-RC-RSP-23
#[test]
fn every_check_refuses() {
    let keys = Keys::new();
    let mut memory = [0u8; 64];
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = keys.insert(entry(&mut memory, rights)).unwrap();
    let open = |key, address, length, rights, domain| {
        keys.open_span(key, address, length, rights, domain).map(|s| s.len())
    };
    assert_eq!(open(key, 0x1000, 64, rights, 7), Ok(64));
    assert_eq!(open(key, 0x1040, 0, rights, 7), Ok(0));
    assert_eq!(open(key ^ 1, 0x1000, 64, rights, 7), Err(AccessError::Key));
    assert_eq!(open(!key, 0x1000, 64, rights, 7), Err(AccessError::Key));
    assert_eq!(open(key, 0x1000, 64, rights, 8), Err(AccessError::ProtectionDomain));
    assert_eq!(open(key, 0x1000, 64, Access::REMOTE_READ, 7), Err(AccessError::Rights));
    assert_eq!(open(key, 0xfff, 2, rights, 7), Err(AccessError::Bounds));
    assert_eq!(open(key, 0x1000, 65, rights, 7), Err(AccessError::Bounds));
    assert_eq!(open(key, 0x103f, 2, rights, 7), Err(AccessError::Bounds));
    assert_eq!(open(key, 0x1000, u64::MAX, rights, 7), Err(AccessError::Wrap));
    assert_eq!(open(key, u64::MAX, 1, rights, 7), Err(AccessError::Bounds));
    assert_eq!(open(key, u64::MAX, 2, rights, 7), Err(AccessError::Wrap));
    keys.remove(key);
    assert_eq!(open(key, 0x1000, 64, rights, 7), Err(AccessError::Key));
}

// RFC5042-6.4.1-1
#[test]
fn keys_have_a_bound() {
    let keys = Keys::new();
    let mut memory = [0u8; 8];
    // As if all but two had been given out.
    keys.free.lock().unwrap().used = MAX_KEYS as u32 - 2;
    let mut insert = || keys.insert(entry(&mut memory, Access::empty())).map_err(|error| error.errno());
    let [first, _] = [insert().unwrap(), insert().unwrap()];
    assert_eq!(insert(), Err(libc::ENOMEM));
    keys.remove(first);
    insert().unwrap();
    assert_eq!(insert(), Err(libc::ENOMEM));
}

// RFC5042-6.1.1-1
#[test]
fn a_key_comes_again_late() {
    let keys = Keys::new();
    let mut memory = [0u8; 8];
    let mut seen = std::collections::HashSet::new();
    for _ in 0..RESTING << GENERATION_BITS {
        let key = keys.insert(entry(&mut memory, Access::empty())).unwrap();
        assert!(seen.insert(key));
        keys.remove(key);
    }
}

// RFC5040-8.1.1-2
#[test]
fn keys_are_spread_over_the_whole_range() {
    let keys = Keys::new();
    let mut memory = [0u8; 8];
    let made: Vec<u32> =
        (0..2000).map(|_| keys.insert(entry(&mut memory, Access::empty())).unwrap()).collect();
    let distinct =
        |of: &dyn Fn(&u32) -> u32| made.iter().map(of).collect::<std::collections::HashSet<_>>().len();
    assert_eq!(distinct(&|key| *key), 2000);
    assert!(distinct(&|key| key >> 24) > 200, "highest octets");
    assert!(distinct(&|key| key & 0xff) > 200, "tags");
    let steps: std::collections::HashSet<u32> =
        made.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
    assert!(steps.len() > 1900, "one key does not tell the next");
}

// RFC5041-8.3-2, RFC5041-8.3.1-2
#[test]
fn removal_waits_for_the_last_user() {
    let keys = Keys::new();
    let mut memory = [0u8; 8];
    let key = keys.insert(entry(&mut memory, Access::empty())).unwrap();
    let span = keys.open_span(key, 0x1000, 8, Access::empty(), 7).ok().unwrap();
    let removed = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            keys.remove(key);
            removed.store(true, Ordering::SeqCst);
        });
        let is_shut = until(|| keys.open_span(key, 0x1000, 8, Access::empty(), 7).is_err());
        let is_early = removed.load(Ordering::SeqCst);
        drop(span);
        assert!(is_shut && !is_early);
    });
    assert!(removed.load(Ordering::SeqCst));
}

// RFC5040-5.3-6, RFC5040-7.2-4, RFC5040-7.2-5
#[test]
fn peers_invalidate_only_what_lets_them_in() {
    let keys = Keys::new();
    let mut memory = [0u8; 8];
    let local = keys.insert(entry(&mut memory, Access::LOCAL_WRITE)).unwrap();
    let remote = keys.insert(entry(&mut memory, Access::REMOTE_READ)).unwrap();
    assert_eq!(keys.invalidate_for_peer(local, 7, 1, true), Err(AccessError::Rights));
    assert_eq!(keys.invalidate_for_peer(remote, 6, 1, true), Err(AccessError::ProtectionDomain));
    assert_eq!(keys.invalidate_for_peer(remote, 7, 1, true), Ok(()));
    assert_eq!(keys.invalidate_for_peer(remote, 7, 1, true), Err(AccessError::Key));
    assert_eq!(keys.invalidate_locally(local, 7, 1), Ok(()));
}

#[test]
fn uses_of_an_invalidated_key_are_seen_until_they_end() {
    let keys = Keys::new();
    let mut memory = [0u8; 8];
    let key = keys.insert(entry(&mut memory, Access::LOCAL_WRITE)).unwrap();
    let open = || keys.open_span(key, 0x1000, 8, Access::empty(), 7).ok();
    let span = open();
    assert!(span.is_some());
    assert_eq!(keys.invalidate_locally(key, 7, 1), Ok(()));
    assert!(open().is_none());
    assert!(keys.has_uses_left(key, Duration::ZERO) && keys.has_uses_left(key, Duration::MAX));
    drop(span);
    assert!(!keys.has_uses_left(key, Duration::ZERO));
    // Uses of what has the key now are no business of the request.
    // SAFETY: nobody else has the key.
    unsafe { keys.replace(key, entry(&mut memory, Access::LOCAL_WRITE)) };
    let span = open();
    assert!(span.is_some() && !keys.has_uses_left(key, Duration::ZERO));
    drop(span);
}
