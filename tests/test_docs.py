"""The code on the pages runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests import structures, test_laws, test_step

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md")))]


def run(page: str) -> dict:
    """All Python blocks of a page, one after another."""
    module = ModuleType(re.sub(r"\W", "_", page))
    sys.modules[module.__name__] = module  # where pickle looks for the classes that the page defines
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), vars(module))
    return vars(module)


def test_readme(capsys):
    names = run("README.md")
    minimized, trained, stepped = capsys.readouterr().out.splitlines()[:3]
    assert minimized.startswith("converged")
    assert float(minimized.split()[-1]) < 1e-6
    assert float(trained) < 0.1  # random labels, learned by heart
    assert float(stepped) < 1e-6
    assert names["B"].logdet().shape == (5,)
    assert float((names["y"] - names["x"]).abs().max()) < 1e-4


def test_minimize_page(capsys):
    torch.manual_seed(0)
    run("docs/minimize.md")
    rosenbrock, through_scipy, stochastic = capsys.readouterr().out.splitlines()
    assert rosenbrock.startswith("converged")
    assert through_scipy.startswith("True")
    assert float(stochastic) > 0.5  # the truth, up to the scale that a logistic regression finds


def test_optimizer_page(capsys):
    run("docs/optimizer.md")
    loss, first, total = capsys.readouterr().out.splitlines()
    assert float(loss) < 0.1
    assert first.startswith("(128, 64)")
    assert int(total) > 1000


LAWS = [law for module in (test_laws, test_step) for name, law in vars(module).items() if hasattr(law, "hypothesis")]
GENERAL = [law for law in LAWS if "name" in law.hypothesis.inner_test.__code__.co_varnames]


@pytest.mark.parametrize("law", [law for law in GENERAL if "third_order" not in law.__name__], ids=lambda f: f.__name__)
def test_the_structure_added_in_the_docs_obeys_every_law(law, monkeypatch):
    strategy = run("docs/adding-a-structure.md")["isotropic"]
    monkeypatch.setitem(structures.STRUCTURES, "Isotropic", strategy)
    law(name="Isotropic")


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page} links to {link}"
