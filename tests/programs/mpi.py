"""Starts MPI jobs on two hosts, which are network namespaces: the agent that takes the place of ssh enters the other one."""

import functools
import os
import shlex
import subprocess

from harness.process import Process, expect_success
from harness.report import Failed

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi", "check.c")
# Ranks on one host share memory. Open MPI does not run as root unless told twice.
ENVIRONMENT = {
    "ADVERB_LOCAL": "auto",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
LIMIT_S = 120


def run_job(run, job, place, folder):
    """The job to success; `run` are the words in front of a program."""
    program, agent = compile_check(folder, job.mpi), write_agent(folder, place)
    share = job.ranks // 2
    hosts = f"{place.client}:{share},{place.server}:{share}"
    if job.mpi == "openmpi":
        forward = [word for name in ("LD_PRELOAD", "LD_LIBRARY_PATH") for word in ("-x", name)]
        start = [job.starter, "--mca", "plm_rsh_agent", agent, "--host", hosts, "--oversubscribe", *forward]
    else:
        start = [job.starter, "-launcher", "rsh", "-launcher-exec", agent, "-iface", "cable", "-hosts", hosts]
    command = [*run, *start, "-n", str(job.ranks), *shlex.split(job.options), program, *shlex.split(job.arguments)]
    with Process(command, ENVIRONMENT) as process:
        expect_success([process], LIMIT_S)
        wanted = f"{job.ranks} ranks: all well"
        if wanted not in process.output():
            raise Failed(f"the output lacks {wanted!r}:\n{process.describe()}")


@functools.cache
def compile_check(folder, mpi):
    program = os.path.join(folder, f"check-{mpi}")
    result = subprocess.run([f"mpicc.{mpi}", "-O1", "-o", program, SOURCE], capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(f"{SOURCE} does not compile:\n{result.stderr}")
    return program


@functools.cache
def write_agent(folder, place):
    """Called as rsh is: HOST COMMAND..."""
    path = os.path.join(folder, "agent")
    with open(path, "w") as file:
        file.write(
            "#!/bin/sh\n"
            "host=$1; shift\n"
            f'case $host in {place.server}) exec {shlex.join(place.prefix)} sh -c "$*";; *) exec sh -c "$*";; esac\n'
        )
    os.chmod(path, 0o755)
    return path
