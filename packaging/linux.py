"""The tarball and the Debian package."""

import glob
import os
import re
import shutil
import tarfile
import tempfile

import use
from bare import Bare
from built import run
from harness.report import Failed

FOLDERS = r"\./usr/(bin/adverb|lib/adverb/.*|share/(man/man1/adverb\.1\.gz|adverb/(valgrind\.supp|pytest_adverb\.py)|doc/adverb/.*))"
LIBRARIES = {"libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1", "libadverb_preload.so", "librspreload.so"}


def works(adverb):
    """The command at a new place uses the libraries beside it, and no others."""
    libraries = os.path.join(os.path.dirname(os.path.dirname(adverb)), "lib/adverb")
    if set(os.listdir(libraries)) != LIBRARIES:
        raise Failed(f"{libraries} has {os.listdir(libraries)}")
    prefix = os.path.dirname(os.path.dirname(adverb))
    options = run(adverb, "run", "--", "sh", "-c", "echo $VALGRIND_OPTS").strip()
    suppressions = f"{prefix}/share/adverb/valgrind.supp"
    # VALGRIND_OPTS cannot express a space.
    wanted = "" if " " in prefix else f"--suppressions={suppressions}"
    if options != wanted or not os.path.isfile(suppressions):
        raise Failed(f"valgrind is told {options}")
    if "hca_id:\troce0" not in run(adverb, "run", "--", "ibv_devinfo"):
        raise Failed("ibv_devinfo does not see roce0")
    mapped = run(adverb, "run", "--rsockets", "--", "cat", "/proc/self/maps")
    for name in ("libibverbs.so.1", "librdmacm.so.1", "libadverb_preload.so", "librspreload.so"):
        if f"{libraries}/{name}" not in mapped:
            raise Failed(f"{name} is not in a program:\n{mapped}")
    shown = run(adverb, "run", "--", "sh", "-c", "cat /sys/class/infiniband/*/ports/1/state; rdma link")
    if not shown.startswith("4: ACTIVE\nlink roce0/1 state ACTIVE"):
        raise Failed(f"the files of the device are not there:\n{shown}")


def tarball(path, place):
    with tarfile.open(path) as archive:
        archive.extractall(place, filter="fully_trusted") if hasattr(tarfile, "data_filter") else archive.extractall(place)
    (folder,) = os.listdir(place)
    works(os.path.join(place, folder, "bin/adverb"))
    return f"{os.path.getsize(path) / 1e6:.1f} MB"


def deb(path, place):
    listed = run("dpkg-deb", "--contents", path).splitlines()
    for line in listed:
        mode, owner, *_ = line.split()
        name = line.split(" ./", 1)[1].split(" -> ")[0]
        if mode.startswith("d"):
            continue
        if owner != "root/root" or not re.fullmatch(FOLDERS, f"./{name}"):
            raise Failed(f"this could collide with other packages: {line}")
    run("dpkg-deb", "--extract", path, place)
    works(os.path.join(place, "usr/bin/adverb"))
    needs = run("dpkg-deb", "--field", path, "Pre-Depends").strip()
    return f"{os.path.getsize(path) / 1e6:.1f} MB, depends on {needs}"


def at_a_place(test, path, prefix):
    with tempfile.TemporaryDirectory(prefix=prefix) as place:
        return test(path, place)


def everything(bare, prefix):
    """What users do with the command and the files below a prefix."""
    variables = {"PATH": f"{prefix}/bin:/rust/bin:{os.defpath}:/usr/sbin"}
    use.demo_and_pair(bare, **variables)
    use.cargo_test(bare, **variables)
    use.pytest_of_the_distribution(bare, prefix, **variables)


def installer(path, source):
    """The script that users of the tarball run: it installs, all works, it removes, nothing stays."""
    with Bare(also=use.toolchain()) as bare:
        before = bare.files()
        script, archive = bare.add(source), bare.add(path)
        bare.run(f"sh {script} --from {archive}")
        everything(bare, "/home/user/.local")
        # Once more over itself, as for a new version.
        bare.run(f"sh {script} --from {archive} && sh {script} --uninstall && rm {script} {archive}")
        bare.left(before)


