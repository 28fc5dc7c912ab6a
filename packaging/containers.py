"""Devices for containers: the file of `adverb cdi` with what a container engine makes of it, and the image of the Containerfile, built and started without an engine."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import tempfile

import use
from bare import Bare
from built import ROOT, run, tool
from harness.report import Failed

# The client comes again until the server listens.
PAIR = """
rping -s -C 3 & server=$!
tries=0
until rping -c -a 127.0.0.1 -C 3; do
  tries=$((tries + 1)); [ $tries -lt 100 ] || exit 1
  sleep 0.1
done
wait $server
"""
RECIPE = os.path.join(ROOT, "packaging/Containerfile")
# apt without a network: nothing to fetch, and every package of the distribution that the recipe names is installed. Its folders and dpkg's are those of the test.
APT = """\
Dir::Etc { SourceList "/dev/null"; SourceParts "/dev/null"; };
Dir { State "/opt/apt"; State::status "/opt/dpkg/status"; Cache "/opt/cache"; Log "/opt/log"; };
APT::Sandbox::User "root";
DPkg::Options { "--admindir=/opt/dpkg"; "--force-unsafe-io"; "--force-not-root"; "--log=/opt/dpkg.log"; };
"""
SCHEMA = os.path.join(ROOT, "packaging/cdi.schema.json")


def specified(package, test, *options):
    """Has a test look at the file that the command of a tarball prints: its path, and what it says."""
    with tempfile.TemporaryDirectory(prefix="adverb-cdi-", dir="/var/tmp") as folder:
        run("tar", "-xzf", package, "-C", folder)
        (name,) = os.listdir(folder)
        file = os.path.join(folder, "adverb.json")
        with open(file, "w") as opened:
            opened.write(run(os.path.join(folder, name, "bin/adverb"), "cdi", *options))
        with open(file) as opened:
            test(file, json.load(opened))


def checked(file, said):
    run(tool("check-jsonschema"), "--schemafile", SCHEMA, file)
    wrong = json.loads(json.dumps(said).replace("hostPath", "path", 1))
    with open(file, "w") as opened:
        json.dump(wrong, opened)
    try:
        run(tool("check-jsonschema"), "--schemafile", SCHEMA, file)
    except Failed:
        return
    raise Failed("the schema takes a mount without a hostPath")


def started(device, wanted):
    """A container of an engine that does with the file what it says: here a folder with the distribution's programs."""

    def test(_, said):
        (chosen,) = [known["containerEdits"] for known in said["devices"] if known["name"] == device]
        edits = [said.get("containerEdits", {}), chosen]
        with Bare() as bare:
            for mount in [mount for part in edits for mount in part.get("mounts", [])]:
                inside = bare.path(mount["containerPath"])
                os.makedirs(os.path.dirname(inside), exist_ok=True)
                shutil.copy(mount["hostPath"], inside)
            variables = dict(entry.split("=", 1) for part in edits for entry in part.get("env", []))
            shown = bare.run("ibv_devices", **variables).split()
            if wanted not in shown:
                raise Failed(f"{wanted} is not among {shown}")
            bare.run(PAIR, **variables)

    return test


