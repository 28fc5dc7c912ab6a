//! The user whose processes this one trusts.

/// The user of this process. None: it may have more rights than the user that has started it, and trusts no
/// process.
pub(super) fn own_user() -> Option<libc::uid_t> {
    // SAFETY: a plain number.
    user(unsafe { libc::getauxval(libc::AT_SECURE) } != 0)
}

/// The user of this process. `is_secure`: the kernel has given the program rights by its file (setuid,
/// setgid, capabilities), or a security module (SELinux) says so, as it does of daemons, too.
fn user(is_secure: bool) -> Option<libc::uid_t> {
    let user = same(libc::getresuid)?;
    // The kernel leaves a daemon dumpable, and a program with rights by its file not. That one may make
    // itself dumpable, as long as it has the rights and afterwards. SAFETY: plain numbers.
    let has_more_rights =
        || unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } != 1 || has_rights_by_its_file(user);
    (!is_secure || !has_more_rights()).then_some(user)
}

/// The number of a process that is its real, its effective and its saved one.
fn same(get: unsafe extern "C" fn(*mut u32, *mut u32, *mut u32) -> libc::c_int) -> Option<u32> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: live locals.
    let is_known = unsafe { get(&raw mut real, &raw mut effective, &raw mut saved) } == 0;
    (is_known && real == effective && real == saved).then_some(real)
}

/// Whether the process of this user has another group, or capabilities that it has not got from its parent.
/// Root's have all by their user.
fn has_rights_by_its_file(user: libc::uid_t) -> bool {
    if same(libc::getresgid).is_none() {
        return true;
    }
    let is_inherited = |capability: u32| {
        let (is_set, capability, none) = (
            libc::PR_CAP_AMBIENT_IS_SET as libc::c_ulong,
            libc::c_ulong::from(capability),
            0 as libc::c_ulong,
        );
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, is_set, capability, none, none) == 1 }
    };
    let permitted = permitted();
    user != 0 && (0..u64::BITS).any(|bit| permitted >> bit & 1 != 0 && !is_inherited(bit))
}

/// The capabilities that the calling thread may use: all, where the system does not say it.
fn permitted() -> u64 {
    /// Of capget(2), for sets of 64 bits.
    const VERSION_3: u32 = 0x2008_0522;
    let head = [VERSION_3, 0];
    // Of each half: effective, permitted, inheritable.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: structures of such words, as the version has them.
    let result = unsafe { libc::syscall(libc::SYS_capget, head.as_ptr(), sets.as_mut_ptr()) };
    if result != 0 { u64::MAX } else { u64::from(sets[0][1]) | u64::from(sets[1][1]) << 32 }
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Listener, Owner, accept, name};
    use super::*;
    use crate::conformance::fixture::in_a_child;
    use std::process::Command;

    const NOBODY: libc::uid_t = 65_534;

    /// Runs the test as root: truly, or in a user namespace with the IDs that its user has been given.
    fn as_root(test: &str, run: impl FnOnce()) {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } == 0 {
            return run();
        }
        let test = format!("seqpacket::user::tests::{test}");
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--map-auto"]).arg(own).args([
            "--exact",
            &test,
            "--nocapture",
        ]);
        let output = command.output().expect("unshare of util-linux");
        let said =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(
            output.status.success() && said.contains("1 passed"),
            "needed: root, or user namespaces and subordinate IDs (/etc/subuid)\n{said}"
        );
    }

    /// Only root can become what a program with more rights than its user is.
    fn in_a_child_that_is(become_it: impl FnOnce() -> libc::c_int, act: impl FnOnce()) {
        in_a_child(|| {
            assert_eq!(become_it(), 0, "{}", std::io::Error::last_os_error());
            act();
        });
    }

    fn set_users(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> libc::c_int {
        // SAFETY: plain numbers.
        unsafe { libc::setresuid(real, effective, saved) }
    }

    fn set_dumpable(is_dumpable: bool) {
        let (value, none) = (libc::c_ulong::from(is_dumpable), 0 as libc::c_ulong);
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, value, none, none, none) }, 0);
    }

    #[test]
    fn a_process_of_one_user_trusts_that_one() {
        // SAFETY: takes nothing.
        let own = unsafe { libc::getuid() };
        assert_eq!(user(false), Some(own));
        in_a_child(|| {
            // As a security module has it of a daemon.
            set_dumpable(true);
            assert_eq!(user(true), Some(own));
            set_dumpable(false);
            assert_eq!((user(true), user(false)), (None, Some(own)));
        });
    }

    #[test]
    fn a_process_of_several_users_trusts_nobody() {
        as_root("a_process_of_several_users_trusts_nobody", || {
            for [real, effective, saved] in [[NOBODY, 0, 0], [0, NOBODY, 0], [NOBODY, NOBODY, 0]] {
                in_a_child_that_is(
                    || set_users(real, effective, saved),
                    || {
                        set_dumpable(true);
                        assert_eq!((user(false), user(true)), (None, None));
                    },
                );
            }
        });
    }

    /// A program may say at any time that its user may look at its memory.
    #[test]
    fn a_dumpable_program_with_capabilities_or_a_group_of_its_file_trusts_nobody() {
        as_root("a_dumpable_program_with_capabilities_or_a_group_of_its_file_trusts_nobody", || {
            let has_caps = || {
                // SAFETY: plain numbers.
                unsafe {
                    if libc::setresgid(NOBODY, NOBODY, NOBODY) != 0 {
                        return -1;
                    }
                    libc::prctl(
                        libc::PR_SET_KEEPCAPS,
                        1 as libc::c_ulong,
                        0 as libc::c_ulong,
                        0 as libc::c_ulong,
                        0 as libc::c_ulong,
                    );
                }
                set_users(NOBODY, NOBODY, NOBODY)
            };
            let drop_all = || {
                let (head, none) = ([0x2008_0522u32, 0], [[0u32; 3]; 2]);
                // SAFETY: structures of such words.
                assert_eq!(unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) }, 0);
            };
            in_a_child_that_is(has_caps, || {
                set_dumpable(true);
                assert!(permitted() != 0);
                assert_eq!(user(true), None);
                drop_all();
                assert_eq!(user(true), Some(NOBODY), "it has given them up for good");
                set_dumpable(false);
                assert_eq!(user(true), None);
            });
            let has_group = || {
                // SAFETY: plain numbers.
                if unsafe { libc::setresgid(NOBODY, 0, 0) } != 0 {
                    -1
                } else {
                    set_users(NOBODY, NOBODY, NOBODY)
                }
            };
            in_a_child_that_is(has_group, || {
                set_dumpable(true);
                assert_eq!(user(true), None);
            });
        });
    }

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
        as_root("a_setuid_program_does_not_even_trust_itself", || {
            in_a_child_that_is(
                || set_users(NOBODY, 0, 0),
                || assert_eq!(owners("setuid"), (Owner::Root, false)),
            );
        });
    }
}
