"""Ceph over RDMA: a monitor and a store of objects, and clients that put an object there and get it back."""

import contextlib
import os
import random
import signal
import tempfile
import uuid

from harness.namespace import free_port
from harness.pair import Pair
from harness.process import Process, expect_success, wait_until
from harness.report import Failed

OBJECT = 20 << 20
LIMIT_S = 120
STORE = Pair("ceph", "ceph-osd", "rados", connections=4, bytes=2 * OBJECT, needs=("ceph-mon", "ceph"))

# Every message goes by RDMA, the monitor's, too. Objects are in memory, in one copy; buffers are as many as a small store needs.
CONFIGURATION = """[global]
fsid = {fsid}
mon host = v2:{server}:{port}/0
mon initial members = a
public network = {server}/24
auth cluster required = none
auth service required = none
auth client required = none
ms type = async+rdma
ms cluster type = async+rdma
ms public type = async+rdma
ms async rdma device name = {device}
ms async rdma gid idx = 0
ms async rdma polling us = 0
ms async rdma buffer size = 16384
ms async rdma receive buffers = 2048
ms async rdma send buffers = 2048
ms async rdma receive queue len = 1024
run dir = {folder}
crash dir = {folder}
admin socket = {folder}/$name.$pid.asok
log file = {folder}/$name.log
mon data = {folder}/mon
mon data avail crit = 0
osd data = {folder}/osd
osd objectstore = memstore
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
"""


class Cluster:
    """A monitor and a store at `place`'s far end, as long as a `with` lasts; `run`: the words that run a program on the device."""

    def __init__(self, place, run, folder):
        self.folder, self._run, self._prefix = folder, run, place.prefix
        self._env = {"ADVERB_LOCAL": place.local, "CEPH_CONF": os.path.join(folder, "ceph.conf")}
        fsid, self._port = str(uuid.uuid4()), free_port()
        names = {"server": place.server, "device": place.device, "folder": folder, "fsid": fsid, "port": self._port}
        with open(self._env["CEPH_CONF"], "w") as file:
            file.write(CONFIGURATION.format(**names))
        for name in ("mon", "osd"):
            os.mkdir(os.path.join(folder, name))
        monitors = os.path.join(folder, "monitors")
        self._finish(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:{place.server}:{self._port}]", monitors])
        self._finish(["ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors])

    def __enter__(self):
        with contextlib.ExitStack() as servers:
            monitor = self._start(servers, ["ceph-mon", "-f", "-i", "a"])
            identity = str(uuid.uuid4())
            self.client("ceph", "osd", "new", identity, witness=monitor)
            self._finish(["ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", identity, "--no-mon-config"])
            store = self._start(servers, ["ceph-osd", "-f", "-i", "0"])
            wait_until(lambda: "1 up" in self.client("ceph", "osd", "stat", witness=store), LIMIT_S, "the store is up")
            self._servers, self._ending = servers.pop_all(), (store, monitor)
        return self

    def __exit__(self, failure, *_):
        with self._servers:
            # In order, unless something has gone wrong already.
            for server in self._ending if failure is None else ():
                server.signal(signal.SIGTERM)
                expect_success([server], LIMIT_S)

    def _start(self, servers, command):
        """A server at the far end."""
        return servers.enter_context(Process([*self._prefix, *self._run, *command], self._env))

    def _finish(self, command):
        """A program that uses no network."""
        with Process(command, self._env) as process:
            expect_success([process], LIMIT_S)

    def client(self, *command, witness=None):
        """What a client says that succeeds at the near end."""
        with Process([*self._run, *command], self._env) as process:
            expect_success([process], LIMIT_S, [witness] if witness else [])
            return process.output()


def put_and_get(place, run):
    """An object that one client puts into a new store is what another one gets."""
    with tempfile.TemporaryDirectory(prefix="adverb-ceph-") as folder:
        put, got = (os.path.join(folder, name) for name in ("put", "got"))
        with open(put, "wb") as file:
            file.write(random.Random(1).randbytes(OBJECT))
        with Cluster(place, run, folder) as cluster:
            cluster.client("ceph", "osd", "pool", "create", "objects", "8")
            cluster.client("rados", "--pool", "objects", "put", "one", put)
            cluster.client("rados", "--pool", "objects", "get", "one", got)
        with open(put, "rb") as expected, open(got, "rb") as found:
            if expected.read() != found.read():
                raise Failed("the object is not the same")
