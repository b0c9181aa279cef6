"""How often the bundled model's answers have the full structure, and how fast the stand-in makes them.

    python -m tests.standin_model.measure [--prompts FILE.jsonl ...]

Prompts are held-out conversations of the training mixture, or the first turns of MT-bench-like files.
"""

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from deployments.standin.arguments import MODEL
from deployments.standin.launch import running_standin
from deployments.standin.template import ChatTemplate
from tests.standin_model.conversations import conversations

HELD_OUT_SEED = 10**9  # training uses seeds from 1000 up to a few hundred more
LIMIT = 512  # new ids per answer


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its ids, and how many of them come before the first closer (None: none does)."""

    ids: list[int]
    reasoning: int | None
    whole: bool


def judged(ids: list[int], template: ChatTemplate) -> Answer:
    """Whole: one closer between reasoning and content, the end last, no other control token."""
    closer, end = (template.tokenizer.token_to_id(text) for text in ("</think>", "<|im_end|>"))
    first_control = template.tokenizer.token_to_id("[BOS]")
    reasoning = ids.index(closer) if closer in ids else None
    whole = (
        reasoning is not None
        and ids.count(closer) == 1
        and 0 < reasoning < len(ids) - 2
        and ids[-1] == end
        and sum(token >= first_control for token in ids) == 2
    )
    return Answer(ids, reasoning, whole)


async def _ask(session: aiohttp.ClientSession, gate: asyncio.Semaphore, body: dict[str, Any]) -> list[int]:
    async with gate, session.post("/generate", json=body) as reply:
        ids: list[int] = (await reply.json())["output_ids"]
        return ids


async def answers(
    url: str, prompts: list[list[int]], sampling: dict[str, Any]
) -> tuple[list[list[int]], float]:
    """(output ids of every prompt, seconds for all of them)."""
    gate, start = asyncio.Semaphore(64), time.monotonic()
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as session:
        bodies = ({"input_ids": prompt, "sampling_params": sampling} for prompt in prompts)
        outputs = await asyncio.gather(*(_ask(session, gate, body) for body in bodies))
    return list(outputs), time.monotonic() - start


def prompt_sets(template: ChatTemplate, files: list[Path], count: int) -> dict[str, list[list[int]]]:
    """Prompts by name of their source."""
    held_out = (e for e in conversations(HELD_OUT_SEED, count) if e.thinking and not e.tools)
    sets = {"held-out": [template.prompt(e.messages) for e in held_out]}
    for path in files:
        records = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        sets[path.stem] = [template.prompt([{"role": "user", "content": r["turns"][0]}]) for r in records]
    return sets


async def measure(files: list[Path], count: int, temperature: float, top_p: float, repeat: int) -> None:
    """Print one line a source."""
    template = ChatTemplate(MODEL)
    sampling = {"temperature": temperature, "top_p": top_p, "max_new_tokens": LIMIT}
    with tempfile.TemporaryDirectory() as folder:
        async with running_standin([], Path(folder) / "log") as url:
            for name, prompts in prompt_sets(template, files, count).items():
                outputs, seconds = await answers(url, prompts * repeat, sampling)
                found = [judged(ids, template) for ids in outputs]
                tokens = sum(len(a.ids) for a in found)
                reasoning = [a.reasoning for a in found if a.reasoning is not None]
                print(
                    f"{name}: {len(found)} answers, whole {sum(a.whole for a in found) / len(found):.1%}, "
                    f"mean ids {tokens / len(found):.0f} "
                    f"(reasoning {sum(reasoning) / max(1, len(reasoning)):.0f}), "
                    f"{tokens / seconds:.0f} ids/s"
                )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--count", type=int, default=400, help="held-out conversations")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=4, help="answers per prompt")
    a = parser.parse_args()
    asyncio.run(measure(a.prompts, a.count, a.temperature, a.top_p, a.repeat))


if __name__ == "__main__":
    main()
