"""What stages share is prepared by one of them at a time."""

import contextlib
import fcntl
import os


@contextlib.contextmanager
def alone(folder):
    """Until the end of a `with`, no other process that asks prepares the folder."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(f"{folder}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
