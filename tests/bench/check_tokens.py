"""How fast verdicts are made: ids per second of CPU time on one core, from int32 arrays.

Run: python -m tests.bench.check_tokens [--rows N] [--length N]
"""

import argparse
import json
import platform
import time

import numpy as np

from tasks.grammar.check import check_rows
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec
from tasks.rows.records import Completion, Ragged, as_ids
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.support.model_folders import STANDIN

TARGET = 50e6
"""Ids per second that issue 3 asks for."""


def batch(rows: int, length: int) -> tuple[Grammar, Ragged, Ragged, list[Completion]]:
    """Return a batch of correct rows whose outputs have `length` ids on average, seeded."""
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(STANDIN), template_args={"thinking": True}))
    grammar = discover_grammar(vocabulary)
    prompt = render(vocabulary, [{"role": "user", "content": "What is 2+2?"}])
    text = np.flatnonzero(grammar.symbols == 0).astype(np.int32)
    dice = np.random.default_rng(0)
    end, closer = sorted(grammar.end_ids)[0], grammar.closer_ids[0]
    outputs = []
    for size in dice.integers(length // 2, length * 3 // 2, rows):
        output = dice.choice(text, size)
        output[size // 2], output[-1] = closer, end
        outputs.append(output.astype(np.int32))
    completions = [
        Completion(
            f"bench:{i}#t0~s0",
            prompt,
            output,
            "stop",
            end,
            facts={
                "prompt_tokens": prompt.size,
                "completion_tokens": output.size,
                "finish_reason": {"type": "stop", "matched": end},
            },
        )
        for i, output in enumerate(outputs)
    ]
    return grammar, Ragged.from_rows([as_ids(prompt)] * rows), Ragged.from_rows(outputs), completions


def measure(rows: int, length: int, rounds: int = 5) -> dict[str, float]:
    """Return ids and rows per second of the best of `rounds`."""
    grammar, inputs, outputs, completions = batch(rows, length)
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        verdicts = check_rows(grammar, inputs, outputs, completions)
        best = min(best, time.process_time() - started)
    assert all(verdict.code == "complete" for verdict in verdicts)
    return {
        "rows": rows,
        "mean_output_ids": outputs.ids.size / rows,
        "ids_per_second": outputs.ids.size / best,
        "rows_per_second": rows / best,
        "ratio_to_target": outputs.ids.size / best / TARGET,
    }


def main() -> None:
    """Print one JSON object per output length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--length", type=int, nargs="*", default=[256, 1024, 4096, 16384])
    args = parser.parse_args()
    for length in args.length:
        print(
            json.dumps({"machine": platform.processor() or platform.machine(), **measure(args.rows, length)})
        )


if __name__ == "__main__":
    main()
