"""Train the model of `../model` on generated conversations (PyTorch and transformers needed; a GPU helps).

    python -m tests.standin_model.fit --model deployments/standin/model --seconds 330

The schedule runs on time, not on steps: a slower machine makes a worse model, not a longer run.
"""

import argparse
import importlib
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.standin_model.dataset import Row, batches, rows
from tests.standin_model.shape import write_config

PEAK_RATE = 3e-3
FLOOR_RATE = 3e-5


def rate(progress: float, step: int) -> float:
    """Learning rate at a share of the run: 200 steps of warm-up, then a cosine."""
    cosine = FLOOR_RATE + (PEAK_RATE - FLOOR_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return cosine * min(1.0, (step + 1) / 200)


def build(folder: Path, torch: Any, device: str) -> Any:
    """A fresh model of the folder's config.json."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.Qwen3Config(**write_config(folder))
    torch.manual_seed(1)
    return transformers.Qwen3ForCausalLM(config).float().to(device).train()


def loss_of(model: Any, torch: Any, ids: Any, trained: Any) -> Any:
    """Cross entropy of the trained ids; logits are made for these positions only."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    picked = trained[:, 1:]
    logits = model.lm_head(hidden[picked])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][picked])


def fit(model: Any, torch: Any, all_rows: list[Row], seconds: float, tokens: int, device: str) -> int:
    """Train for `seconds`; returns the number of steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    rng, start, step = np.random.default_rng(1), time.monotonic(), 0
    while True:
        for ids, trained in batches(all_rows, tokens, rng):
            progress = (time.monotonic() - start) / seconds
            if progress >= 1:
                return step
            for group in optimizer.param_groups:
                group["lr"] = rate(progress, step)
            loss = loss_of(
                model,
                torch,
                torch.from_numpy(ids).to(device, non_blocking=True),
                torch.from_numpy(trained).to(device, non_blocking=True),
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 500 == 0:
                print(f"step {step} {time.monotonic() - start:.0f} s loss {loss.item():.4f}", flush=True)


def save(model: Any, folder: Path) -> None:
    """Write model.safetensors: float32, names as transformers expects them, without the tied output."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    tensors = {
        name: t.detach().float().cpu().contiguous()
        for name, t in model.state_dict().items()
        if name != "lm_head.weight"
    }
    safetensors.save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="folder with the tokenizer; receives the model"
    )
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--conversations", type=int, default=600_000)
    parser.add_argument("--tokens", type=int, default=32_768, help="padded ids per step")
    arguments = parser.parse_args()
    torch: Any = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.monotonic()
    all_rows = rows(arguments.model, 1000, arguments.conversations, os.cpu_count() or 1)
    print(
        f"{len(all_rows)} rows, {sum(len(ids) for ids, _ in all_rows)} ids, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    model = build(arguments.model, torch, device)
    print(sum(p.numel() for p in model.parameters()), "parameters on", device, flush=True)
    steps = fit(model, torch, all_rows, arguments.seconds, arguments.tokens, device)
    save(model, arguments.model)
    print("steps", steps)


if __name__ == "__main__":
    main()