# Stands for curl: the address of a release's file leads to the folder /opt/release.
CURL = """#!/bin/sh
while [ $# -gt 1 ]; do
  case $1 in -o) to=$2; shift 2 ;; *) shift ;; esac
done
cp "/opt/release/${1##*/}" "$to" || exit 22
printf '%s\\n' "$1" >>/opt/fetched
"""


def installer_fetches(path, source):
    """Without a file, the script fetches the tarball of its version, and takes no tarball with another sum."""
    with Bare() as bare:
        script, archive = bare.add(source), bare.add(path, "/opt/release")
        sums = os.path.join(os.path.dirname(path), "SHA256SUMS")
        # Packages that are made for this machine alone have no such file.
        bare.add(sums, "/opt/release") if os.path.exists(sums) else bare.run("cd /opt/release && sha256sum * >/tmp/sums && mv /tmp/sums SHA256SUMS")
        bare.write("/opt/fetch/curl", CURL)
        os.chmod(bare.path("/opt/fetch/curl"), 0o755)
        variables = {"PATH": f"/opt/fetch:{os.defpath}:/usr/sbin"}
        before = bare.files() | {"/opt/fetched"}
        bare.run(f"sh {script} && .local/bin/adverb run -- ibv_devinfo -d roce0 && sh {script} --uninstall", **variables)
        with open(bare.path("/opt/fetched")) as file:
            fetched = file.read().split()
        if [os.path.basename(address) for address in fetched] != ["SHA256SUMS", os.path.basename(path)]:
            raise Failed(f"these were fetched: {fetched}")
        bare.run(f"printf more >>{archive}")
        bare.refused(f"sh {script}", "has the SHA-256 sum", **variables)
        bare.run("sed -i 's/x86_64\\|aarch64/s390x/' /opt/release/SHA256SUMS")
        bare.refused(f"sh {script}", "does not name", **variables)
        bare.left(before)


def installer_refuses(path, source):
    """What cannot be served is said, and nothing is left behind."""
    with Bare() as bare:
        script, archive = bare.add(source), bare.add(path)
        bare.write("/tmp/text", "no tarball")
        # Each says something else of the machine than it is.
        for program, answer in (
            ("other-system/uname", 'case $1 in -s) echo FreeBSD;; *) /bin/uname "$@";; esac'),
            ("other-processor/uname", 'case $1 in -m) echo riscv64;; *) /bin/uname "$@";; esac'),
            ("musl/getconf", "exit 1"),
        ):
            bare.write(f"/opt/{program}", f"#!/bin/sh\n{answer}\n")
            os.chmod(bare.path(f"/opt/{program}"), 0o755)
        # A tarball whose command asks for more than this C library has: as an old system sees it.
        shutil.copytree(run_unpacked(path, bare.path("/opt")), bare.path("/opt/newer"), symlinks=True)
        bare.write("/opt/newer/bin/adverb", "#!/bin/sh\necho \"libc.so.6: version 'GLIBC_2.99' not found\" >&2\nexit 1\n")
        bare.run("cd /opt && tar -czf newer.tar.gz newer && rm -r newer")
        before = bare.files()
        path_with = lambda name: {"PATH": f"/opt/{name}:/usr/bin:/bin"}  # noqa: E731
        bare.refused(f"sh {script} --from {archive}", "not for FreeBSD", **path_with("other-system"))
        bare.refused(f"sh {script} --from {archive}", "not for riscv64", **path_with("other-processor"))
        bare.refused(f"sh {script} --from {archive}", "needs the GNU C library", **path_with("musl"))
        bare.refused(f"sh {script} --from /opt/newer.tar.gz", "version 'GLIBC_2.99' not found")
        bare.refused(f"sh {script} --from /tmp/text", "not a tarball of adverb: gzip")
        # What dpkg has brought is dpkg's.
        bare.write("/opt/dpkg/dpkg", "#!/bin/sh\nexit 0\n")
        os.chmod(bare.path("/opt/dpkg/dpkg"), 0o755)
        before = bare.files()
        bare.refused(f"sh {script} --uninstall", "apt remove adverb", **path_with("dpkg"))
        bare.refused(f"sh {script} --from /tmp/none", "no file /tmp/none")
        bare.refused(f"sh {script} --from {archive} --sha256 0", "not 0")
        bare.refused(f"sh {script}", "cannot fetch")
        bare.refused(f"sh {script} --from {archive} --prefix /proc/adverb", "cannot be written to")
        bare.refused(f"sh {script} --uninstall", "there is no adverb in")
        bare.left(before)


