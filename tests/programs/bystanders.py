"""Programs that use no RDMA do the same under `adverb run` as without: output, errors, status, to the byte.

And those that look for the files of RDMA devices themselves find what the library says.
"""

import difflib
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading

from harness.report import Failed

LIMIT_S = 60

SHELL = r"""
mkdir -p sys/class/infiniband/roce0 dev/infiniband folder/deep; echo mine > sys/class/infiniband/roce0/node_type
ls -laR --time-style=+ . | sort; cat sys/class/infiniband/roce0/node_type ./dev/infiniband/uverbs0
ls -d /dev/null /etc/passwd /sys/class/net /nowhere/at/all; stat -c %n:%a:%F / /dev/null /etc/passwd /sys/class
for path in /sys/class /sys/class/infinibanD /dev/infiniband2 /dev/../dev/null "" /etc/passwd/x; do
  for test in -e -f -d -r -w -x -c -L; do test $test "$path"; printf '%s %s: %s\n' "$path" $test $?; done
done
ln -s ../nowhere folder/dangling; readlink folder/dangling; readlink -f folder/../folder/deep; echo folder/*
umask 027; : > folder/made; stat -c %a folder/made; find . -name '[a-d]*' | sort; du -s --apparent-size folder
(exec 3>folder/three; echo three >&3; cat <folder/three) | tr a-z A-Z; cat <<END
here $(( 6 * 7 ))
END
trap 'echo trapped' EXIT; command -v no-such-program; exec 2>&1; no-such-program; cd /nowhere; (exit 5); echo $?; exit 7
"""

PYTHON = r"""
import ctypes, multiprocessing, os, pathlib, signal, sqlite3, subprocess, sys, tempfile, threading
c = ctypes.CDLL(None, use_errno=True)
for path in (None, b"", b"/", b"/nowhere", b"x" * 5000, b"/dev/null", b"/dev/infinibane", b"sys/class/infinibane"):
    for name in ("open", "open64", "access", "chdir", "stat", "lstat", "readlink", "opendir", "fopen"):
        if path is None and name in ("opendir", "fopen"):
            continue
        room = ctypes.create_string_buffer(4096)
        extra = {"access": (4,), "stat": (room,), "lstat": (room,), "readlink": (room, 4096), "fopen": (b"r",)}.get(name, ())
        if name.startswith("open") and name != "opendir":
            extra = (os.O_RDONLY,)
        ctypes.set_errno(0)
        function = getattr(c, name)
        function.restype = ctypes.c_void_p if name in ("opendir", "fopen") else ctypes.c_int
        good = function(path, *extra) not in (-1, None)
        print(path and path[:20], name, good, 0 if good else os.strerror(ctypes.get_errno()))
class Found(ctypes.Structure):
    _fields_ = [("count", ctypes.c_size_t), ("paths", ctypes.POINTER(ctypes.c_char_p)), ("offset", ctypes.c_size_t), ("flags", ctypes.c_int), ("functions", ctypes.c_void_p * 5)]
for pattern, flags in ((b"/etc/pass*", 0), (b"/etc/{passwd,gro*}", 1 << 10), (b"/nowhere/*", 0), (b"/nowhere/*", 1 << 4), (b"/dev/nul[kl]", 1 << 1), (b"/sys/class/n*/l[o]/mtu", 0), (b"~root", 1 << 12)):
    found = Found(); result = c.glob(pattern, flags, None, ctypes.byref(found)); print(pattern, result, found.flags, [found.paths[index] for index in range(found.count)])
os.chdir(os.environ["FOLDER"])
made = os.open("made", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o640); print(oct(os.fstat(made).st_mode))
folder = os.open(".", os.O_DIRECTORY); print(os.stat("made", dir_fd=folder).st_size, sorted(os.listdir(folder)))
print(pathlib.Path("made").exists(), pathlib.Path("/sys/class/net").is_dir(), os.path.realpath("."), os.access("made", os.W_OK))
with tempfile.TemporaryFile() as file: file.write(b"x" * 70000); print(file.tell())
database = sqlite3.connect("base"); database.execute("create table t (x)"); database.execute("insert into t values (42)"); database.commit()
print(list(sqlite3.connect("base").execute("select * from t")))
print(subprocess.run(["sh", "-c", "echo $0 $#; exit 9", "a", "b"], capture_output=True))
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, range(-3, 3)))
threads = [threading.Thread(target=lambda: [os.stat("/etc/passwd") for _ in range(2000)]) for _ in range(4)]
[t.start() for t in threads]
for _ in range(20):
    if os.fork() == 0: os._exit(0 if os.path.exists("/etc/passwd") and not os.path.exists("/nowhere") else 1)
    print(os.wait()[1])
[t.join() for t in threads]
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print(sum(len(open("/etc/passwd").read()) > 0 for _ in range(300)))
signal.setitimer(signal.ITIMER_REAL, 0)
open("/nowhere/at/all")
"""

