"""State through torch.save, other dtypes, copies and pickles: what goes on is bit for bit what was not interrupted."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import natgrad as ng
from tests.networks import CHOICES, DTYPES, POWERS, Zoo, parameters, same_bits, snapshot, train

every_choice = pytest.mark.parametrize("choice", CHOICES)
every_power = pytest.mark.parametrize("power", POWERS)

KINDS = ("matrix", "convolution", "embedding", "bias")


def pair(dtype: torch.dtype = torch.float32, **options) -> tuple[Zoo, ng.NGD]:
    model = Zoo(dtype, kinds=KINDS)
    return model, ng.NGD(model.parameters(), **{**POWERS["half"], **options})


def through_a_file(found: dict[str, Any]) -> dict[str, Any]:
    """torch.save, and torch.load of tensors and plain numbers only."""
    file = io.BytesIO()
    torch.save(found, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(model: Zoo, opt: ng.NGD, dtype: torch.dtype = torch.float32, **options) -> tuple[Zoo, ng.NGD]:
    """A new model and a new optimizer with the state of those given."""
    other, new = pair(dtype, **options)
    other.load_state_dict(through_a_file(model.state_dict()))
    new.load_state_dict(through_a_file(opt.state_dict()))
    return other, new


@every_choice
@every_power
def test_a_resumed_run_is_the_uninterrupted_one(choice, power):
    options = {"structure": CHOICES[choice], **POWERS[power], "weight_decay": 0.1}
    model, opt = pair(**options)
    train(model, opt, 3)
    other, new = resumed(model, opt, **options)
    assert same_bits(snapshot(new), snapshot(opt))
    assert train(other, new, 3) == train(model, opt, 3)
    assert same_bits(snapshot(new), snapshot(opt))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_power
@pytest.mark.parametrize("after", [0, 1, 4])
def test_resuming_in_every_dtype_and_between_updates_of_S(dtype, power, after):
    options = {**POWERS[power], "update_every": 3}
    model, opt = pair(dtype, **options)
    train(model, opt, after)
    other, new = resumed(model, opt, dtype, **options)
    assert train(other, new, 5) == train(model, opt, 5)
    assert same_bits(snapshot(new), snapshot(opt))


@pytest.mark.parametrize("there", DTYPES, ids=str)
@pytest.mark.parametrize("here", DTYPES, ids=str)
def test_factors_keep_their_precision_in_another_dtype(here, there):
    """float64 beside float64, float32 beside all else; nothing passes through the dtype of the parameters."""
    model, opt = pair(here)
    train(model, opt, 3)
    other, new = resumed(model, opt, there)
    wanted = torch.float64 if there == torch.float64 else torch.float32
    for p, q in zip(parameters(opt), parameters(new), strict=True):
        for key, t in opt.state[p].items():
            expected = t if key in ("step", "skipped") else t.to(wanted)
            assert new.state[q][key].dtype == expected.dtype
            assert torch.equal(new.state[q][key], expected)
    train(other, new, 2)
    assert {int(new.state[p]["step"]) for p in parameters(new)} == {5}


@every_choice
@every_power
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_go_on_alike(choice, power, copied):
    options = {"structure": CHOICES[choice], **POWERS[power]}
    model, opt = pair(**options)
    train(model, opt, 2)
    other, new = copied((model, opt))
    assert {id(p) for p in parameters(new)} == {id(p) for p in other.parameters()}
    assert train(other, new, 3) == train(model, opt, 3)
    assert same_bits(snapshot(new), snapshot(opt))


def test_state_dict_shows_plain_values_and_shares_no_structure():
    _, opt = pair(structure=ng.Blocks(4, size=2))
    written = opt.state_dict()["param_groups"][0]["structure"]
    assert written[0] == "BlockDiagonal(size=2) x Dense()"
    assert written[3] == "Diagonal()"
    assert opt.param_groups[0]["structure"] == ng.Blocks(4, size=2)


def test_a_loaded_state_is_a_copy():
    model, opt = pair()
    train(model, opt, 2)
    before = snapshot(opt)
    other, new = pair()
    new.load_state_dict(opt.state_dict())
    train(other, new, 2)
    assert same_bits(snapshot(opt), before)


def test_options_of_the_state_are_taken_and_structures_kept():
    """As with every optimizer of torch lr and the like come from the state; the structure is this optimizer's own."""
    model, opt = pair(lr=0.5, momentum=0.3)
    train(model, opt, 1)
    _, new = pair(lr=0.1, structure=ng.Blocks(100))  # the same structures, by another function
    new.load_state_dict(opt.state_dict())
    assert (new.param_groups[0]["lr"], new.param_groups[0]["momentum"]) == (0.5, 0.3)
    assert new.param_groups[0]["structure"] == ng.Blocks(100)


