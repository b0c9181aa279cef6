"""A run that renders in two processes and never ends by itself: for tests to end it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tests.tasks.run.test_rendering import asked, job_in


async def main(root: Path) -> None:
    """Render one prompt, then one that waits for ever."""
    job = job_in(root)
    async with job.renderers(2) as renderers:
        await renderers.run(job.rules, asked("at once"))
        rendered = asyncio.ensure_future(renderers.run(job.rules, asked("wait")))
        await asyncio.sleep(0)
        print("rendering", flush=True)
        await rendered


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
    try:
        asyncio.run(main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(130)