def run_unpacked(path, place):
    """The folder of a tarball's files, in `place`."""
    run("tar", "-xzf", path, "-C", place)
    (folder,) = glob.glob(os.path.join(place, "adverb-*"))
    return folder


def dpkg(path):
    """dpkg itself installs and purges the package beside the distribution's own, whose database it reads."""
    with Bare(also=use.toolchain()) as bare:
        # Of the distribution's database, what the package may depend on.
        bare.write("/opt/dpkg/status", run("dpkg-query", "--status", "libc6", "libgcc-s1") + "\n")
        bare.write("/opt/dpkg/info/format", "1\n")
        os.makedirs(bare.path("/opt/dpkg/updates"))
        bare.write("/opt/log", "")
        dpkg = "dpkg --force-unsafe-io --no-triggers --force-not-root --force-script-chrootless --log=/opt/log --admindir=/opt/dpkg --instdir=/opt/system"
        package = bare.add(path)
        bare.run("mkdir /opt/system")
        before = bare.files()
        bare.run(f"{dpkg} --install {package}")
        everything(bare, "/opt/system/usr")
        bare.run(f"{dpkg} --purge adverb")
        left = {name for name in bare.files() - before if not name.startswith("/opt/dpkg/")}
        if left:
            raise Failed(f"this was left behind: {left}")
        # The same for another processor.
        bare.run(
            f"mkdir /tmp/other && dpkg-deb -R {package} /tmp/other && sed -i s/^Architecture:.*/Architecture:\\ s390x/ /tmp/other/DEBIAN/control"
            " && dpkg-deb -Znone -b /tmp/other /tmp/other.deb"
        )
        bare.refused(f"{dpkg} --install /tmp/other.deb", "does not match system")
        nothing_installed(bare)
        # And one that asks for a newer C library.
        bare.run(
            "sed -i 's/libc6 (>= [0-9.]*)/libc6 (>= 2.99)/; s/^Architecture:.*/Architecture: '$(dpkg --print-architecture)'/' /tmp/other/DEBIAN/control"
            " && dpkg-deb -Znone -b /tmp/other /tmp/newer.deb"
        )
        bare.refused(f"{dpkg} --install /tmp/newer.deb", "pre-depends on libc6 (>= 2.99)")
        nothing_installed(bare)
        # And a system without the compiler's library.
        bare.write("/opt/dpkg/status", run("dpkg-query", "--status", "libc6") + "\n")
        bare.refused(f"{dpkg} --install {package}", "pre-depends on libgcc-s1")
        nothing_installed(bare)


def nothing_installed(bare):
    """After a refusal, no file is there, and dpkg knows of no package that waits."""
    unpacked = {name for name in bare.files() if name.startswith("/opt/system/")}
    known = bare.run("dpkg-query --admindir=/opt/dpkg --show --showformat '${Package} '").split()
    if unpacked or "adverb" in known:
        raise Failed(f"dpkg has refused. It knows {known}, and has left: {sorted(unpacked)}")


def tests(packages):
    for name, test, end in (("tarball", tarball, ".tar.gz"), ("deb", deb, ".deb")):
        # A path with a space: LD_PRELOAD cannot express it, and it must work all the same.
        for prefix, remark in (("adverb-package-", ""), ("adverb package ", "_at_a_path_with_a_space")):
            yield f"{name}{remark}", lambda test=test, end=end, prefix=prefix: at_a_place(test, packages[end], prefix)
    yield "the_installer_installs_and_removes", lambda: installer(packages[".tar.gz"], packages[".sh"])
    yield "the_installer_fetches_a_release_and_compares_its_sum", lambda: installer_fetches(packages[".tar.gz"], packages[".sh"])
    yield "the_installer_refuses_what_it_cannot_serve", lambda: installer_refuses(packages[".tar.gz"], packages[".sh"])
    yield "dpkg_installs_purges_and_refuses", lambda: dpkg(packages[".deb"])
