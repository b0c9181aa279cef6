"""A few EAGLE-3-style training steps on an export, in plain PyTorch: does the data train on this device?

    python tests/trainers/train_step.py FOLDER [--device cuda] [--steps 30]

FOLDER is an export `--to specforge --boundary specforge-0.2.0-eagle3 --draft-vocab N`. The target is a small
frozen random transformer, so the numbers say nothing of a model: they say that the rows load, shift, and are
learnt. With `specforge` to import, its own prompt reader and its own shift are used. Prints one JSON object;
exits 1 if the loss does not fall.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def load(folder: Path, longest: int) -> tuple[str, list[tuple[list[int], list[int]]]]:
    """Return who read the rows, and their ids and masks."""
    paths = sorted((folder / "train").glob("*.jsonl"))
    try:
        from specforge.data.prompt_builder import prepare_prompt_tasks
    except ImportError:
        rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return "json", [(row["input_ids"][:longest], row["loss_mask"][:longest]) for row in rows]
    options: dict[str, Any] = dict.fromkeys(("chat_template", "cache_dir", "cache_key", "num_proc"))
    options |= {"max_length": longest, "is_preformatted": False, "train_only_last_turn": False}
    tasks = [task["payload"] for path in paths for task in prepare_prompt_tasks(path, None, **options)]
    return "specforge", [(task["input_ids"], task["loss_mask"]) for task in tasks]


class Layer(nn.Module):
    """One pre-norm transformer layer, causal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, n, width] to the same."""
        heads = [
            part.unflatten(-1, (8, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Target(nn.Module):
    """The frozen target: embedding, four layers, head."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(size, width), nn.Linear(width, size, bias=False)
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return three layers' states side by side, and the logits."""
        states = [self.embed(ids)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return torch.cat(states[1:4], -1), self.head(states[-1])


class Draft(nn.Module):
    """The drafter: states and the newest id's embedding in, one layer, logits over the draft vocabulary."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.fc, self.join = nn.Linear(3 * width, width), nn.Linear(2 * width, width)
        self.layer, self.head = Layer(width), nn.Linear(width, size, bias=False)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states that the next test-time step starts from, and logits."""
        hidden = self.layer(self.join(torch.cat([states, embedded], -1)))
        return hidden, self.head(hidden)


def batches(rows: list[Any], size: int, device: str) -> Iterator[list[torch.Tensor]]:
    """Yield padded ids and masks, over and over."""
    while True:
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            longest = max(len(ids) for ids, _ in part)
            yield [
                torch.tensor(
                    [row[column] + [0] * (longest - len(row[column])) for row in part], device=device
                )
                for column in (0, 1)
            ]


def shifted(ids: torch.Tensor, logits: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return ids and logits one position to the left as SpecForge does, by its own code if it is there."""
    try:
        from specforge.modeling.target.target_head import TargetHead
    except ImportError:
        left = [F.pad(part[:, 1:], (0, 0) * (part.dim() - 2) + (0, 1)) for part in (ids, logits)]
        return left[0], left[1], mask[..., None]
    moved: tuple[torch.Tensor, ...] = TargetHead.preprocess(None, ids, logits, mask)
    return moved


def step(
    target: Target, draft: Draft, t2d: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return a batch's loss over two test-time steps, as in EAGLE-3: KL to the target where the mask is 1."""
    states, logits = target(ids)
    hidden, loss = draft.fc(states), torch.zeros((), device=ids.device)
    fed, teacher, counts = shifted(ids, logits, mask)
    for _ in range(2):
        hidden, guess = draft(hidden, target.embed(fed))
        wanted = F.softmax(teacher[..., t2d], -1)
        kl = F.kl_div(F.log_softmax(guess, -1), wanted, reduction="none").sum(-1, keepdim=True)
        loss = loss + (kl * counts).sum() / counts.sum().clamp_min(1)
        fed, teacher = F.pad(fed[:, 1:], (0, 1)), F.pad(teacher[:, 1:], (0, 0, 0, 1))
        counts = F.pad(counts[:, 1:], (0, 0, 0, 1))
    return loss


def main() -> int:
    """Train and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--longest", type=int, default=4096)
    args = parser.parse_args()
    torch.manual_seed(0)
    reader, rows = load(args.folder, args.longest)
    mapping = torch.load(args.folder / "vocab_mapping.pt", weights_only=True)
    t2d, device = mapping["t2d"].to(args.device), args.device
    target = Target(len(t2d), args.width).to(device)
    draft = Draft(int(t2d.sum()), args.width).to(device)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-3)
    losses, tokens, start = [], 0, time.monotonic()
    source = batches(rows, 8, device)
    for _ in range(args.steps):
        ids, mask = next(source)
        loss = step(target, draft, t2d, ids, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        tokens += ids.numel()
    seconds = time.monotonic() - start
    third = max(1, args.steps // 3)
    first, last = sum(losses[:third]) / third, sum(losses[-third:]) / third
    report = {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "reader": reader,
        "rows": len(rows),
        "supervised": sum(sum(mask) for _, mask in rows),
        "steps": args.steps,
        "loss_first_third": round(first, 5),
        "loss_last_third": round(last, 5),
        "ids_per_second": round(tokens / seconds),
    }
    print(json.dumps(report))
    return 0 if last < first else 1


if __name__ == "__main__":
    sys.exit(main())