def steps(path):
    """The lines of a Containerfile: pairs of an instruction and its words."""
    with open(path) as file:
        text = re.sub(r"^#.*\n", "", file.read(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            instruction, _, words = line.partition(" ")
            yield instruction, words


def stages():
    """The steps of each image that the recipe makes, by its name; the last one's is empty."""
    found = {}
    for instruction, words in steps(RECIPE):
        if instruction == "FROM":
            image, _, name = words.partition(" AS ")
            known = found[name] = {"image": image, "steps": []}
        else:
            known["steps"].append((instruction, words))
    return found


def variables(words):
    """Those of an ENV."""
    return dict(word.split("=", 1) for word in shlex.split(words))


def image(package):
    """The recipe, step by step, in a folder with the distribution's programs, where apt and dpkg write to; then the entry point, and a process past it."""
    built, final = stages().values()
    equal = [("the image that builds", built["image"], "docker.io/library/rust:1-bookworm"), ("the image", final["image"], "docker.io/library/debian:bookworm-slim")]
    # What `cargo xtask dist` makes in the source tree has been made already.
    equal.append(("the steps that build", built["steps"], [("COPY", ". /adverb"), ("WORKDIR", "/adverb"), ("RUN", "cargo xtask dist")]))
    for what, found, wanted in equal:
        if found != wanted:
            raise Failed(f"{what}: {found}, not {wanted}")
    environment, entry, command = {}, [], []
    folders = [line.split(" ./")[1].rstrip("/") for line in run("dpkg-deb", "--contents", package).splitlines() if line.startswith("d")]
    folders = [f"/{name}" for name in folders if name and os.path.isdir(f"/{name}")]
    # No program needs what is in those.
    documents = [name for name in folders if name.startswith("/usr/share/")]
    with Bare(also=use.toolchain(), written=sorted({*folders} - {*documents}), empty=documents) as bare:
        bare.write("/opt/apt.conf", APT)
        # What the recipe installs beside the package is among what is installed here.
        bare.add("/var/lib/dpkg/status", "/opt/dpkg")
        bare.write("/opt/dpkg/info/format", "1\n")
        for name in ("dpkg/updates", "apt/lists/partial", "cache/archives/partial", "log"):
            os.makedirs(bare.path(f"/opt/{name}"))
        script = []
        for instruction, words in final["steps"]:
            if instruction == "COPY":
                source, folder = words.removeprefix("--from=build ").split()
                if not fnmatch.fnmatchcase(f"/adverb/target/dist/{os.path.basename(package)}", source):
                    raise Failed(f"{source} is not what cargo xtask dist makes")
                script.append(f"cp /opt/built/{os.path.basename(source)} {folder}")
            elif instruction == "RUN":
                script.append(words)
            elif instruction == "ENV":
                environment |= variables(words)
            elif instruction in ("ENTRYPOINT", "CMD"):
                entry, command = (json.loads(words), command) if instruction == "ENTRYPOINT" else (entry, json.loads(words))
            else:
                raise Failed(f"no test knows {instruction}")
        bare.add(package, "/opt/built")
        build = "\n".join(f"( export APT_CONFIG=/opt/apt.conf; {line} ) >/tmp/said 2>&1 || {{ cat /tmp/said; exit 1; }}" for line in script)
        start = shlex.join([*entry, *command])
        # The image is the same for every process below; an engine adds its variables to those of the process.
        within = "env " + " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        checks = f"""
{build}
[ ! -e /tmp/{os.path.basename(package)} ] || {{ echo the image has the package; exit 1; }}
{within} {start} >started; {within} ibv_devinfo >passed
grep -q 'hca_id:.roce0' started && grep -q 'hca_id:.roce0' passed || {{ cat started passed; exit 1; }}
{within} {shlex.join(entry)} adverb demo >demo && grep -q 'demo PASSED' demo || {{ cat demo; exit 1; }}
"""
        # One process by the entry point, and one past it, as `docker exec` starts it: they share no variables but those of the image.
        checks += use.PERFTEST.format(server=f"{within} {shlex.join(entry)}", client=within)
        ways = "for name in $(adverb env | sed -n 's/^export \\([A-Z_]*\\)=.*/\\1/p'); do ( eval \"$(adverb env)\"; printenv $name | sed \"s/^/$name=/\" ); done\n"
        wanted = dict(line.split("=", 1) for line in bare.run(checks + ways).splitlines() if re.match(r"[A-Z_]+=", line))
        if environment != wanted:
            raise Failed(f"the image sets {environment}, adverb env {wanted}")
        # Past the entry point, as the steps of a job. What has been installed is in the place's own folders, and stays.
        past = {**environment, "PATH": f"/rust/bin:{os.defpath}:/usr/sbin"}
        use.pytest_of_the_distribution(bare, "/usr", everywhere=True, **past)
        use.cargo_test(bare, everywhere=True, **past)


def tests(packages):
    package = packages[".tar.gz"]
    yield "the_cdi_file_is_as_its_specification_says", lambda: specified(package, checked)
    for device, wanted in (("all", "roce0"), ("iwarp0", "iwarp0")):
        yield f"a_container_has_the_cdi_device_{device}", lambda device=device, wanted=wanted: specified(package, started(device, wanted))
    yield "the_image_of_the_recipe_has_devices_past_its_entry_point_too", lambda: image(packages[".deb"])
