#!/usr/bin/env python3
"""The client of redis-server: thousands of keys set by pipelining and read back, each in its place; a load of many connections.

usage: redis.py SERVER PORT          the server is shut down at the end
"""

import subprocess
import sys

KEYS = 4000


def program(name, *options, words=""):
    """What one of redis's own programs prints; it must succeed."""
    command = [name, "-h", sys.argv[1], "-p", sys.argv[2], *options]
    result = subprocess.run(command, input=words, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}[status {result.returncode}]")
    return result.stdout


def value(key):
    """Of many lengths."""
    return f"{key}-" * (1 + key % 60)


def main():
    said = program("redis-cli", "--pipe", words="".join(f"SET key{key} {value(key)}\r\n" for key in range(KEYS)))
    if f"errors: 0, replies: {KEYS}" not in said:
        sys.exit(f"not every key was set:\n{said}")
    some = range(0, KEYS, 20)
    single = program("redis-cli", words="".join(f"GET key{key}\n" for key in some))
    together = program("redis-cli", "MGET", *(f"key{key}" for key in range(KEYS)))
    for what, keys, found in (("GET", some, single), ("MGET", range(KEYS), together)):
        if found.split() != [value(key) for key in keys]:
            sys.exit(f"{what} finds other values than were set")
    load = program("redis-benchmark", "-n", "5000", "-c", "20", "-P", "16", "-t", "set,get,lpush", "--csv")
    if load.count("\n") < 4:
        sys.exit(f"the load did not run:\n{load}")
    subprocess.run(["redis-cli", "-h", sys.argv[1], "-p", sys.argv[2], "SHUTDOWN", "NOSAVE"], check=True)


main()
