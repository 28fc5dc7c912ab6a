//! The user whose processes this one trusts.

/// The user of this process. None: it may have more rights than the user that has started it, and trusts no process.
pub(super) fn own_user() -> Option<libc::uid_t> {
    // SAFETY: plain numbers.
    let (real, effective, secure) =
        unsafe { (libc::getuid(), libc::geteuid(), libc::getauxval(libc::AT_SECURE)) };
    // A security module (SELinux) sets AT_SECURE for daemons, too. They have no other user's rights, and the kernel leaves them dumpable.
    // SAFETY: plain numbers.
    let is_privileged = secure != 0 && unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } != 1;
    single_user(real, effective, is_privileged)
}

/// The one user of a process that has no rights but this user's.
fn single_user(real: libc::uid_t, effective: libc::uid_t, is_privileged: bool) -> Option<libc::uid_t> {
    (real == effective && !is_privileged).then_some(real)
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Listener, Owner, accept, name};
    use super::*;
    use crate::conformance::fixture::in_a_child;

    const NOBODY: libc::uid_t = 65_534;

    #[test]
    fn a_process_with_more_rights_than_its_user_trusts_nobody() {
        for (real, effective, is_privileged, user) in [
            (1000, 1000, false, Some(1000)),
            (0, 0, false, Some(0)),
            (1000, 0, false, None),
            (1000, 0, true, None),
            (0, 1000, false, None),
            // It has capabilities by its file, or the rights of another group.
            (1000, 1000, true, None),
        ] {
            assert_eq!(single_user(real, effective, is_privileged), user);
        }
    }

    /// Only root can become what a setuid program is.
    #[test]
    fn a_setuid_program_does_not_even_trust_itself() {
        let owners = |label: &str| {
            let own = name(&format!("test/{label}/{}", std::process::id()));
            let listener = Listener::bind(&own).unwrap();
            let here = Connection::open(&own).unwrap();
            let there = accept(listener.fd()).unwrap();
            here.send(&[b"message"]).unwrap();
            let along = there.receive_with(&mut [0; 64]).unwrap().1;
            assert_eq!(here.owner(), there.owner());
            (here.owner(), along.is_same_user)
        };
        assert_eq!(owners("plain"), (Owner::Ourselves, true));
        if own_user() == Some(0) {
            in_a_child(|| {
                // SAFETY: plain numbers. A namespace may lack the user.
                if unsafe { libc::setresuid(NOBODY, 0, 0) } != 0 {
                    return;
                }
                assert_eq!(owners("setuid"), (Owner::Root, false));
            });
        }
    }
}
