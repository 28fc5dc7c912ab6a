"""A guest of QEMU moves from one process to another over RDMA, and its memory is compared."""

import contextlib
import json
import os
import random
import socket
import tempfile

from harness.namespace import free_port
from harness.process import Process, expect_success, wait_until
from harness.report import Failed

MIB = 1 << 20
MEMORY, FILLED, FILLED_AT = 96 * MIB, 48 * MIB, 16 * MIB
LIMIT_S = 120

# The guest does not run: its memory is what the loader has put there.
GUEST = ["qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-m", str(MEMORY // MIB), "-nodefaults", "-display", "none", "-S"]


class Monitor:
    """QEMU's monitor protocol."""

    def __init__(self, process, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LIMIT_S)
        wait_until(lambda: self._connects(path) or process.status() is not None, 60, "QEMU's monitor")
        self._file = self._socket.makefile("rw")
        self._file.readline()
        self("qmp_capabilities")

    def _connects(self, path):
        with contextlib.suppress(OSError):
            self._socket.connect(path)
            return True
        return False

    def __call__(self, command, **arguments):
        self._file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._file.flush()
        while True:
            answer = json.loads(self._file.readline())
            if "error" in answer:
                raise Failed(f"{command}: {answer['error']}")
            # Events come in between.
            if "return" in answer:
                return answer["return"]


def migrate(place, run):
    """`place`: the addresses, and the words that run a command at the far end. `run`: those that run one on the device."""
    with tempfile.TemporaryDirectory(prefix="adverb-guest-") as folder:
        fill, near, far = (os.path.join(folder, name) for name in ("fill", "near", "far"))
        with open(fill, "wb") as file:
            file.write(random.Random(1).randbytes(FILLED))
        way = f"rdma:{place.server}:{free_port()}"
        here = [*run, *GUEST, "-device", f"loader,file={fill},addr={FILLED_AT},force-raw=on", "-qmp", f"unix:{near},server,nowait"]
        there = [*place.prefix, *run, *GUEST, "-incoming", way, "-qmp", f"unix:{far},server,nowait"]
        env = {"ADVERB_LOCAL": place.local}
        with Process(there, env) as target, Process(here, env) as source:
            monitors = Monitor(source, near), Monitor(target, far)
            monitors[0]("migrate", uri=way)
            status = {}

            def ended():
                status.update(monitors[0]("query-migrate"))
                return status.get("status") in ("completed", "failed")

            wait_until(ended, LIMIT_S, "the migration ends")
            if status["status"] != "completed":
                raise Failed(f"{status}\n{source.describe()}\n{target.describe()}")
            memories = []
            for monitor, name in zip(monitors, ("near.memory", "far.memory")):
                path = os.path.join(folder, name)
                monitor("pmemsave", val=0, size=MEMORY, filename=path)
                with open(path, "rb") as file:
                    memories.append(file.read())
                monitor("quit")
            expect_success([source, target], LIMIT_S)
        with open(fill, "rb") as file:
            if memories[0] != memories[1] or memories[1][FILLED_AT : FILLED_AT + FILLED] != file.read():
                raise Failed("the guest's memory is not the same")
