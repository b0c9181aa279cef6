"""Exports a store in a process of its own, to be killed: `python export_child.py STORE OUT FORMAT`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tasks.export.export import export
from tasks.export.options import ExportOptions
from tasks.job.spec import StoreSpec
from tasks.store.opening import find_job, open_store

OPTIONS = {"eval_share": 0.2, "file_tokens": 1500, "merge_turns": True, "draft_vocab": 64, "seed": 7}

if __name__ == "__main__":
    store, out, to = sys.argv[1:]
    options = ExportOptions(to=to, **OPTIONS)
    export([find_job(StoreSpec(uri=store))], [1.5], options, open_store(StoreSpec(uri=out)), say=print)
