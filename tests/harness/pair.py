"""A server program and a client program that must work together, and what their connection must show."""

from dataclasses import dataclass, field


@dataclass
class Pair:
    """Both must end with status 0.

    In the command lines {server} is the server's address and {port} a free TCP port. `connections` and `bytes`: how many MPA connections the wire must show at least, and how many
    bytes in them at least, both directions together. `expect`: texts that the client's output must have. `ipv6`: whether
    the programs know IPv6.
    """

    name: str
    server: str
    client: str
    connections: int = 1
    bytes: int = 1
    limit_s: int = 60
    expect: list = field(default_factory=list)
    ipv6: bool = True


def perftest(program, options, connections=2, volume=1, **more):
    """Both sides of perftest take the same options. One connection is for its own messages, the others for the test.

    perftest 4.5 resolves its server's name as IPv4 only.
    """
    command = f"{program} -R -F -p {{port}} {options}"
    name = f"{program}_{options}".replace("-", "").replace(" ", "_")
    return Pair(name, command, command + " {server}", connections, volume, ipv6=False, **more)
