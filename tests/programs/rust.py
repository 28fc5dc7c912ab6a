"""Programs in Rust that have adverb inside, from the folder examples, and unmodified programs in C at the other end."""

import os
import subprocess

from harness.pair import Pair
from harness.report import Failed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
# Where Cargo puts them.
PROGRAMS = os.path.join(TARGET, "debug", "examples")

_VOLUME = 2 * 1000 * 4096

# Connected by the connection manager.
EVERYWHERE = [
    Pair(
        "rping_with_client_in_rust",
        "rping -s -a {server} -p {port}",
        "{rust}/rping {server}:{port}",
        bytes=2 * 100 * 64,
        expect=["100 texts of 64 bytes"],
        ipv6=False,
    ),
]
# Connected by numbers that they exchange over a socket.
ON_ROCE = [
    Pair(
        "ibv_rc_pingpong_with_client_in_rust",
        "ibv_rc_pingpong -g 0 -p {port}",
        "{rust}/rc_pingpong {server}:{port}",
        2,
        _VOLUME,
        expect=["1000 messages of 4096 bytes"],
        ipv6=False,
    ),
    Pair(
        "ibv_rc_pingpong_with_server_in_rust",
        "{rust}/rc_pingpong serve {server}:{port}",
        "ibv_rc_pingpong -g 0 -p {port} {server}",
        2,
        _VOLUME,
        expect=["1000 iters"],
        ipv6=False,
        ready="listening at",
    ),
]


def build():
    """Builds them, if the tests of the crates have not done so already: as a part of the workspace, since its crates agree on features."""
    names = [word for name in ("rc_pingpong", "rping") for word in ("--example", name)]
    result = subprocess.run(["cargo", "build", "--quiet", "--workspace", *names], cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(result.stderr)
