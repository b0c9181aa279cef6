"""Loads exports with SpecForge's own code: `python read_specforge.py LONGEST FOLDER…`, where it is installed.

Prints one JSON object a folder, in a list: `rows`, each with the ids and mask that its prompt reader returns,
and per supervised position, after its own normalizing, padding and shift, the id that the drafter is fed and
the one it learns.
The target's last state at a position is faked as the id that follows it; -1 behind the end of a row.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from specforge.core.compact_teacher import validate_vocab_mapping_consistency
from specforge.data.preprocessing import process_offline_eagle3_sample, process_token_dict_to_mappings
from specforge.data.prompt_builder import prepare_prompt_tasks
from specforge.data.utils import DataCollatorWithPadding
from specforge.modeling.target.target_head import TargetHead


def prompts(folder: Path, longest: int) -> list[dict[str, Any]]:
    """Return the payloads of every file of a split, in order."""
    return [
        task["payload"]
        for path in sorted((folder / "train").glob("*.jsonl"))
        for task in prepare_prompt_tasks(
            path,
            None,
            chat_template=None,
            max_length=longest,
            is_preformatted=False,
            train_only_last_turn=False,
            cache_dir=None,
            cache_key=None,
            num_proc=None,
        )
    ]


def sample(payload: dict[str, Any], longest: int) -> dict[str, torch.Tensor]:
    """Return a row with faked states, through SpecForge's own normalizer."""
    ids = torch.tensor(payload["input_ids"])
    following = torch.cat([ids[1:], torch.tensor([-1])]).float()
    raw = {
        "input_ids": ids,
        "loss_mask": torch.tensor(payload["loss_mask"]),
        "hidden_state": following[None, :, None],
        "aux_hidden_state": ids.float()[None, :, None].repeat(1, 1, 3),
    }
    return process_offline_eagle3_sample(raw, longest)


def pairs(payloads: list[dict[str, Any]], longest: int) -> list[list[tuple[int, int]]]:
    """Return (fed, learnt) at each position that counts, per row, from one padded batch."""
    batch = DataCollatorWithPadding()([sample(payload, longest) for payload in payloads])
    fed, target, mask = TargetHead.preprocess(None, batch["input_ids"], batch["target"], batch["loss_mask"])
    return [
        [(int(fed[row, at]), int(target[row, at, 0])) for at in torch.nonzero(mask[row, :, 0]).flatten()]
        for row in range(len(payloads))
    ]


def mapping(folder: Path, size: int) -> dict[str, bool]:
    """Compare the draft vocabulary with what SpecForge makes of the same counts."""
    counts = torch.load(folder / "token_freq.pt", weights_only=True)
    ours = torch.load(folder / "vocab_mapping.pt", weights_only=True)
    validate_vocab_mapping_consistency(ours["t2d"], ours["d2t"])
    d2t, t2d = process_token_dict_to_mappings(Counter(counts), len(ours["d2t"]), size)
    chosen = sorted(counts[int(i)] for i in torch.nonzero(t2d).flatten() if int(i) in counts)
    mine = sorted(counts[int(i)] for i in torch.nonzero(ours["t2d"]).flatten() if int(i) in counts)
    return {"same_size": d2t.shape == ours["d2t"].shape, "same_counts": chosen == mine}


def described(folder: Path, longest: int) -> dict[str, Any]:
    """Return what SpecForge reads in a folder."""
    loaded = prompts(folder, longest)
    rows = [
        {"ids": payload["input_ids"], "mask": payload["loss_mask"], "pairs": found}
        for payload, found in zip(loaded, pairs(loaded, longest), strict=True)
    ]
    size = len(torch.load(folder / "vocab_mapping.pt", weights_only=True)["t2d"])
    return {"rows": rows, "mapping": mapping(folder, size)}


if __name__ == "__main__":
    limit, *folders = sys.argv[1:]
    print(json.dumps([described(Path(folder), int(limit)) for folder in folders]))
