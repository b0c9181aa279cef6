"""What kept log probabilities cost a server: tokens/s with a share of the rows asking for them, over none.

    python logprobs_share.py --url http://127.0.0.1:30000 --requests 512 --ids 1024 --rounds 5

Needs aiohttp and nothing else, so that it can be copied beside a genuine SGLang. One run, rounds interleaved:
every round sends the same load once per share, the order turned by one each round, and a ratio is formed
within its round only. The prompts are random ids, others for each sending (no prefix is cached);
`ignore_eos` makes the lengths those that were asked for, so that every sending generates the same number of
ids. Bodies are read and kept while the clock runs, and parsed after it: JSON with log probabilities is ten
times as long, and the client is not what is measured.

Printed: a table for people on stderr, one JSON object on stdout.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import uuid
from typing import Any

import aiohttp

SHARES = (0.0, 0.02, 0.1, 1.0)
"""None, what is thought of as the default, and two that show the trend."""

SPREAD = 0.5
"""Lengths are drawn evenly from [SPREAD, 1] of --ids: a server does not run rows of one length."""

PROMPT_IDS = 64
LEAST_ID = 100
"""Ids below it may be control ids of some tokenizers, those from --id-below on may not be there at all."""


def load_of(requests: int, ids: int, share: float, id_below: int, seed: int) -> list[dict[str, Any]]:
    """Return the bodies of one sending: lengths and who asks hang on the place alone, prompts on the seed."""
    lengths, prompts = random.Random(0), random.Random(seed)
    bodies: list[dict[str, Any]] = []
    for _ in range(requests):
        size, asks = round(ids * lengths.uniform(SPREAD, 1.0)), lengths.random() < share
        sampling = {"max_new_tokens": max(1, size), "temperature": 1.0, "ignore_eos": True}
        body: dict[str, Any] = {
            "rid": uuid.uuid4().hex,
            "input_ids": [prompts.randrange(LEAST_ID, id_below) for _ in range(PROMPT_IDS)],
            "sampling_params": sampling,
        }
        if asks:
            body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 0}
        bodies.append(body)
    return bodies


async def send_all(session: aiohttp.ClientSession, url: str, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """Send a load at once; return seconds from the first send to the last reply, and what came."""
    data = [json.dumps(body).encode() for body in bodies]

    async def one(body: bytes) -> bytes:
        async with session.post(f"{url}/generate", data=body) as reply:
            text = await reply.read()
            if reply.status != 200:
                raise SystemExit(f"{url}/generate: HTTP {reply.status}: {text[:300]!r}")
            return text

    began = time.perf_counter()
    replies = await asyncio.gather(*map(one, data))
    seconds = time.perf_counter() - began
    made = kept = uneven = 0
    for text, body in zip(replies, bodies, strict=True):
        reply = json.loads(text)
        ids = reply["output_ids"]
        made += len(ids)
        if "return_logprob" in body:
            values = reply["meta_info"].get("output_token_logprobs") or []
            kept += 1
            uneven += [value[1] for value in values] != ids
    return {
        "seconds": seconds,
        "tokens": made,
        "tokens_per_second": made / seconds,
        "asked": kept,
        "not_one_value_per_id": uneven,
        "bytes": sum(map(len, replies)),
    }


async def measure(
    url: str,
    requests: int,
    ids: int,
    rounds: int,
    shares: tuple[float, ...] = SHARES,
    id_below: int = 2000,
    key: str | None = None,
) -> dict[str, Any]:
    """Run all rounds; return what each sending took, and per share the ratios to the first share's.

    Args:
        url: of one server.
        requests: of one sending, all at once: more than the server runs are queued there.
        ids: most output ids of a row.
        rounds: each sends the load once per share.
        shares: of the rows that ask for log probabilities; the first is what the others are held against.
        id_below: prompt ids are drawn from [100, id_below).
        key: API key.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    limits = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with aiohttp.ClientSession(headers=headers, timeout=limits, connector=connector) as session:
        warm = min(ids, 128)  # graphs, allocator, both ways of sampling
        for share in (0.0, 1.0):
            await send_all(session, url, load_of(requests, warm, share, id_below, -1 - int(share)))
        done: list[dict[float, dict[str, Any]]] = []
        for number in range(rounds):
            order = [*shares[number % len(shares) :], *shares[: number % len(shares)]]
            found = {}
            for share in order:
                seed = number * len(shares) + shares.index(share)
                found[share] = await send_all(session, url, load_of(requests, ids, share, id_below, seed))
                told = found[share]
                print(
                    f"round {number} share {share:g}: {told['tokens_per_second']:.0f} tokens/s",
                    file=sys.stderr,
                )
            done.append(found)
    ratios = {
        share: [found[share]["tokens_per_second"] / found[shares[0]]["tokens_per_second"] for found in done]
        for share in shares
    }
    return {
        "url": url,
        "requests": requests,
        "ids": ids,
        "rounds": [{f"{share:g}": found[share] for share in shares} for found in done],
        "ratios": {f"{share:g}": values for share, values in ratios.items()},
    }


def table(figures: dict[str, Any]) -> str:
    """Return the ratios and what lies behind them, as Markdown."""
    base = next(iter(figures["ratios"]))
    lines = [
        f"| share | tokens/s, median | over share {base}: median (range) | rows asked | uneven | MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for share, ratios in figures["ratios"].items():
        runs = [found[share] for found in figures["rounds"]]
        pace = statistics.median(run["tokens_per_second"] for run in runs)
        spread = f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"
        uneven = sum(run["not_one_value_per_id"] for run in runs)
        size = statistics.median(run["bytes"] for run in runs) / 1e6
        lines.append(f"| {share} | {pace:,.0f} | {spread} | {runs[0]['asked']} | {uneven} | {size:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the server that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--ids", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--id-below", type=int, default=2000, help="of the vocabulary, from 101 on")
    parser.add_argument("--key", help="API key")
    given = parser.parse_args()
    if not given.rounds > 0 or not all(0 <= share <= 1 for share in given.shares):
        parser.error("expected --rounds of at least 1 and --shares within [0, 1]")
    figures = asyncio.run(
        measure(
            given.url,
            given.requests,
            given.ids,
            given.rounds,
            tuple(dict.fromkeys(given.shares)),
            given.id_below,
            given.key,
        )
    )
    print(table(figures), file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
