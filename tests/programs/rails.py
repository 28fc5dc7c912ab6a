"""A program with eight devices goes on when one of them is taken away."""

import os
import re
import tempfile

import consumers
from harness.namespace import two_hosts
from harness.process import Process, expect_success, wait_until
from harness.report import Failed

# Memory is near to the first four; one of those has an interface of its own.
DEVICES = "mlx5_[0-2]@numa=0,interface=cable mlx5_3@numa=0,interface=spare mlx5_[4-7]@numa=1,interface=cable"


# PRACTICE-DEVICES-1
def goes_on_without_a_device(adverb):
    """Mooncake spreads over the devices near to its memory. The interface of one goes down; the transfers go on over the others."""
    here, there = two_hosts()
    with here, there, tempfile.TemporaryDirectory(prefix="adverb-rails-") as folder:
        here.join(there, "spare", "10.96.0.1/24", "10.96.0.2/24")
        place, gone = os.path.join(folder, "place"), os.path.join(folder, "gone")
        transfers = [adverb, "run", "--devices", DEVICES, "--", *consumers.transfers_command()]
        with Process([*there.prefix, *transfers, "serve", "10.97.0.2", place]) as server:
            wait_until(lambda: "ready" in server.output() or server.status() is not None, 60, "the server is ready")
            with Process([*here.prefix, *transfers, "insist", "10.97.0.1", place, gone], {"ADVERB_LOG": "info"}) as client:
                wait_until(lambda: "half is done" in client.output() or client.status() is not None, 120, "half of the transfers")
                here.command("ip link set spare down")
                open(gone, "w").close()
                expect_success([client], 120, [server])
                used = sorted(set(re.findall(r"counters (\S+): .*\btx_messages=", client.output())))
                if "every byte is right" not in client.output() or used != [f"mlx5_{number}" for number in range(4)]:
                    raise Failed(f"{used} have sent something:\n{client.describe()}")
    return "four devices, then three"
