"""Programs in Rust: crates of crates.io, unmodified, with their own tests and examples.

Their sources are Cargo's own copies, by version, and are built as they would be in their authors' workspace. The crate ibverbs has the tests
of its data path in its repository alone; of those its package has none, but an example, which the table has.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field

from harness.alone import alone
from harness.pair import Pair
from harness.process import Process, expect_success
from harness.report import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FOLDER = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "crates")
EXAMPLES = os.path.join(FOLDER, "build", "debug", "examples")
# The versions of everything that they depend on.
LOCK = os.path.join(HERE, "consumers", "crates", "Cargo.lock")

VERSIONS = {"ibverbs": "0.9.2", "ruapc-rdma": "0.1.3", "sideway": "0.4.3"}
MANIFEST = """[workspace]
resolver = "3"
members = [{members}]

[profile.dev]
debug = 0
"""

MIB = 1 << 20
LIMIT_S = 120


@dataclass
class Case:
    """A program of a crate that needs no other process: its queue pairs are connected to one another, within a host and by the network.

    `passed`: how many tests it has, which are run at once, none left out; or `expect`: texts of an example's output. `counters`: what the device
    has counted at least. `connections` and `bytes`: how many queue pairs of `service` the wire shows that were sent something, and bytes in them.
    """

    crate: str
    program: str
    passed: int = 0
    expect: list = field(default_factory=list)
    counters: dict = field(default_factory=dict)
    connections: int = 0
    bytes: int = 0
    service: str = "RC"

    @property
    def name(self):
        return f"{self.crate}_tests" if self.program == self.crate.replace("-", "_") else f"{self.crate}_{self.program}"

    @property
    def needs(self):
        return (needed(self.crate),)


def needed(crate):
    """What stands for a crate among all that is needed, where others may have its name."""
    return f"crate {crate}"


# PRACTICE-DEVICES-4: sideway's tests want the same GIDs by every way to ask, and connect to 127.0.0.1.
ALONE = [
    Case("ibverbs", "ibverbs", passed=2),
    Case("ibverbs", "loopback", expect=["sent", "received"], counters={"tx_bytes": 8, "rx_bytes": 8}, connections=1, bytes=8),
    Case("ruapc-rdma", "ruapc_rdma", passed=8, counters={"tx_bytes": MIB, "rx_bytes": MIB}, connections=2, bytes=MIB),
    Case("ruapc-rdma", "ruapc_rdma_info", expect=['"gid_type": "RoCEv2"']),
    Case("sideway", "sideway", passed=59, counters={"connections": 1}),
    Case("sideway", "test_atomic", passed=2, counters={"rx_atomics": 4}, connections=2),
    Case("sideway", "test_cq", passed=1),
    Case("sideway", "test_mr_and_cq", passed=1),
    Case("sideway", "test_qp", passed=1, counters={"connections": 1}),
    Case("sideway", "ibv_devinfo", expect=["phys_port_cnt:              1", "Active (4)"]),
    Case("sideway", "show_gids", expect=["roce0 |  1   |   0   |", "RoCEv2"]),
]
# It looks for its completions once, 10 ms after it has posted: nobody can promise that whose processor others use, too.
HURRIED = [Case("sideway", "test_post_send", passed=4, counters={"rx_writes": 12, "rx_sends": 8}, connections=4)]


def _pingpong(program):
    command = f"{{examples}}/{program} -p {{port}} -s 4096 -n 200"
    volume = 2 * 200 * 4096
    return Pair(f"sideway_{program}", command, f"{command} {{server}}", 2, volume, expect=["200 iters"], ipv6=False, needs=(needed("sideway"),))


PAIRS = [
    _pingpong("rc_pingpong"),
    _pingpong("rc_pingpong_split"),
    Pair(
        "sideway_cmtime",
        "{examples}/cmtime -p {port} -b {server}",
        "{examples}/cmtime -p {port} -s {server}",
        connections=0,
        bytes=0,
        expect=["Disconnect"],
        ipv6=False,
        polls=True,
        needs=(needed("sideway"),),
    ),
]


def run(case, adverb, place):
    """The case succeeds, and the device has counted what it must. `adverb`: the words in front of a program."""
    path = programs()[f"{case.crate} {case.program}"]
    # In parallel also where there are fewer processors.
    env = {"ADVERB_LOG": "info", "ADVERB_LOCAL": place.local, "RUST_TEST_THREADS": "8"}
    with Process([*adverb, path], env) as process:
        expect_success([process], LIMIT_S)
        words = process.output()
        passed = f"test result: ok. {case.passed} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
        missing = [text for text in case.expect or [passed] if text not in words]
        if missing:
            raise Failed(f"the output lacks {missing}:\n{process.describe()}")
        told = "".join(re.findall(rf"counters {place.device}: (.*)", words))
        counted = {name: int(value) for name, value in re.findall(r"\b(\w+)=(\d+)", told)}
        if any(counted.get(name, 0) < least for name, least in case.counters.items()):
            raise Failed(f"the device counts {counted}, expected at least {case.counters}:\n{process.describe()}")
    return ", ".join([f"{case.passed} tests" if case.passed else "an example", *(f"{name}={counted[name]}" for name in case.counters)])


def programs():
    """The programs that have been built: those of tests by crate and name."""
    try:
        with open(_built()) as file:
            return json.load(file)
    except FileNotFoundError:
        raise Failed("crates are missing: tests/programs/run --prepare fetches and builds them") from None


def _built():
    """What is there when everything has been built, in these versions."""
    versions = "_".join(f"{name}-{version}" for name, version in VERSIONS.items())
    return os.path.join(FOLDER, f"{versions}.json")


def build():
    """Fetches the crates and builds their tests and examples, if that has not been done."""
    with alone(FOLDER):
        if not os.path.exists(_built()):
            _build()


def _build():
    os.makedirs(FOLDER, exist_ok=True)
    for name, source in _fetch().items():
        shutil.rmtree(os.path.join(FOLDER, name), ignore_errors=True)
        shutil.copytree(source, os.path.join(FOLDER, name))
    with open(os.path.join(FOLDER, "Cargo.toml"), "w") as file:
        file.write(MANIFEST.format(members=", ".join(f'"{name}"' for name in VERSIONS)))
    shutil.copy(LOCK, FOLDER)
    command = ["cargo", "test", "--locked", "--no-run", "--workspace", "--message-format=json"]
    told = [json.loads(line) for line in _run(*command, "--target-dir", os.path.join(FOLDER, "build"), cwd=FOLDER).splitlines()]
    made = [message for message in told if message.get("executable")]
    names = {f"{_crate(message)} {message['target']['name']}": message["executable"] for message in made}
    with open(f"{_built()}.new", "w") as file:
        json.dump(names, file)
    os.rename(file.name, _built())


def _crate(message):
    """Of which crate a program is."""
    return os.path.basename(os.path.dirname(message["manifest_path"]))


def _fetch():
    """Where Cargo has put the sources of each crate, whose checksums it knows."""
    folder = os.path.join(FOLDER, "fetch")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "Cargo.toml"), "w") as file:
        file.write('[package]\nname = "fetch"\nedition = "2024"\n[lib]\npath = "lib.rs"\n[workspace]\n[dependencies]\n')
        file.writelines(f'{name} = "={version}"\n' for name, version in VERSIONS.items())
    open(os.path.join(folder, "lib.rs"), "w").close()
    shutil.copy(LOCK, folder)
    [host] = re.findall(r"^host: (.*)", _run("rustc", "-vV", cwd=folder), re.MULTILINE)
    told = json.loads(_run("cargo", "metadata", "--format-version=1", "--filter-platform", host, cwd=folder))
    found = {package["name"]: os.path.dirname(package["manifest_path"]) for package in told["packages"]}
    return {name: found[name] for name in VERSIONS}


def _run(*command, cwd):
    """What a command says."""
    # How adverb itself is built is nothing to them; they are built once.
    env = {"CARGO_INCREMENTAL": "0"} | {name: value for name, value in os.environ.items() if not name.startswith("CARGO_PROFILE") and name not in ("RUSTFLAGS", "CARGO_TARGET_DIR")}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(f"$ {' '.join(command)}\n{result.stderr[-5000:]}")
    return result.stdout
