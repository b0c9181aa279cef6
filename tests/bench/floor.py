"""The compiled floor: `floor.c`, built when it is first wanted with the system's compiler.

Run: python -m tests.bench.floor --url URL --load JSON --rows N --window N   (prints one JSON object)
"""

import argparse
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from tests.bench.load import Load, batch_turns, read_load
from tests.bench.rivals import body

SOURCE = Path(__file__).with_name("floor.c")


def missing() -> str:
    """Return why there is no floor here, "" when there is one."""
    return "" if shutil.which("cc") else "expected a C compiler as `cc`, found none: no compiled floor"


def built() -> Path:
    """Return the program, compiled anew when its source has changed."""
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    program = Path(tempfile.gettempdir()) / f"rawseq-bench-floor-{name}"
    if not program.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "floor"
            subprocess.run(["cc", "-O2", "-o", str(made), str(SOURCE)], check=True)
            shutil.move(made, program)
    return program


def run(url: str, load: Load, rows: int, window: int) -> str:
    """Return the JSON that the program prints."""
    where = urlsplit(url)
    with tempfile.NamedTemporaryFile() as file:
        for request in batch_turns(load, rows).open({})[0]:
            data = orjson.dumps(body(request), option=orjson.OPT_SERIALIZE_NUMPY)
            file.write(b"%08x" % len(data) + data)
        file.flush()
        command = [str(built()), where.hostname or "", str(where.port), file.name, str(window)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="its name in the tables")
    parser.add_argument("--url", required=True)
    parser.add_argument("--load", default="{}")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--window", type=int, default=256)
    args = parser.parse_args()
    print(run(args.url, read_load(args.load), args.rows, args.window), end="")


if __name__ == "__main__":
    main()
