"""What is in a Debian package and a wheel of a processor: names, versions, needs, files, and the programs themselves, which run where there is nothing else."""

import base64
import hashlib
import os
import re
import shutil
import zipfile
from dataclasses import dataclass

from bare import Bare
from built import ROOT, run
from harness.report import Failed

LIBRARIES = {"libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1", "libadverb_preload.so", "librspreload.so"}
# Links in the Debian package; a wheel has none, and small libraries stand in.
LINKS = {"libibverbs.so": "libibverbs.so.1", "librdmacm.so": "librdmacm.so.1"}
DOCUMENTS = {"README.md", "CHANGELOG.md.gz", "SECURITY.md", "copyright", "docs/how-to/ci.md", "docs/errors.md"}
IN_DEB = {"usr/bin/adverb", "usr/share/man/man1/adverb.1.gz", "usr/share/adverb/valgrind.supp", "usr/share/adverb/pytest_adverb.py"}
IN_DEB |= {f"usr/lib/adverb/{name}" for name in LIBRARIES} | {f"usr/share/doc/adverb/{name}" for name in DOCUMENTS}
IN_DIST_INFO = {"METADATA", "WHEEL", "entry_points.txt", "RECORD", "licenses/LICENSE-APACHE", "licenses/LICENSE-MIT", "licenses/THIRD-PARTY"}
# What Pre-Depends names has these, and our own libraries each other.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"}
DEPENDS = ("libc6", "libgcc-s1")
# Of this distribution, for the shell script that starts a program.
SHELL = ("/bin/sh", "/usr/bin/env")
PREFIX = "/opt/adverb"


@dataclass
class Processor:
    """One that packages are made for, by its names."""

    kernel: str
    debian: str
    readelf: str
    linker: str


PROCESSORS = (
    Processor("x86_64", "amd64", "Advanced Micro Devices X86-64", "ld-linux-x86-64.so.2"),
    Processor("aarch64", "arm64", "AArch64", "ld-linux-aarch64.so.1"),
)


def of_this_machine():
    return next(one for one in PROCESSORS if one.kernel == os.uname().machine)


def of_workspace(name):
    """What Cargo.toml says of all crates."""
    with open(os.path.join(ROOT, "Cargo.toml")) as file:
        return re.search(rf'^{name} = "([^"]+)"', file.read(), re.MULTILINE).group(1)


def version():
    return of_workspace("version")


def equal(what, found, wanted):
    if found == wanted:
        return
    if isinstance(found, set):
        raise Failed(f"{what}: {sorted(found - wanted)} too much, {sorted(wanted - found)} missing")
    raise Failed(f"{what}: {found!r}, not {wanted!r}")


def fields(text):
    """The lines `Name: value` in front of the first empty one; a name that comes again has a list."""
    found = {}
    for line in text.partition("\n\n")[0].splitlines():
        if not line.startswith(" "):
            name, _, value = line.partition(": ")
            found.setdefault(name, []).append(value)
    return found


