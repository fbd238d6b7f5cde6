"""The optimizer: what torch wants of one, around the functions of update.py."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from natgrad.groups import Lower, check
from natgrad.groups.base import beside
from natgrad.optimization import arguments, checkpoint, report, update
from natgrad.optimization.shapes import Blocks, Choice, matrix, sizes
from natgrad.optimization.sides import Factor, Side, Tensors

# private by name, but what all of torch.optim is built on: one call for many tensors
foreach_add, foreach_copy, foreach_mul, foreach_sub = (
    getattr(torch, f"_foreach_{name}_") for name in ("add", "copy", "mul", "sub")
)

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
            `Kronecker`, or a function of the parameter's shape. By default `Blocks()`: dense up to 288, then blocks.
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
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group is a dict with 'params', got {check.brief(param_group)}")
        given = param_group["params"]
        if isinstance(given, set):
            raise TypeError("parameters must come in an order that is the same in every run, got a set; give a list")
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
        arguments.gradients(self.param_groups)
        for group in self.param_groups:
            due = self._due(group)
            rows = self._rows(group)
            signs = self._signs(rows, group) if due and group["power"] == 0.5 else {}
            for row in rows:
                with _no_autocast(row[0].device):
                    self._step_row(row, group, due, signs.get(row[0].device))
        return loss

    @torch.no_grad()
    def diagnostics(self) -> list[dict[str, Any]]:
        """For each parameter: its shape, structures, steps taken and skipped, bytes, and for each side the condition
        of S and the relative size of the step that S takes with the present momentum (or gradient, without momentum).
        """
        found = []
        for group in self.param_groups:
            for p in group["params"]:
                state, sides = self.state.get(p, {}), self._sides_of(p, group)
                row = report.diagnosis(p, state, sides)
                U = state["momentum"] if group["momentum"] and state else p.grad
                if state and U is not None:
                    U, stored = _matrix_of(U)[None], self._stored([p], group)[1]
                    with _no_autocast(p.device):
                        signs = self._signs([[p]], group)[p.device]
                        moved = self._move([p], group, U, U, update.rms(U) > 0, stored, True, signs)
                        row |= report.condition_and_step(sides, stored, moved.sides)
                found.append(row)
        return found

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
        described = [self._described(group) for group in self.param_groups]
        state_dict = checkpoint.checked(state_dict, self.param_groups, described, self._shapes)
        super().load_state_dict(state_dict)
        checkpoint.restore(self, state_dict)  # torch has cast all state to the dtypes of the parameters

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._sides = {}

    def _described(self, group: dict[str, Any]) -> list[str]:
        return [" x ".join(repr(side.structure) for side in self._sides_of(p, group)) for p in group["params"]]

    def _shapes(self, p: Tensor, group: dict[str, Any]) -> dict[str, torch.Size]:
        """Of all that the state of a parameter may hold."""
        found = {"step": torch.Size(), "skipped": torch.Size(), "momentum": torch.Size(matrix(p.shape))}
        for side, name in zip(self._sides_of(p, group), SIDES, strict=False):
            found |= {f"{name}_{key}": shape for key, shape in side.shapes.items()}
        return found

    def _sides_of(self, p: Tensor, group: dict[str, Any], what: str = "a parameter") -> tuple[Side, ...]:
        choice, power, dtype = group["structure"], group["power"], checkpoint.state_dtype(p)
        if not isinstance(choice, Hashable):  # a list, which is refused, or a function that compares by value
            return arguments.sides(p, choice, power, dtype, what)
        key = (p.shape, choice, power, dtype, p.device)
        if key not in self._sides:
            self._sides[key] = arguments.sides(p, choice, power, dtype, what)
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
        for p in group["params"]:
            if p.grad is not None and p.numel():
                self._start(p, group)
                rows[p.shape, p.dtype, p.device].append(p)
        return list(rows.values())

    def _start(self, p: Tensor, group: dict[str, Any]) -> None:
        state, dtype = self.state[p], checkpoint.state_dtype(p)
        if "step" not in state:
            for name in ("step", "skipped"):
                state[name] = torch.zeros((), dtype=torch.float32, device=p.device)
            for side, name in zip(self._sides_of(p, group), SIDES, strict=False):
                for key, t in zip(side.shapes, side.start(dtype, p.device), strict=True):
                    state[f"{name}_{key}"] = t
        if not group["momentum"]:
            state.pop("momentum", None)
        elif "momentum" not in state:
            state["momentum"] = torch.zeros(matrix(p.shape), dtype=dtype, device=p.device)

    def _signs(self, rows: list[list[Tensor]], group: dict[str, Any]) -> dict[torch.device, Tensor]:
        """The same signs for all parameters on a device: enough for the longest side, others at every move of S."""
        longest = max([0, *(max(matrix(row[0].shape)) for row in rows)])
        steps: dict[torch.device, list[Tensor]] = defaultdict(list)
        for row in rows:
            steps[row[0].device] += [self.state[p]["step"] for p in row]
        return {
            device: update.signs(torch.stack(some).max() // group["update_every"], longest)
            for device, some in steps.items()
        }

    def _step_row(self, row: list[Tensor], group: dict[str, Any], due: bool, signs: Tensor | None) -> None:
        states, shape = [self.state[p] for p in row], matrix(row[0].shape)
        lr, decay, mu = group["lr"], group["weight_decay"], group["momentum"]
        G = _stack([_matrix_of(p.grad) for p in row])
        size = update.rms(G)
        good = torch.isfinite(size) & (size > 0)
        G = torch.nan_to_num(-G if group["maximize"] else G, 0.0, 0.0, 0.0)
        old = [state["momentum"] for state in states] if mu else []
        U = torch.lerp(G, _stack(old), mu**2) if mu else G  # Nesterov's: (1 - mu) g + mu m, m = mu old + (1 - mu) g
        names, stored = self._stored(row, group)
        moved = self._move(row, group, U, G, good, stored, due, signs)
        if mu:
            m = _stack(old).lerp_(G, beside((1 - mu) * moved.good.to(G.dtype), G))
            if len(row) > 1:  # else it was the state itself
                foreach_copy(old, list(m.unbind()))
        if due:
            for keys, tensors in zip(names, moved.sides, strict=True):
                for key, t in zip(keys, tensors, strict=True):
                    foreach_copy([state[key] for state in states], list(t.unbind()))
        steps = [state["step"] for state in states]
        counted = moved.good if due else moved.good & (_stack(steps) > 0)  # fresh until S has moved
        foreach_add(steps, list(counted.unbind()))
        foreach_add([state["skipped"] for state in states], list((~moved.good).unbind()))
        half = group["power"] == 0.5
        rate = lr * (INPUTS / shape[1]) ** 0.5 if half and shape[1] > 1 else lr
        moves = moved.D.mul_(beside(rate * moved.c, moved.D))
        keep = 1 - lr * decay * moved.good.to(G.dtype)
        if row[0].dtype != G.dtype:  # rounded once, at the end
            W = _stack([_matrix_of(p) for p in row])
            new = (W * beside(keep, W) if half and decay else W) - moves
            foreach_copy(row, [w.reshape(p.shape) for w, p in zip(new.unbind(), row, strict=True)])
            return
        if half and decay:
            foreach_mul(row, list(keep.unbind()))
        foreach_sub(row, [d.reshape(p.shape) for d, p in zip(moves.unbind(), row, strict=True)])

    def _stored(self, row: list[Tensor], group: dict[str, Any]) -> tuple[list[list[str]], list[Tensors]]:
        """The names in the state of what each side has stored, and the tensors themselves in one row."""
        sides, states = self._sides_of(row[0], group), [self.state[p] for p in row]
        names = [[f"{name}_{key}" for key in side.shapes] for side, name in zip(sides, SIDES, strict=False)]
        shapes = [shape for side in sides for shape in side.shapes.values()]
        if [states[0][key].shape if key in states[0] else None for keys in names for key in keys] != shapes:
            raise ValueError(
                f"the state of a parameter of shape {check.shape(row[0].shape)} was made for another structure or "
                f"power than {' x '.join(str(side.structure) for side in sides)} at power {group['power']}: neither "
                "may change once steps have been taken"
            )
        return names, [[_stack([state[key] for state in states]) for key in keys] for keys in names]

    def _move(
        self,
        row: list[Tensor],
        group: dict[str, Any],
        U: Tensor,
        G: Tensor,
        good: Tensor,
        stored: list[Tensors],
        due: bool,
        signs: Tensor | None,
    ) -> update.Moved:
        sides = self._sides_of(row[0], group)
        fresh = _stack([self.state[p]["step"] for p in row]) == 0
        common = {"fresh": fresh, "good": good, "gamma": group["gamma"]}
        if group["power"] == 0.5:
            beta = BETA if group["beta"] is None else group["beta"]
            return update.half_power(U, sides, stored, signs=signs, beta=beta, damping=group["damping"], **common)
        decay = group["weight_decay"]
        if decay:
            U = U + decay * _stack([_matrix_of(p) for p in row])
        factors = [side for side in sides if isinstance(side, Factor)]  # all of them at this power
        beta = group["lr"] if group["beta"] is None else group["beta"]
        common |= {"beta": beta, "due": due, "delta": group["damping"] + decay, "samples": group["samples"]}
        return update.full_power(U, G, factors, stored, **common)


def tri_low(shape: tuple[int, ...], k: int) -> Lower | tuple[Lower, Lower]:
    found = tuple(Lower(min(k, d)) for d in sizes(shape))
    return found if len(found) == 2 else Lower(0)


def _matrix_of(x: Tensor | None) -> Tensor:
    """A parameter or its gradient as a matrix, in the dtype of the state."""
    assert x is not None
    return x.detach().reshape(matrix(x.shape)).to(checkpoint.state_dtype(x))


def _no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)
