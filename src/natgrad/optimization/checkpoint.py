"""State that survives torch.save, another device and another dtype, bit for bit.

Factors and momentum are float32 beside parameters of any lower precision, float64 beside float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def state_dtype(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def checked(
    state_dict: dict[str, Any], groups: Sequence[dict[str, Any]], structures: Sequence[list[str]]
) -> dict[str, Any]:
    """The state with this optimizer's own structures in its groups, if they are those it was saved with."""
    saved = state_dict["param_groups"]
    index = 0
    for theirs, ours in zip(saved, structures, strict=False):  # torch itself tells if there are more groups
        for was, now in zip(theirs["structure"], ours, strict=False):
            if was != now:
                raise ValueError(
                    f"parameter {index} was saved with structure {was} and has {now} here: factors of one group do not "
                    "fit another. Make the optimizer with the structure that was saved"
                )
            index += 1
    adopted = [{**was, "structure": group["structure"]} for was, group in zip(saved, groups, strict=False)]
    return {**state_dict, "param_groups": adopted + saved[len(adopted) :]}


def restore(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Each tensor as it was saved, where its parameter is now."""
    old = [i for group in state_dict["param_groups"] for i in group["params"]]
    new = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in zip(old, new, strict=True):
        for name, t in state_dict["state"].get(i, {}).items():
            dtype = torch.float32 if name in ("step", "skipped") else state_dtype(p)
            optimizer.state[p][name] = t.detach().to(p.device, dtype, copy=True)
