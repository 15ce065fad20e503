"""
Celery's own integration tests, as they are published: fetched from the package index, with an environment to run in.

The code comes from the source distribution of the Celery that is installed here, and from nowhere else. The environment
has that Celery with the same kombu, billiard, vine and redis-py, this package as it would be installed, and of the
suite's requirements those that these files need, in the versions that it pins.
"""

import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "t/integration/test_tasks.py",
    "t/integration/test_canvas.py",
    "t/integration/test_group_chains.py",
    "t/integration/test_inspect.py",
)
_NEEDED = re.compile(r"^(pytest|pytest-(rerunfailures|subtests|timeout))[=<>~]")
# The suite's folder `celery/` is left out: beside the tests it would be imported in place of the one installed.
_UNPACKED = ("t/", "requirements/", "pyproject.toml", "setup.cfg")


def fetch(directory: Path) -> Path:
    """Fetch and unpack the suite, and return where it is."""
    version = metadata.version("celery")
    command = ["pip", "download", "-qq", "--no-deps", "--no-binary", "celery", "--dest", str(directory)]
    subprocess.run([sys.executable, "-m", *command, f"celery=={version}"], check=True)
    (archive,) = directory.glob("celery-*.tar.gz")
    with tarfile.open(archive) as packed:
        top = packed.getnames()[0].partition("/")[0]
        wanted = [each for each in packed if each.name.removeprefix(f"{top}/").startswith(_UNPACKED)]
        packed.extractall(directory, members=wanted, filter="data")
    return directory / top


def environment(directory: Path, suite: Path) -> Path:
    """Make the suite's environment, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    lines = (suite / "requirements" / "test.txt").read_text().splitlines()
    requirements = directory / "requirements.txt"
    requirements.write_text("\n".join(line for line in lines if _NEEDED.match(line)))
    pinned = [f"{name}=={metadata.version(name)}" for name in ("kombu", "billiard", "vine", "redis")]
    celery = f"celery[redis,pydantic,tblib]=={metadata.version('celery')}"
    install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", str(requirements), celery, *pinned, str(ROOT)], check=True)
    return python
