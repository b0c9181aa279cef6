"""Loads an export with speculators' own code: `python read_speculators.py LONGEST FOLDER…`, where it is.

A folder of JSON lines goes through its pretokenized path; a prepared Arrow dataset through its trainer's
dataset, collator and EAGLE-3 shift, over hidden states faked as the id that follows (-1 behind a row's end).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import save_file
from speculators.data_generation.preprocessing import build_speculator_training_dataset, load_raw_dataset
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.vocab_mapping import (
    build_vocab_mappings_from_distribution,
    save_token_frequency_distribution,
)

AUX_LAYERS = 3


def jsonl_rows(folder: Path, longest: int) -> Any:
    """Return a split of JSON lines as `speculators prepare-data` makes it, without its shuffle."""
    raw, _ = load_raw_dataset(str(folder / "train"))
    return build_speculator_training_dataset(raw, None, max_length=longest, num_proc=None)


def fake_states(folder: Path, data: Any) -> None:
    """Write the hidden states that a verifier would have given, one file a row."""
    (folder / "hidden_states").mkdir(exist_ok=True)
    for index in range(len(data)):
        ids = data[index]["input_ids"]
        following = torch.cat([ids[1:], torch.tensor([-1])]).float()
        states = torch.stack([ids.float()] * AUX_LAYERS + [following], dim=1)[..., None]
        path = folder / "hidden_states" / f"hs_{index}.safetensors"
        save_file({"hidden_states": states.contiguous(), "token_ids": ids}, path)


def pairs(dataset: ArrowDataset, index: int, longest: int) -> list[tuple[int, int]]:
    """Return (fed, learnt) at each position of a row that counts, from the trainer's own batch."""
    collate = CollateFn(longest, 1, AUX_LAYERS, torch.float32, preprocess=shift_batch)
    batch = collate([dataset[index]])
    places = torch.nonzero(batch["loss_mask"][0]).flatten()
    learnt = batch["verifier_last_hidden_states"][0, :, 0]
    return [(int(batch["input_ids"][0, at]), int(learnt[at])) for at in places]


def frequencies(folder: Path, data: Any) -> dict[str, bool]:
    """Compare counts and draft vocabulary with what speculators makes of the same rows."""
    save_token_frequency_distribution(data, folder / "theirs.pt")
    theirs = torch.load(folder / "theirs.pt", weights_only=True)
    ours = torch.load(folder / "token_freq.pt", weights_only=True)
    mapping = torch.load(folder / "vocab_mapping.pt", weights_only=True)
    d2t, t2d = build_vocab_mappings_from_distribution(ours, len(mapping["d2t"]), len(mapping["t2d"]))
    return {
        "counts": ours == theirs,
        "d2t": torch.equal(d2t, mapping["d2t"]),
        "t2d": torch.equal(t2d, mapping["t2d"]),
    }


def described(folder: Path, longest: int) -> dict[str, Any]:
    """Return what speculators reads in a folder."""
    if not (folder / "train" / "state.json").exists():
        data = jsonl_rows(folder, longest)
        rows = [{"ids": row["input_ids"].tolist(), "mask": row["loss_mask"].tolist()} for row in data]
        return {"rows": rows, "seq_len": [int(row["seq_len"]) for row in data]}
    split = folder / "train"
    dataset = ArrowDataset(longest, split, on_missing="raise", hidden_states_dtype=torch.float32)
    fake_states(split, dataset.data)
    rows = [
        {
            "ids": dataset.data[index]["input_ids"].tolist(),
            "mask": dataset.data[index]["loss_mask"].tolist(),
            "pairs": pairs(dataset, index, longest),
        }
        for index in range(len(dataset))
    ]
    lengths = [int(length) for length in dataset.approx_lengths]
    return {"rows": rows, "seq_len": lengths, "frequencies": frequencies(split, dataset.data)}


if __name__ == "__main__":
    limit, *folders = sys.argv[1:]
    print(json.dumps([described(Path(folder), int(limit)) for folder in folders]))
