"""The optimizer: what torch wants of one, around the functions of update.py."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from natgrad.groups import Lower, check
from natgrad.optimization import arguments, checkpoint, report, update
from natgrad.optimization.shapes import Blocks, Choice, matrix, sizes
from natgrad.optimization.sides import Factor, Side

foreach_copy, foreach_mul, foreach_sub = (getattr(torch, f"_foreach_{name}_") for name in ("copy", "mul", "sub"))

INPUTS = 256  # a weight of so many inputs is moved by lr, as the root mean square
BETA = 0.4  # the step of S at half power
SIDES = ("out", "in")


class NGD(Optimizer):
    r"""Natural-gradient descent with a Kronecker-factored precision S = S_C (x) S_K for every weight W (out x in).

    With U the averaged gradient and D = S_C^-1 U S_K^-1 one step is

        W   <- (1 - lr weight_decay) W - lr sqrt(256 / in) D / max(1, rms(D))
        S_C <- h S_C h^T,  h = h(b P(D D^T / in - gamma I)),  h(M) = I + M + M^2 / 2
        S_K <- h S_K h^T,  h = h(b P(D^T D / out - gamma I)),  b = beta / max(1, ||D D^T / in||) and alike

    so that D becomes white: of size one in every direction, whatever the scale of the gradient. Convolutions are
    matrices of out x (in k k); biases, norms and scalars have a diagonal S and move by lr. Nothing but the parameters
    is needed: no model, no hooks, no second optimizer.

    Arguments:
        params: as for every optimizer of torch: parameters, named ones, or groups with options of their own.
        lr: the step size. AdamW's carry over; sqrt(256 / in) keeps the best one the same across widths.
        momentum: of the gradient, Nesterov's.
        weight_decay: decoupled, as AdamW's. With power=1 the weight of an L2 term, its gradient and its curvature.
        structure: the groups of B_C and B_K, S = B B^T: a structure for both sides, a pair (out side, in side) or
            `Kronecker`, or a function of the parameter's shape. By default `Blocks(288)`: dense up to 288, then blocks.
        power: 0.5 as above, where S^2 follows E[u u^T]; 1 is the paper's rule, S follows samples E[g g^T] + damping.
        beta: the step of S: 0.4 unless given, for power=1 lr.
        gamma: the weight of the entropy in the paper's problem.
        damping: components of U below this part of its root mean square are not made larger. For power=1 a curvature
            added to that of the L2 term.
        update_every: steps from one update of S to the next.
        samples: for power=1, how many examples the loss is the mean of; weighs their curvature against damping.
        maximize: ascend instead.

    A gradient that is all zero or not finite leaves its parameter, momentum and S alone; `diagnostics` counts these.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        structure: Choice = Blocks(),  # noqa: B008  # immutable
        power: float = 0.5,
        beta: float | None = None,
        gamma: float = 1.0,
        damping: float = 1e-3,
        update_every: int = 1,
        samples: float = 1.0,
        maximize: bool = False,
    ):
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "structure": structure,
            "power": power,
            "beta": beta,
            "gamma": gamma,
            "damping": damping,
            "update_every": update_every,
            "samples": samples,
            "maximize": maximize,
            "steps": 0,
        }
        arguments.options(defaults)
        self._sides: dict[Any, tuple[Side, ...]] = {}
        super().__init__(params, defaults)

    @classmethod
    def paper(cls, params: Any, lr: float | Tensor, k: int, weight_decay: float, *, samples: float = 1.0) -> NGD:
        """The paper's method for networks: Tri-low with k columns on both sides, gamma = 1, beta = lr, no momentum.

        A side shorter than k gets as many columns as it has.
        """
        return cls(
            params,
            lr,
            momentum=0.0,
            weight_decay=weight_decay,
            structure=functools.partial(tri_low, k=check.count(k, "k")),
            power=1,
            damping=0.0,
            samples=samples,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        given = param_group["params"]
        given = [given] if isinstance(given, Tensor) else list(given)
        seen = [p for group in self.param_groups for p in group["params"]]
        group = {**self.defaults, **param_group}
        arguments.options(group)
        for p, what in arguments.parameters(given, seen):
            self._sides_of(p, group, what)
        super().add_param_group({**param_group, "params": given})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            due = self._due(group)
            rows = self._rows(group)
            signs = self._signs(rows) if due and group["power"] == 0.5 else None
            for row in rows:
                self._step_row(row, group, due, signs)
        return loss

    def diagnostics(self) -> list[dict[str, Any]]:
        """For each parameter: its shape, structures, steps taken and skipped, the condition of S and its last step."""
        return [
            report.diagnosis(p, self.state.get(p, {}), self._sides_of(p, group))
            for group in self.param_groups
            for p in group["params"]
        ]

    def memory(self) -> list[int]:
        """The bytes of state by parameter, in the order of `param_groups`. Nothing before the first step."""
        return [report.memory(self.state.get(p, {})) for group in self.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, the structures written out: torch.load(..., weights_only=True) takes it."""
        found = super().state_dict()
        for saved, group in zip(found["param_groups"], self.param_groups, strict=True):
            saved["structure"] = self._described(group)
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict = checkpoint.checked(state_dict, self.param_groups, [self._described(g) for g in self.param_groups])
        super().load_state_dict(state_dict)
        checkpoint.restore(self, state_dict)  # torch has cast all state to the dtypes of the parameters

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._sides = {}

    def _described(self, group: dict[str, Any]) -> list[str]:
        return [" x ".join(repr(side.structure) for side in self._sides_of(p, group)) for p in group["params"]]

    def _sides_of(self, p: Tensor, group: dict[str, Any], what: str = "a parameter") -> tuple[Side, ...]:
        key = (p.shape, group["structure"], group["power"])
        if key not in self._sides:
            self._sides[key] = arguments.sides(p, group["structure"], group["power"], what)
        return self._sides[key]

    def _due(self, group: dict[str, Any]) -> bool:
        """Whether S moves in this step: in the first, and in every update_every-th after it."""
        if group["update_every"] == 1:
            return True
        group["steps"] += 1
        return group["steps"] % group["update_every"] == 1

    def _rows(self, group: dict[str, Any]) -> list[list[Tensor]]:
        """The parameters that have a gradient, those alike in one row."""
        rows: dict[Any, list[Tensor]] = defaultdict(list)
        for i, p in enumerate(group["params"]):
            if p.grad is not None:
                arguments.gradient(p, i)
                self._start(p, group)
                rows[p.shape, p.dtype, p.device].append(p)
        return list(rows.values())

    def _start(self, p: Tensor, group: dict[str, Any]) -> None:
        state, dtype = self.state[p], checkpoint.state_dtype(p)
        if "step" not in state:
            sides = self._sides_of(p, group)
            for name in ("step", "skipped"):
                state[name] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["norms"] = torch.zeros(len(sides), dtype=dtype, device=p.device)
            for side, name in zip(sides, SIDES, strict=False):
                for i, t in enumerate(side.start(dtype, p.device)):
                    state[f"{name}_{i}"] = t
        if group["momentum"] and "momentum" not in state:
            state["momentum"] = torch.zeros(matrix(p.shape), dtype=dtype, device=p.device)

    def _signs(self, rows: list[list[Tensor]]) -> Tensor | None:
        """The same signs for all parameters: enough for the longest side, at the step of the first."""
        if not rows:
            return None
        longest = max(max(matrix(row[0].shape)) for row in rows)
        return update.signs(self.state[rows[0][0]]["step"], longest)

    def _step_row(self, row: list[Tensor], group: dict[str, Any], due: bool, signs: Tensor | None) -> None:
        sides, states = self._sides_of(row[0], group), [self.state[p] for p in row]
        shape, dtype = matrix(row[0].shape), checkpoint.state_dtype(row[0])
        lr, decay, mu, half = group["lr"], group["weight_decay"], group["momentum"], group["power"] == 0.5
        beta = group["beta"] if group["beta"] is not None else BETA if half else lr

        def stacked(name: str) -> Tensor:
            return _stack([state[name] for state in states])

        names = [[key for key in states[0] if key.startswith(f"{name}_")] for name in SIDES[: len(sides)]]
        stored = [[stacked(name) for name in side] for side in names]
        G = _stack([p.grad.reshape(shape).to(dtype) for p in row])  # pyright: ignore[reportOptionalMemberAccess]
        size = update.rms(G)
        good = torch.isfinite(size) & (size > 0)
        G = torch.nan_to_num(-G if group["maximize"] else G, 0.0, 0.0, 0.0)
        new, U = {}, G
        if mu:
            m = stacked("momentum").lerp_(G, update.beside((1 - mu) * good, G))
            if len(row) > 1:  # else it was the state itself
                new["momentum"] = m
            U = torch.lerp(G, m, mu)
        step = stacked("step")
        common = {"fresh": step == 0, "good": good, "beta": beta, "gamma": group["gamma"]}
        if half:
            moved = update.half_power(U, sides, stored, signs=signs, damping=group["damping"], **common)
            rate = lr * (INPUTS / shape[1]) ** 0.5 if len(sides) == 2 else lr
        else:
            if decay:
                U = U + decay * _stack([p.reshape(shape).to(dtype) for p in row])
            common |= {"due": due, "delta": group["damping"] + decay, "samples": group["samples"]}
            factors = [side for side in sides if isinstance(side, Factor)]  # all of them at this power
            moved = update.full_power(U, G, factors, stored, **common)
            rate = lr
        new |= {"step": step + moved.good, "skipped": stacked("skipped") + ~moved.good}
        if moved.norms is not None:
            new["norms"] = moved.norms
        for keys, tensors in zip(names, moved.sides, strict=True):
            new |= dict(zip(keys, tensors, strict=True))
        for name, t in new.items():
            foreach_copy([state[name] for state in states], list(t.unbind()))
        if half and decay:
            foreach_mul(row, list((1 - lr * decay * moved.good).to(row[0].dtype).unbind()))
        steps = moved.D.mul_(update.beside(rate * moved.c, moved.D)).to(row[0].dtype)
        foreach_sub(row, [d.reshape(p.shape) for d, p in zip(steps.unbind(), row, strict=True)])


def tri_low(shape: tuple[int, ...], k: int) -> Lower | tuple[Lower, Lower]:
    found = tuple(Lower(min(k, d)) for d in sizes(shape))
    return found if len(found) == 2 else Lower(0)


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)
