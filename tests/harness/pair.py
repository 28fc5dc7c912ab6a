"""A server program and a client program that must work together, and what their connection must show."""

from dataclasses import dataclass, field


@dataclass
class Pair:
    """Both must end with status 0.

    In the command lines {server} and {client} are the addresses of the two, {port} is a free TCP port and {low} its low
    byte; {server_mac} and {client_mac} are their addresses on the cable. `connections` and `bytes`: how many MPA connections the wire must show at least, or InfiniBand queue pairs of
    `service` that were sent something, and how many bytes in them at least, both directions together. `expect`: texts that
    the client's output must have. `ipv6`: whether the programs know IPv6.
    `endless`: the server does not end by itself; SIGTERM ends it when the client has succeeded. `ready`: what the server says
    when clients may come, where it is not seen to wait; `polls`: it is ready only when it has polled for a while, too.
    `any_port`: the connections are to other ports than {port}.
    `options`: of `adverb run`, for both. `devices`: the options that name several devices in place of one; `rails`: from how many of them the client
    must send at least `rail_bytes` each. `port`: where the server listens, if it cannot be told.
    `needs`: the distribution's programs and libraries that the pair uses beside those in the command lines.
    """

    name: str
    server: str
    client: str
    connections: int = 1
    bytes: int = 1
    limit_s: int = 120
    expect: list = field(default_factory=list)
    ipv6: bool = True
    service: str = "RC"
    endless: bool = False
    ready: str = ""
    any_port: bool = False
    options: tuple = ()
    devices: tuple = ()
    rails: int = 0
    rail_bytes: int = 1
    port: int = 0
    polls: bool = False
    needs: tuple = ()


def perftest(program, options, connections=1, volume=1, **more):
    """Both sides of perftest take the same options. They exchange queue pair numbers over TCP, as IPv4 only (perftest 4.5)."""
    command = f"{program} -F -p {{port}} {options}"
    name = f"{program}_{options}".replace("-", "").replace(" ", "_")
    return Pair(name, command, command + " {server}", connections, volume, ipv6=False, **more)


def perftest_cm(program, options, connections=2, volume=1, **more):
    """The same by rdma_cm. One connection is for its own messages, the others for the test."""
    return perftest(program, f"-R {options}", connections, volume, **more)
