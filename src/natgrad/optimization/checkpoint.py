"""State that survives torch.save, another device and another dtype, bit for bit.

Factors and momentum are float32 beside parameters of any lower precision, float64 beside float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from natgrad.optimization import arguments


def state_dtype(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def checked(
    state_dict: dict[str, Any],
    groups: Sequence[dict[str, Any]],
    structures: Sequence[list[str]],
    shapes: Callable[[Tensor, dict[str, Any]], dict[str, torch.Size]],
) -> dict[str, Any]:
    """The state with this optimizer's own structures in its groups, if it is one of theirs, whole and of the shapes."""
    if not {"state", "param_groups"} <= set(state_dict):
        raise ValueError(f"this is no state of an optimizer: it holds {', '.join(map(str, state_dict)) or 'nothing'}")
    saved = state_dict["param_groups"]
    if [len(was["params"]) for was in saved] != [len(now["params"]) for now in groups]:
        raise ValueError(
            f"the saved state has groups of {[len(was['params']) for was in saved]} parameters, this optimizer of "
            f"{[len(now['params']) for now in groups]}"
        )
    index, new = 0, []
    for was, now, described in zip(saved, groups, structures, strict=True):
        missing = [name for name in now if name not in was and name != "param_names"]
        if missing or not isinstance(was["structure"], list) or len(was["structure"]) != len(described):
            raise ValueError(
                f"the saved state is none of NGD's: its groups lack {', '.join(missing) or 'structures'}; load it with "
                "the optimizer that saved it"
            )
        try:
            arguments.options(was)
        except ValueError as error:
            raise ValueError(f"in the saved state {error}") from error
        adopted = {**was, "structure": now["structure"]}
        for i, p, theirs, ours in zip(was["params"], now["params"], was["structure"], described, strict=True):
            if theirs != ours:
                raise ValueError(
                    f"parameter {index} was saved with structure {theirs} and has {ours} here: factors of one group do "
                    "not fit another. Make the optimizer with the structure that was saved"
                )
            _fits(state_dict["state"].get(i, {}), shapes(p, adopted), index)
            index += 1
        new.append(adopted)
    return {**state_dict, "param_groups": new}


def _fits(state: dict[str, Any], shapes: dict[str, torch.Size], index: int) -> None:
    """Nothing, as before the first step, or all of it, with or without momentum."""
    found = {name: t.shape if isinstance(t, Tensor) else type(t).__name__ for name, t in state.items()}
    needed = {name: shape for name, shape in shapes.items() if name != "momentum" or name in found}
    if state and found != needed:
        wrong = sorted(name for name in {*found, *needed} if found.get(name) != needed.get(name))
        raise ValueError(
            f"the saved state does not fit parameter {index}: "
            + "; ".join(
                f"{name} should be {needed.get(name, 'absent')} and is {found.get(name, 'absent')}" for name in wrong
            )
        )


def restore(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Each tensor as it was saved, where its parameter is now."""
    old = [i for group in state_dict["param_groups"] for i in group["params"]]
    new = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in zip(old, new, strict=True):
        for name, t in state_dict["state"].get(i, {}).items():
            dtype = torch.float32 if name in ("step", "skipped") else state_dtype(p)
            optimizer.state[p][name] = t.detach().to(p.device, dtype, copy=True)
