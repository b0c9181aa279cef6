"""The genuine peer: `speculators.cli.regenerate_responses` 0.9.0, unchanged, over the stub's chat.

Installed from the registry without its dependencies into a folder of its own; what it imports (aiohttp,
datasets, openai, tqdm, transformers, typer) is there already. The packages around the module import torch for
other commands, so empty ones stand in for them. Its clock starts with its first worker, as ours starts with
rendered rows: imports, tokenizer and the opening of the data set are not counted.

Run: python -m tests.bench.speculators_peer NAME --url URL --load JSON --rows N --window N
"""

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import types
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.bench.load import MODEL, Load, read_load, records

PACKAGE = "speculators==0.9.0"
SITE = Path(sys.prefix) / PACKAGE.replace("==", "-")


def missing() -> str:
    """Install it where it is not yet; return why there is none, "" when there is."""
    if (SITE / "speculators").is_dir():
        return ""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(SITE), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return f"expected {PACKAGE} from the registry, got: {'; '.join(said)[:300]}" if done.returncode else ""


def module() -> Any:
    """Return its module, whose parents are left empty."""
    for name in ("speculators", "speculators.cli"):
        parent = types.ModuleType(name)
        parent.__path__ = [str(SITE / name.replace(".", "/"))]
        sys.modules[name] = parent
    return importlib.import_module("speculators.cli.regenerate_responses")


def run(url: str, load: Load, rows: int, window: int, folder: Path) -> dict[str, Any]:
    """Regenerate every row; return its figures."""
    source, out = folder / "prompts.jsonl", folder / "out.jsonl"
    with source.open("w") as file:
        for record in records(load, rows):
            file.write(json.dumps({"id": record.record_id, "prompt": record.messages[0]["content"]}) + "\n")
    peer, begun = module(), list[float]()
    worker = peer._worker

    def first_seen(*args: Any, **kwargs: Any) -> Any:
        if not begun:
            begun.extend((time.perf_counter(), time.process_time()))
        return worker(*args, **kwargs)

    peer._worker = first_seen
    argv = ["regenerate", "--endpoint", f"{url}/v1/chat/completions", "--model", MODEL.tokenizer]
    argv += ["--dataset", str(source), "--concurrency", str(window), "--max-tokens", str(1 << 20)]
    sys.argv = [*argv, "--outfile", str(out)]
    try:
        peer.typer.run(peer.regenerate_responses)
    except SystemExit as ended:
        if ended.code:
            raise
    wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    made = sum(1 for _ in out.open())
    if made != rows:
        raise AssertionError(
            f"expected {rows} rows, got {made}: {(folder / 'out.errors.jsonl').read_text()[:300]}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "wall_seconds": wall, "cpu_seconds": cpu, "peak_mb": peak}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="its name in the tables")
    parser.add_argument("--url", required=True)
    parser.add_argument("--load", default="{}")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--window", type=int, default=256)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rawseq-bench-") as name:
        os.environ |= {"HF_HOME": name, "HF_HUB_OFFLINE": "1"}
        sys.path.append(str(SITE))
        with (Path(name) / "log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            figures = run(args.url, read_load(args.load), args.rows, args.window, Path(name))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
