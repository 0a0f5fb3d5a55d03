"""docs/methods: a page for each method, in one order, with every metric and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowrl.config import load_config

ROOT = Path(__file__).parent.parent.parent
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "methods").glob("*.md"))}
ORDER = ["Paper", "Command", "Metrics", "Details", "Measured"]


def text(name):
    """A page."""
    return PAGES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_one_order(name):
    """Paper with its address, command, metrics, details, and what was measured."""
    assert re.findall(r"^## (.*)$", text(name), flags=re.MULTILINE) == ORDER
    assert re.search(r"## Paper\n\n.*https://(arxiv\.org|dl\.acm\.org)", text(name), flags=re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_commands_run_recipes_of_that_objective(name):
    """Each recipe is there and names the objective of the page."""
    recipes = re.findall(r"-m flowrl train (configs/[\w/]+\.yaml)", text(name))
    assert recipes
    assert {load_config(ROOT / recipe).objective.name for recipe in recipes} == {name}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    """Relative ones, to code and to other pages."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", text(name))
    assert links
    assert [link for link in links if not (PAGES[name].parent / link).exists()] == []


def test_there_are_pages():
    """Without any, the tests above would test nothing."""
    assert {"grpo", "nft"} <= set(PAGES)