# The system's own files. Counters and times that change by themselves are left out, and the devices of RDMA that the machine may have.
SYSTEM = r"""
find /sys/class -maxdepth 2 -not -path '*infiniband*' | sort; ls -l /sys/class /sys/class/net/ /sys/bus /sys/bus/pci/ /sys/bus/pci/devices/ /dev | grep -v 'infiniband\| shm$\| mqueue$' | sed 's/[A-Z][a-z][a-z] [ 0-9][0-9] [0-9:]*//; s/  */ /g'
ls -lR --time-style=+ /sys/class/net/lo/ /sys/devices/system /sys/bus/pci/devices/ | sort; cd /sys/class/net && ls -d ../../devices/virtual/net && readlink -f lo/../.. && cat lo/../lo/mtu
stat -f -c '%n %T' /sys /sys/class/net /dev /proc/self / /nowhere; df --output=fstype,target /sys /dev; stat -f -c %T - < /proc/self/status
cat /sys/devices/system/cpu/online /sys/class/net/*/address; cd /sys/bus/pci/devices 2>/dev/null && for d in *; do cat "$d/class" "$d/vendor"; done; cd /sys/devices && /bin/pwd; ls ..
cat /sys/devices/platform/none /sys/bus/pci/devices/none/class /sys/class/none; cd ../class/../devices/nowhere; find /sys/bus -maxdepth 3 | sort | head -n 2000; exit 3
"""

WALK = r"""
import os
for root in ("/sys/class", "/sys/devices/system", "/sys/bus/pci", "/dev"):
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("infiniband", "fd", "pts", "shm")))
        print(place, folders, sorted(name for name in files if name != "ptmx"), [os.path.realpath(os.path.join(place, name)) for name in folders])
"""

NODE = r"""
const fs = require("fs"), path = require("path");
function walk(place, depth) {
  for (const name of fs.readdirSync(place).sort()) {
    const whole = path.join(place, name), status = fs.lstatSync(whole);
    console.log(whole, status.mode, status.isSymbolicLink() ? fs.readlinkSync(whole) + " " + fs.realpathSync(whole) : "");
    if (status.isDirectory() && depth > 0) walk(whole, depth - 1);
  }
}
walk("/sys/class/net", 1); walk("/sys/devices/system/cpu/cpu0", 1);
"""

# With the devices of buses, but those of RDMA; other objects get other numbers where there is one of these.
HWLOC = r"""
set -o pipefail
hwloc-ls --whole-io --of xml | sed 's/ gp_index="[0-9]*"//; /osdev_type="3"/,/<\/object>/d'; exit $((PIPESTATUS[0] + 6))
"""

GIT = r"""
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 HOME=$PWD GIT_PAGER=cat
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_AUTHOR_DATE='@1 +0000' GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_COMMITTER_DATE='@1 +0000'
git init -q -b main one; cd one; mkdir -p dev/infiniband; for i in 1 2 3; do echo $i > dev/infiniband/$i; git add .; git commit -qm "commit $i"; done
git log --stat; git diff HEAD~2; git clone -q . ../two; git -C ../two rev-parse HEAD; git gc -q; git fsck --strict; git status; git grep -n 2
git checkout -q no-such-branch; git show no-such-commit; echo changed > dev/infiniband/1; git diff --exit-code
"""

CURL = r"""
curl -sS http://127.0.0.1:$PORT/file -o out; cmp out file && echo same; curl -sS -i http://127.0.0.1:$PORT/file -o all; head -n 20 all | grep -avi '^date\|^last'
curl -sS -H Expect: -T file http://127.0.0.1:$PORT/put; curl -sSf http://127.0.0.1:$PORT/none; echo $?; curl -sS http://127.0.0.1:1/; echo $?; curl -sS file://$PWD/none
"""


