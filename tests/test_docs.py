"""README.md, CONTRIBUTING.md and docs/: code runs, recipes load, links and commands exist, rewards have pages."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flowrl import kernels, plugins
from flowrl.config import load_config
from flowrl.objectives.base import Seeds, Work
from flowrl.policy import Policy
from flowrl.reward import FunctionReward, RewardBatch
from flowrl.trainer import train

from . import runs, tiny

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(document: str, containing: str, **names: Any) -> SimpleNamespace:
    """Run the one Python block that contains a text, and hand back the names that it defines."""
    (block,) = (block for block in blocks(document, "python") if containing in block)
    exec(compile(block, f"{document}, the block with {containing!r}", "exec"), names)  # noqa: S102 (our own document)
    return SimpleNamespace(**names)


@pytest.fixture
def policy() -> Policy:
    """A tiny random SD3 pipeline as a policy."""
    return Policy(tiny.PIPELINES["sd3"](), kernel=kernels.flow_sde(0.7))


PAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    """Relative links of the pages in ``docs/`` exist."""
    path = ROOT / page
    linked = set(re.findall(r"\]\((?!https?://)([^)#]+)\)", path.read_text(encoding="utf-8")))
    assert [link for link in sorted(linked) if not (path.parent / link).exists()] == []


def test_every_reward_has_a_page() -> None:
    """The index of ``docs/rewards/`` names each built-in reward once, and its page names it too."""
    rows = re.findall(
        r"^\| \[\w+\]\((\w+\.md)\) \| (.*?) \|", (ROOT / "docs/rewards/README.md").read_text("utf-8"), re.M
    )
    listed = [(page, name) for page, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(name for _, name in listed) == plugins.known("rewards")
    for page, name in listed:
        assert f"`{name}`" in (ROOT / "docs" / "rewards" / page).read_text(encoding="utf-8"), f"{page}: {name}"


def test_readme_is_short() -> None:
    """README.md stays under 150 lines."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_exist(document: str) -> None:
    """Every relative link, and every path in backticks that has a folder of ours in it, leads to something."""
    text = (ROOT / document).read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?!https?://)([^)#]+)\)", text))
    named = set(re.findall(r"`((?:flowrl|pipelines|rewards|configs|assets|tests)/[\w./-]*)`", text))
    examples = {"tests/rewards/test_warmth.py", "tests/objectives/test_rwr.py"}
    assert [path for path in sorted(linked | named - examples) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist(document: str) -> None:
    """Every ``flowrl COMMAND`` and ``make TARGET`` that a document names is one."""
    import typer

    from flowrl.cli import app

    text = (ROOT / document).read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands
    assert set(re.findall(r"(?:`|-m |# )flowrl ([a-z]+)", text)) <= set(commands)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, flags=re.MULTILINE)) <= set(targets)


def test_readme_recipe_loads(tmp_path: Path) -> None:
    """The recipe in README.md passes the schema."""
    (recipe,) = blocks("README.md", "yaml")
    path = tmp_path / "my.yaml"
    path.write_text(recipe, encoding="utf-8")
    assert load_config(path).objective.name == "nft"


def test_readme_reward_runs() -> None:
    """The reward in README.md scores a white picture with 1 and a black one with 0."""
    brightness = FunctionReward(run("README.md", "def brightness").brightness)
    batch = RewardBatch(torch.stack([torch.ones(3, 4, 4), torch.zeros(3, 4, 4)]), ["a", "b"], [{}, {}])
    assert brightness(batch).tolist() == [1.0, 0.0]


def test_readme_policy_runs() -> None:
    """The replayed log-probability of README.md's example equals the recorded one, and carries gradients."""
    done = run("README.md", "policy.replay", pipe=tiny.PIPELINES["sd3"]())
    assert torch.equal(done.log_prob, done.rollout.transitions[3].log_prob)
    assert done.log_prob.requires_grad


def test_readme_objective_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective in README.md, 30 lines at most, is named in a config as it says, and a run trains with it."""
    (code,) = [block for block in blocks("README.md", "python") if "class Weighted" in block]
    assert len(code.splitlines()) <= 30
    monkeypatch.chdir(tmp_path)
    Path("my_objective.py").write_text(code, encoding="utf-8")
    model = runs.save_model(tmp_path)
    folder = train(runs.recipe(model, tmp_path / "run", "objective.name=my_objective.py:Weighted", "max_steps=1"))
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()][-1]
    assert last["weighted/error"] > 0
    assert last["grad_norm"] > 0


def test_contributing_reward_runs() -> None:
    """The reward in CONTRIBUTING.md scores its positive example 1 and its negative -1."""
    reward = run("CONTRIBUTING.md", "class WarmthReward").WarmthReward()
    positive, negative = reward.examples()
    assert (reward(positive).tolist(), reward(negative).tolist()) == ([1.0], [-1.0])


def test_contributing_kernel_runs() -> None:
    """The kernel in CONTRIBUTING.md has std a sqrt(-dt): 0.1 sqrt(0.25) = 0.05."""
    kernel = run("CONTRIBUTING.md", "def churn").churn(0.1)
    assert kernel.std(kernels.FlowPlace(0, 500.0, 0.5, 0.25, 0.75)) == pytest.approx(0.05)


def test_contributing_objective_runs(policy: Policy) -> None:
    """The objective in CONTRIBUTING.md weighs two equal errors by e^1 and e^0, and its loss reaches the LoRA."""
    objective = run("CONTRIBUTING.md", "class RWR(").RWR(temperature=2.0)
    rollout = policy.rollout(["a red circle"] * 2, seeds=[0, 1], steps=2, train_steps=[])
    (piece,) = objective.pieces(policy, rollout, Seeds(0, [0, 1]))
    terms = objective.loss(policy, rollout, piece, Work(torch.tensor([2.0, 0.0])))
    torch.testing.assert_close(terms.loss.detach(), terms.metrics["rwr/error"] * torch.tensor([torch.e, 1.0]))
    terms.loss.mean().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in policy.parameters.values())