def program(path, processor):
    """Looks at one ELF file: its processor, its name and its needs. The newest version of the C library that it asks for."""
    said = run("readelf", "--wide", "--file-header", "--dynamic", "--version-info", path)
    name = os.path.basename(path)
    equal(f"{name}: processor", re.search(r"Machine:\s+(.*)", said).group(1), processor.readelf)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))
    if needed - SYSTEM - {processor.linker} - LIBRARIES:
        raise Failed(f"{name} needs {sorted(needed)}")
    if re.search(r"\((RPATH|RUNPATH)\)", said):
        raise Failed(f"{name} looks for libraries at a path of its own")
    soname = re.search(r"\(SONAME\).*\[(.*)\]", said)
    # Libraries that are only preloaded need no name.
    if name.startswith(("libibverbs", "librdmacm")):
        equal(f"{name}: soname", soname and soname.group(1), name)
    needs = said.partition("Version needs section")[2]
    return max((tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", needs)), default=(0,))[:2]


def programs(prefix, processor, wanted):
    """All of them below a prefix; the newest version that they ask for is the one that the package names."""
    folder = os.path.join(prefix, "lib/adverb")
    files = [os.path.join(prefix, "bin/adverb"), *(os.path.join(folder, name) for name in sorted(LIBRARIES))]
    newest = max(program(path, processor) for path in files if not os.path.islink(path))
    equal("the C library", newest, wanted)


def deb(path, processor, place):
    """Unpacks the Debian package: the prefix in it, and the C library that it asks for."""
    control = {name: values[0] for name, values in fields(run("dpkg-deb", "--field", path)).items()}
    equal("file", os.path.basename(path), f"adverb_{version()}_{processor.debian}.deb")
    for name, wanted in (("Package", "adverb"), ("Version", version()), ("Architecture", processor.debian)):
        equal(name, control[name], wanted)
    needs = re.fullmatch(r"libc6 \(>= (\d+)\.(\d+)\), libgcc-s1", control["Pre-Depends"])
    if not needs or "Depends" in control:
        raise Failed(f"Pre-Depends: {control['Pre-Depends']}")
    equal("Homepage", control["Homepage"], of_workspace("repository"))
    host, account = of_workspace("repository").split("/")[2:4]
    equal("Maintainer", control["Maintainer"], f"The adverb authors <{account}@users.noreply.{host}>")
    run("dpkg-deb", "--extract", path, place)
    found = {os.path.relpath(os.path.join(folder, name), place) for folder, _, names in os.walk(place) for name in names}
    equal("files", found, IN_DEB)
    prefix = os.path.join(place, "usr")
    for name, to in LINKS.items():
        equal(name, os.readlink(os.path.join(prefix, "lib/adverb", name)), to)
    equal("mode", oct(os.stat(os.path.join(prefix, "bin/adverb")).st_mode & 0o777), oct(0o755))
    size = sum(os.lstat(os.path.join(place, name)).st_size for name in found) // 1024
    if not size <= int(control["Installed-Size"]) <= size + 200:
        raise Failed(f"Installed-Size is {control['Installed-Size']}, the files have {size} KiB")
    return prefix, (int(needs.group(1)), int(needs.group(2)))


def wheel(path, processor, place):
    """Unpacks the wheel as pip does: the prefix, and the C library that it asks for."""
    named = re.fullmatch(rf"adverb-{re.escape(version())}-(py3-none-manylinux_(\d+)_(\d+)_{processor.kernel})\.whl", os.path.basename(path))
    if not named:
        raise Failed(f"the name of {path}")
    info, data = (f"adverb-{version()}.{end}/" for end in ("dist-info", "data"))
    with zipfile.ZipFile(path) as archive:
        if archive.testzip():
            raise Failed(f"damaged: {archive.testzip()}")
        wanted = {"pytest_adverb.py", f"{data}scripts/adverb", f"{data}data/lib/adverb/valgrind.supp"}
        wanted |= {info + name for name in IN_DIST_INFO} | {f"{data}data/lib/adverb/{name}" for name in LIBRARIES}
        equal("files", set(archive.namelist()), wanted)
        about, tags = (fields(archive.read(info + name).decode()) for name in ("METADATA", "WHEEL"))
        for name, value in (("Name", ["adverb"]), ("Version", [version()]), ("Requires-Python", [">=3.8"]), ("Requires-Dist", None)):
            equal(name, about.get(name), value)
        equal("Tag", tags["Tag"], [named.group(1)])
        for line in archive.read(f"{info}RECORD").decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            if name != f"{info}RECORD":
                what = archive.read(name)
                sum_of_it = base64.urlsafe_b64encode(hashlib.sha256(what).digest()).rstrip(b"=").decode()
                equal(f"RECORD, {name}", (digest, size), (f"sha256={sum_of_it}", str(len(what))))
                wanted.remove(name)
        equal("RECORD lacks", wanted, {f"{info}RECORD"})
        equal("mode", oct(archive.getinfo(f"{data}scripts/adverb").external_attr >> 16), oct(0o100755))
        archive.extractall(place)
    prefix = os.path.join(place, "prefix")
    shutil.move(os.path.join(place, f"{data}data"), prefix)
    shutil.move(os.path.join(place, f"{data}scripts"), os.path.join(prefix, "bin"))
    os.chmod(os.path.join(prefix, "bin/adverb"), 0o755)
    return prefix, (int(named.group(2)), int(named.group(3)))


def least():
    """A root folder with the packages that ours depends on, a shell, and nothing else."""
    bare = Bare(shown=("/dev", "/sys"))
    for name in ("/bin", "/lib", "/lib64", "/sbin"):
        os.makedirs(bare.path(f"/usr{name}"), exist_ok=True)
        os.symlink(f"usr{name}", bare.path(name))
    listed = run("dpkg-query", "--listfiles", *DEPENDS).splitlines()
    for name in {name for name in listed if re.search(r"\.so\b", name) and "/gconv/" not in name} | set(SHELL):
        if os.path.isfile(name):
            os.makedirs(os.path.dirname(bare.path(name)), exist_ok=True)
            shutil.copy(name, bare.path(name))
    return bare


def emulated(processor):
    """A root folder in which the kernel starts programs of another processor by their emulator."""
    number = {"aarch64": "b7"}[processor.kernel]
    magic = rf"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x{number}\x00"
    mask = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    rule = f":{processor.kernel}:M::{magic}:{mask}:/usr/bin/qemu-{processor.kernel}:"
    folder = "/proc/sys/fs/binfmt_misc"
    why = "Linux 6.7 and CONFIG_BINFMT_MISC are needed to start programs of another processor"
    return Bare(before=[f"mount -t binfmt_misc none {folder} || {{ echo '{why}' >&2; exit 1; }}", f"printf %s '{rule}' >{folder}/register"], apart=True)


def works(prefix, processor):
    """The command says who it is, sees a device, and does every operation between two processes."""
    ours = processor == of_this_machine()
    variables = {"PATH": f"{PREFIX}/bin:/usr/bin:/bin"} | ({} if ours else {"QEMU_LD_PREFIX": f"/usr/{processor.kernel}-linux-gnu"})
    with least() if ours else emulated(processor) as bare:
        shutil.copytree(prefix, bare.path(PREFIX), symlinks=True)
        equal("adverb --version", bare.run("adverb --version", **variables).split(), ["adverb", version()])
        devices = bare.run("adverb devices", **variables)
        if not devices.startswith("roce0: ") or f"libraries: {PREFIX}/lib/adverb" not in devices:
            raise Failed(f"$ adverb devices\n{devices}")
        demo = bare.run("adverb demo", **variables)
        if "demo PASSED" not in demo:
            raise Failed(f"$ adverb demo\n{demo}")


def opened(unpack, path, processor, oldest=None):
    """All of the above for a package; `oldest` is the C library that it must be content with."""
    bare = Bare(shown=())
    with bare:
        prefix, library = unpack(path, processor, bare.path("/opt"))
        programs(prefix, processor, library)
        if oldest and library > oldest:
            raise Failed(f"it needs the C library {library}, newer than {oldest}")
        works(prefix, processor)
    return f"needs glibc {'.'.join(map(str, library))}"


def tests(packages):
    for end, unpack in ((".deb", deb), (".whl", wheel)):
        yield f"what_is_in_the_{unpack.__name__}", lambda end=end, unpack=unpack: opened(unpack, packages[end], of_this_machine())