class _Server(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d bytes\n" % len(body))


def _run(command, folder, env):
    """What a command says and how it ends, in an empty folder of always the same name."""
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    with open(os.path.join(folder, "file"), "w") as file:
        file.writelines(f"line {number}\n" for number in range(100_000))
    result = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
    # curl says how long it took.
    errors = re.sub(rb"after \d+ ms", b"after some ms", result.stderr)
    return {"status": result.returncode, "output": result.stdout, "errors": errors}


def same(folder, adverb, command, status):
    program = raw(folder)
    with tempfile.TemporaryDirectory(prefix="adverb-bystander-") as place:
        folder = os.path.join(place, "folder")
        handler = functools.partial(_Server, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever).start()
            try:
                env = {**os.environ, "PORT": str(server.server_port), "FOLDER": folder, "RAW": program}
                without = _run(command, folder, env)
                under = _run([*adverb, *command], folder, env)
            finally:
                server.shutdown()
    for what, expected in without.items():
        if under[what] != expected:
            lines = difflib.unified_diff(_lines(expected), _lines(under[what]), "without adverb", "under adverb run", lineterm="")
            raise Failed(f"{what} is not the same:\n" + "\n".join(lines))
    if without["status"] != status:
        raise Failed(f"status {without['status']} even without adverb:\n{(without['output'] + without['errors']).decode(errors='replace')}")
    return f"{len(without['output'])} bytes of output"


def _lines(value):
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).splitlines()


def finds_files(adverb, device):
    """What a shell, Python and `rdma` find is what the library tells ibv_devinfo."""

    def ask(*command):
        result = subprocess.run([*adverb, *command], capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode != 0:
            raise Failed(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}")
        return result.stdout

    told = ask("ibv_devinfo", "-v", "-d", device)
    guid = next(line.split()[1] for line in told.splitlines() if "node_guid" in line)
    folder = f"/sys/class/infiniband/{device}"
    shell = f"""
        cat {folder}/node_guid && ls {folder}/device/net && [ -c /dev/infiniband/uverbs0 ] && [ -w /dev/infiniband/uverbs0 ] &&
        cat </sys/class/infiniband_verbs/uverbs0/ibdev && cd {folder}/ports && cat 1/state && ls -l /sys/class/infiniband >/dev/null"""
    guid_found, net, name, state = ask("sh", "-c", shell).splitlines()
    code = f"""import os; print(os.listdir("/sys/class/infiniband"), os.path.isdir("{folder}/ports/1/gids"), open("{folder}/node_guid").read())"""
    python = ask("python3", "-c", code).split("\n")
    rdma = json.loads(ask("sh", "-c", "rdma link show -j"))
    expected = (guid, device, "4: ACTIVE", f"['{device}'] True {guid}", device, net)
    found = (guid_found, name, state, python[0], rdma[0]["ifname"], rdma[0]["netdev"])
    if expected != found:
        raise Failed(f"expected {expected}, found {found}")
    return f"GUID {guid}, interface {net}"


COMPILING = threading.Lock()


def raw(folder):
    """A program that makes its system calls itself, and has no dynamic linker. Of tests that run side by side, the first compiles it."""
    with COMPILING:
        return _compile_raw(folder)


@functools.cache
def _compile_raw(folder):
    program = os.path.join(folder, "raw")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, source], check=True)
    return program


# Those that are run with devices that have places on a bus, too, as is the one in Go (nightly.py): nothing but the devices' own names may show.
NEAR_DEVICES = ["system", "walk", "lspci", "static", "node", "hwloc", "hwloc_io"]
PLACED = "mlx5_0@numa=0,pci=1000:16:02.0/1000:17:00.0,vendor=0x15b3,part=0x1021 mlx5_1@numa=0 x@rate=100"

# Name, command, and its status.
PROGRAMS = [
    ("shell", ["bash", "-c", SHELL], 7),
    ("sh", ["sh", "-c", "ls -la / >/dev/null; echo $0; false | true; test -e /dev/infinibandx || exit 3"], 3),
    ("python", ["/usr/bin/python3", "-c", PYTHON], 1),
    ("git", ["bash", "-c", GIT], 1),
    ("curl", ["bash", "-c", CURL], 37),
    ("system", ["bash", "-c", SYSTEM], 3),
    ("walk", ["/usr/bin/python3", "-c", WALK], 0),
    ("lspci", ["bash", "-c", "lspci -nn; lspci -tv; lspci -Dvvv -s 0:0; lspci -n -s 1000:; exit 4"], 4),
    # Started by a shell: who starts such a program itself is warned.
    ("static", ["sh", "-c", "$RAW /sys/class/net /sys/bus/pci/devices /sys/class/pci_bus /sys/devices/system/cpu/cpu0/topology /sys/class/none /dev/null; exit 5"], 5),
    ("node", ["node", "-e", NODE], 0),
    ("hwloc", ["hwloc-ls", "--no-io", "--of", "xml"], 0),
    ("hwloc_io", ["bash", "-c", HWLOC], 6),
]
