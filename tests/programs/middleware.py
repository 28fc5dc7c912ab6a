"""Libraries above verbs whose programs must work, as tables: UCX, libfabric, MPI (harness/pair.py says what the fields mean)."""

import os
from dataclasses import dataclass

from cases import Single
from harness.pair import Pair

MIB = 1 << 20
UCX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ucx")

SINGLES = {
    "iwarp0": [
        Single("fi_info", "fi_info -p verbs", ["domain: iwarp0", "FI_EP_MSG", "FI_PROTO_IWARP", "FI_PROTO_RXM"]),
    ],
    "roce0": [
        Single("ucx_info", "ucx_info -d", ["Transport: rc_verbs", "Transport: ud_verbs", "Device: roce0:1", "manager: rdmacm"]),
        Single(
            "fi_info",
            "fi_info -p verbs",
            ["domain: roce0", "FI_PROTO_RDMA_CM_IB_RC", "FI_PROTO_RXM", "domain: roce0-dgram", "FI_PROTO_IB_UD", "FI_PROTO_RXD"],
        ),
    ],
}


def _ucx_perftest(name, batch, options, transports="", **more):
    """Every line of a file in the folder ucx, by one pair of processes: each begins with a name that the results repeat."""
    file = os.path.join(UCX, batch)
    with open(file) as lines:
        expect = [line.split()[0] for line in lines]
    command = f"env UCX_NET_DEVICES=roce0:1 {transports} ucx_perftest -f -p {{port}} -b {file} {options}".strip()
    return Pair(name, command, f"{command} {{server}}", ipv6=False, expect=expect, **more)


def _ucp(name, transports, **more):
    return _ucx_perftest(f"ucx_perftest_{name}", "ucp", "", f"UCX_TLS={transports}", bytes=20 * MIB, **more)


def _io_demo(options):
    """Reads and writes with checked contents. Connected by rdma_cm: there is no TCP among the transports."""
    name = "_".join(["io_demo", *options.replace("-", "").split()])
    command = f"env UCX_TLS=rc,ud,self UCX_SOCKADDR_TLS_PRIORITY=rdmacm io_demo -p {{port}} {options} -q -o read,write -d 1:1000000"
    client = f"{command} -i 100 {{server}}"
    return Pair(name, command, client, 2, 10 * MIB, expect=["exit with status 'OK'"], ipv6=False, endless=True, ready="started listener")


# Near to memory or not, all have the same address. UCX (1.13) spreads one operation over four lanes at most.
_EIGHT = ("--devices", "mlx5_[0-3]@numa=0 mlx5_[4-7]@numa=1")
# How messages are split: those that the receiver reads, those that the sender writes, and those that are sent without asking.
_SPLIT = {
    "read": "UCX_MAX_RNDV_RAILS=4 UCX_RNDV_SCHEME=get_zcopy",
    "written": "UCX_MAX_RNDV_RAILS=4 UCX_RNDV_SCHEME=put_zcopy",
    "eager": "UCX_MAX_EAGER_RAILS=4 UCX_RNDV_THRESH=inf",
}


def _over_four(how):
    """Large messages over four of eight devices: one direction at the speed of a benchmark, and both with checked contents."""
    split = f"env {_SPLIT[how]}"
    command = f"{split} UCX_TLS=rc_verbs,ud_verbs:aux,self ucx_perftest -f -p {{port}} -t tag_bw -s 4000000 -n 20 -w 2"
    rails = {"ipv6": False, "devices": _EIGHT, "rails": 4}
    yield Pair(f"ucx_perftest_four_of_eight_{how}", command, f"{command} {{server}}", 4, 20 * 4_000_000, rail_bytes=20 * 900_000, **rails)
    demo = _io_demo("")
    demo = {"server": f"{split} {demo.server}", "client": f"{split} {demo.client}", "expect": demo.expect, "ready": demo.ready}
    yield Pair(f"io_demo_four_of_eight_{how}", connections=4, bytes=10 * MIB, rail_bytes=MIB, endless=True, **demo, **rails)


def _pingpong(name, options, **more):
    command = f"fi_pingpong {options} -c"
    return Pair(f"fi_pingpong_{name}", f"{command} -B {{port}}", f"{command} -P {{port}} {{server}}", ipv6=False, **more)


# libfabric's servers listen at any port.
EVERYWHERE = [
    _pingpong("msg", "-p verbs -e msg -I 10", bytes=2 * 10 * MIB, any_port=True),
    _pingpong("rdm", "-p 'verbs;ofi_rxm' -e rdm -I 10", bytes=2 * 10 * MIB, any_port=True),
]
ON_ROCE = [
    _ucp("rc", "rc_verbs,ud_verbs:aux,self", connections=2),
    _ucp("ud", "ud_verbs,self", connections=2, service="UD"),
    _ucp("all", "rc,ud,self", connections=2),
    _ucx_perftest("ucx_perftest_uct_rc", "uct-rc", "-x rc_verbs -d roce0:1", connections=2, bytes=10 * MIB),
    _ucx_perftest("ucx_perftest_uct_ud", "uct-ud", "-x ud_verbs -d roce0:1", connections=2, bytes=200_000, service="UD"),
    _io_demo(""),
    _io_demo("-A"),
    *(pair for how in _SPLIT for pair in _over_four(how)),
    _pingpong("dgram", "-p verbs -e dgram -I 100", connections=2, bytes=100_000, service="UD"),
    _pingpong("rdm_over_datagrams", "-p 'verbs;ofi_rxd' -e rdm -I 10 -S 4096", connections=2, bytes=2 * 10 * 4096, service="UD"),
]


@dataclass
class Job:
    """mpi/check.c on `ranks` ranks, of which one half is here and the other on the neighbour.

    `mpi`: whose compiler and starter (openmpi or mpich). The wire must show queue pairs of `service`, or MPA connections,
    from each rank to a rank of the other side.
    `arguments`: of check.
    """

    name: str
    mpi: str
    ranks: int
    options: str
    devices: tuple = ("roce0",)
    service: str = "RC"
    arguments: str = ""

    @property
    def starter(self):
        return {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}[self.mpi]


def _openmpi(name, ranks, options, **more):
    return Job(f"{name}_{ranks}", "openmpi", ranks, options, **more)


_UCX = "--mca pml ucx --mca osc ucx -x UCX_NET_DEVICES=roce0:1 -x UCX_TLS={}"
_OFI = "--mca pml cm --mca mtl ofi --mca osc pt2pt --mca mtl_ofi_provider_include verbs"
JOBS = [
    _openmpi("openmpi_ucx", 2, _UCX.format("rc,ud,self")),
    _openmpi("openmpi_ucx", 4, _UCX.format("rc,ud,self")),
    _openmpi("openmpi_ucx_ud", 4, _UCX.format("ud,self"), service="UD", arguments="without-replacing"),
    _openmpi("openmpi_libfabric", 2, _OFI, devices=("iwarp0", "roce0")),
    _openmpi("openmpi_libfabric", 4, _OFI, devices=("iwarp0", "roce0")),
    # Debian's MPICH knows UCX only.
    Job("mpich_ucx_2", "mpich", 2, "-genv UCX_NET_DEVICES roce0:1 -genv UCX_TLS rc,ud,self"),
    Job("mpich_ucx_4", "mpich", 4, "-genv UCX_NET_DEVICES roce0:1 -genv UCX_TLS rc,ud,self"),
]