def test_some_parameters_without_state():
    """A parameter that had no gradient yet is saved without state, and starts when one comes."""
    model, opt = pair()
    model.backward()
    first = next(model.parameters())
    first.grad = None
    opt.step()
    other, new = resumed(model, opt)
    assert train(other, new, 3) == train(model, opt, 3)
    assert same_bits(snapshot(new), snapshot(opt))
    assert int(new.state[next(other.parameters())]["step"]) == 3


@pytest.mark.parametrize("named", [False, True])
def test_groups_and_names_are_saved(named):
    def make() -> tuple[Zoo, ng.NGD]:
        model = Zoo(kinds=KINDS)
        given = list(model.named_parameters() if named else model.parameters())
        return model, ng.NGD([{"params": given[:2], "lr": 0.1}, {"params": given[2:], "momentum": 0.0, "power": 1}])

    model, opt = make()
    train(model, opt, 3)
    saved = through_a_file(opt.state_dict())
    if named:
        assert saved["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()][:2]
    other, new = make()
    other.load_state_dict(model.state_dict())
    new.load_state_dict(saved)
    assert train(other, new, 3) == train(model, opt, 3)


def test_hooks_of_the_state_dict_fire():
    model, opt = pair()
    train(model, opt, 1)
    fired: list[str] = []
    opt.register_state_dict_pre_hook(lambda o: fired.append("before saving"))
    opt.register_state_dict_post_hook(lambda o, found: fired.append("saved"))
    opt.register_load_state_dict_pre_hook(lambda o, found: fired.append("before loading"))
    opt.register_load_state_dict_post_hook(lambda o: fired.append("loaded"))
    opt.load_state_dict(opt.state_dict())
    assert fired == ["before saving", "saved", "before loading", "loaded"]


def broken(change) -> dict[str, Any]:
    model, opt = pair()
    train(model, opt, 2)
    found = copy.deepcopy(opt.state_dict())
    change(found)
    return found


def one_group_more(found: dict[str, Any]) -> None:
    found["param_groups"].append({**found["param_groups"][0], "params": []})


def one_parameter_less(found: dict[str, Any]) -> None:
    found["param_groups"][0]["params"].pop()
    found["param_groups"][0]["structure"].pop()


def another_structure(found: dict[str, Any]) -> None:
    found["param_groups"][0]["structure"][1] = "Lower(k1=1, k2=0) x Dense()"


BROKEN = {
    "one group more": (one_group_more, r"groups of \[4, 0\] parameters, this optimizer of \[4\]"),
    "one parameter less": (one_parameter_less, r"groups of \[3\] parameters, this optimizer of \[4\]"),
    "another structure": (another_structure, r"parameter 1 was saved with structure Lower\(k1=1, k2=0\) x Dense\(\)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_does_not_fit_leaves_the_optimizer_as_it_was(name):
    change, message = BROKEN[name]
    runs = []
    for spoilt in (False, True):
        model, opt = pair()
        train(model, opt, 2)
        if spoilt:
            before = snapshot(opt)
            with pytest.raises(ValueError, match=message):
                opt.load_state_dict(broken(change))
            assert same_bits(snapshot(opt), before)
        runs.append((train(model, opt, 3), snapshot(opt)))
    assert runs[0][0] == runs[1][0]
    assert same_bits(runs[0][1], runs[1][1])


def test_a_state_of_another_power_is_adopted_with_it_or_refused():
    """Half and full power keep S in different ways where S^-1 itself is kept: one must never be taken for the other."""
    model, opt = pair(power=1)
    train(model, opt, 2)
    other, new = pair(power=0.5)
    other.load_state_dict(model.state_dict())
    new.load_state_dict(opt.state_dict())
    assert new.param_groups[0]["power"] == 1
    assert train(other, new, 3) == train(model, opt, 3)


def test_the_moved_model_takes_its_state_along():
    """`model.double()` after the optimizer was made: torch keeps the parameter objects, state follows on loading."""
    model, opt = pair()
    train(model, opt, 2)
    model.double()
    opt.load_state_dict(opt.state_dict())
    assert {t.dtype for p in parameters(opt) for key, t in opt.state[p].items() if key.startswith("out")} == {
        torch.float64
    }
    train(model, opt, 1)


def test_nothing_of_the_state_is_a_view_of_more():
    """What is saved is what is counted: no tensor of the state holds on to a larger storage."""
    model, opt = pair()
    train(model, opt, 3)
    for s in (opt.state[p] for p in parameters(opt)):
        assert all(
            t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in s.values() if isinstance(t, Tensor)
        )


def test_an_optimizer_over_a_plain_tensor():
    x = nn.Parameter(torch.ones(3))
    opt = ng.NGD(x for x in [x])
    x.grad = torch.ones(3)
    opt.step()
    assert float(x.detach().max()) < 1
