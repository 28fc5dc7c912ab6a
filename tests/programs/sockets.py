#!/usr/bin/env python3
"""Does with sockets what programs do, and checks that it goes as the manual pages say: the same with the kernel's and with rsockets.

usage: sockets.py kernel|rsockets
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_S = 30
SOL_RDMA, RDMA_SQSIZE = 0x10000, 0
IN, OUT, EDGE, ONCE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLET, select.EPOLLONESHOT
# A server without us, which echoes what it is sent. (Over iWARP, who looks for a peer asks here first.)
PLAIN_SERVER = """
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    c.sendall(c.recv(100))
    c.close()
"""


def pair():
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), LIMIT_S)
        client.settimeout(None)
        server, address = listener.accept()
        assert address == client.getsockname() and server.getpeername() == address
        return client, server


def carries(one, other, data=b"hello"):
    one.sendall(data)
    assert other.recv(len(data), socket.MSG_WAITALL) == data


def carries_back(client, data):
    client.sendall(data)
    assert client.recv(len(data), socket.MSG_WAITALL) == data


def epoll_tells_levels():
    client, server = pair()
    with select.epoll() as epoll:
        epoll.register(server, IN)
        assert epoll.poll(0) == []
        client.send(b"ab")
        for _ in range(2):
            assert epoll.poll(LIMIT_S) == [(server.fileno(), IN)]
        assert server.recv(9) == b"ab" and epoll.poll(0) == []
        epoll.modify(server, IN | OUT)
        assert epoll.poll(LIMIT_S) == [(server.fileno(), OUT)]
        epoll.unregister(server)
        assert epoll.poll(0) == []
        for wrong, number in ((epoll.modify, errno.ENOENT), (epoll.register, 0), (epoll.register, errno.EEXIST)):
            try:
                wrong(server, IN)
                assert number == 0
            except OSError as error:
                assert error.errno == number
        client.close()
        assert epoll.poll(LIMIT_S)[0][1] & IN and server.recv(9) == b""
        server.close()
        assert epoll.poll(0) == []


def epoll_has_other_words():
    client, server = pair()
    with select.epoll() as epoll:
        epoll.register(server, select.EPOLLRDNORM | select.EPOLLRDHUP)
        assert epoll.poll(0) == []
        client.send(b"ab")
        assert epoll.poll(LIMIT_S) == [(server.fileno(), select.EPOLLRDNORM)] and server.recv(9) == b"ab"
        epoll.modify(server, select.EPOLLWRNORM)
        assert epoll.poll(LIMIT_S) == [(server.fileno(), select.EPOLLWRNORM)]
        epoll.modify(server, select.EPOLLRDHUP)
        assert epoll.poll(0) == []
        client.shutdown(socket.SHUT_WR)
        assert epoll.poll(LIMIT_S) == [(server.fileno(), select.EPOLLRDHUP)]


def epoll_tells_edges_and_once():
    client, server = pair()
    server.setblocking(False)
    with select.epoll() as epoll:
        epoll.register(server, IN | OUT | EDGE)
        assert epoll.poll(LIMIT_S) == [(server.fileno(), OUT)] and epoll.poll(0) == []
        for _ in range(3):
            client.send(b"x" * 100)
            assert epoll.poll(LIMIT_S)[0][1] & IN and epoll.poll(0) == []
            assert len(server.recv(200)) == 100
        # A thread sleeps, what it has been told is taken, and then there is more.
        client.send(b"x")
        assert epoll.poll(LIMIT_S)[0][1] & IN
        found = []
        sleeper = threading.Thread(target=lambda: found.extend(epoll.poll(LIMIT_S)))
        sleeper.start()
        while sleeper.is_alive():
            try:
                server.recv(1)
            except BlockingIOError:
                client.send(b"x")
            sleeper.join(0.01)
        assert found and found[0][1] & (IN | OUT)
        epoll.modify(server, IN | ONCE)
        client.send(b"x")
        assert epoll.poll(LIMIT_S) == [(server.fileno(), IN)] and epoll.poll(0) == []
        epoll.modify(server, IN | ONCE)
        assert epoll.poll(LIMIT_S) == [(server.fileno(), IN)]


def ordinary_descriptors_beside():
    client, server = pair()
    out, into = os.pipe()
    with select.epoll() as epoll, os.fdopen(out), os.fdopen(into, "w"):
        poll = select.poll()
        for each in (epoll, poll):
            each.register(out, IN)
            each.register(server, IN)
        for writer, reader in ((lambda: os.write(into, b"p"), out), (lambda: client.send(b"s"), server.fileno())):
            writer()
            assert epoll.poll(LIMIT_S) == poll.poll(LIMIT_S * 1000) == [(reader, IN)]
            assert select.select([out, server.fileno()], [], [], LIMIT_S)[0] == [reader]
            assert os.read(reader, 9) in (b"p", b"s")
        os.write(into, b"p")
        client.send(b"s")
        found = set()
        while len(found) < 2:
            found |= {fd for fd, _ in epoll.poll(LIMIT_S, 1)}
        assert found == {out, server.fileno()}


def is_waiting(thread):
    """Whether a thread sleeps in a call that waits for descriptors, and not for the interpreter."""
    with open(f"/proc/self/task/{thread.native_id}/syscall") as state:
        call = state.read().split()[0]
    # poll, epoll_wait, ppoll, epoll_pwait, epoll_pwait2: on x86-64, and ppoll and epoll_pwait on aarch64.
    return call in {"7", "232", "271", "281", "441", "73", "22"}


def a_new_entry_wakes_who_sleeps():
    client, server = pair()
    client.send(b"x")
    with select.epoll() as epoll:
        found = []
        sleepers = [threading.Thread(target=lambda: found.append(epoll.poll(LIMIT_S))) for _ in range(3)]
        for sleeper in sleepers:
            sleeper.start()
        deadline = time.monotonic() + LIMIT_S
        while not all(map(is_waiting, sleepers)):
            assert time.monotonic() < deadline
        epoll.register(server, IN)
        for sleeper in sleepers:
            sleeper.join()
        assert found == [[(server.fileno(), IN)]] * 3


def copies_of_descriptors():
    client, server = pair()
    copy = server.dup()
    server.close()
    carries(client, copy)
    moved = os.open("/dev/null", os.O_RDONLY)
    os.dup2(copy.fileno(), moved)
    copy.close()
    client.send(b"abc")
    assert os.read(moved, 9) == b"abc"
    os.close(moved)
    assert client.recv(1) == b""


def files_are_sent():
    client, server = pair()
    with tempfile.TemporaryFile() as file:
        data = os.urandom(300_000)
        file.write(data)
        file.flush()
        reader = threading.Thread(target=lambda: got.append(server.recv(len(data), socket.MSG_WAITALL)))
        got = []
        reader.start()
        assert client.sendfile(file) == len(data)
        reader.join()
        assert got == [data]


def children_do_no_harm():
    client, server = pair()
    child = os.fork()
    if child == 0:
        client.close()
        server.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for close_fds in (True, False):
        assert subprocess.run(["true"], close_fds=close_fds).returncode == 0
    carries(client, server)
    carries(server, client)


def signals_end_a_wait():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    _, server = pair()
    epoll = select.epoll()
    epoll.register(server, IN)
    signal.signal(signal.SIGALRM, ring)
    for wait in (
        lambda: select.select([server], [], [], LIMIT_S),
        lambda: epoll.poll(LIMIT_S),
        lambda: server.recv(1),
    ):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            wait()
            raise AssertionError("the signal did not come")
        except Alarm:
            pass
    # One that is blocked but for the wait, and is there already.
    libc = ctypes.CDLL(None, use_errno=True)
    entry = (ctypes.c_int32 * 2)(server.fileno(), select.POLLIN)
    limit = (ctypes.c_long * 2)(LIMIT_S, 0)
    nothing = (ctypes.c_ulong * 16)()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    os.kill(os.getpid(), signal.SIGALRM)
    try:
        assert libc.ppoll(entry, ctypes.c_ulong(1), limit, nothing) == -1 and ctypes.get_errno() == errno.EINTR
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        raise AssertionError("the signal did not come")
    except Alarm:
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])


def nobody_there_over_rdma():
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-c", PLAIN_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server, contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        address = ("127.0.0.1", int(server.stdout.readline()))
        client = stack.enter_context(socket.create_connection(address))
        carries_back(client, b"plain")
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        # The set is told of it before anybody knows which way it goes.
        events = stack.enter_context(select.epoll())
        events.register(client, select.EPOLLOUT)
        assert client.connect_ex(address) in (0, errno.EINPROGRESS)
        assert events.poll(LIMIT_S) == [(client.fileno(), select.EPOLLOUT)]
        events.modify(client, select.EPOLLIN)
        assert select.select([], [client], [], LIMIT_S)[1] == [client]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        client.setblocking(True)
        carries_back(client, b"plain, too")
        events.unregister(client)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        socket.create_connection(("127.0.0.1", port))
        raise AssertionError("somebody is there")
    except ConnectionRefusedError:
        pass


def options():
    client, _ = pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    client.setblocking(False)
    try:
        client.recv(1)
        raise AssertionError("there is nothing to receive")
    except BlockingIOError:
        pass


def datagrams():
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        for each in (server, client):
            each.bind(("127.0.0.1", 0))
        client.sendto(b"question", server.getsockname())
        assert select.select([server], [], [], LIMIT_S)[0] == [server]
        data, address = server.recvfrom(100)
        assert data == b"question" and address == client.getsockname()
        server.sendto(b"answer", address)
        assert client.recvfrom(100) == (b"answer", server.getsockname())


def of_what_kind():
    client, server = pair()
    for each in (client, server):
        try:
            assert each.getsockopt(SOL_RDMA, RDMA_SQSIZE) > 0 and sys.argv[1] == "rsockets"
        except OSError:
            assert sys.argv[1] == "kernel"
    one, other = socket.socketpair()
    carries(one, other)


def main():
    tests = [
        of_what_kind,
        options,
        epoll_tells_levels,
        epoll_has_other_words,
        epoll_tells_edges_and_once,
        ordinary_descriptors_beside,
        a_new_entry_wakes_who_sleeps,
        copies_of_descriptors,
        files_are_sent,
        datagrams,
        children_do_no_harm,
        signals_end_a_wait,
        nobody_there_over_rdma,
    ]
    for test in tests:
        print(test.__name__, flush=True)
        test()
    print("all is as it should be")


main()
