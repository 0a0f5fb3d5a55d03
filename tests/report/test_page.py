"""The page, as text and in a browser."""

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from flowrl.errors import UserError
from flowrl.report import write_report
from flowrl.report.page import MAX_PAIRS, dig, flatten

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no browser: install chromium, chromium-browser or google-chrome to run this test"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,3600",
)
HACK = '<script>document.title="hacked"</script>'


def browse(page, profile, *flags):
    """What headless Chromium prints for a file."""
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return done.stdout.decode("utf-8")


def title_of(dom):
    """The title of a document."""
    return html.unescape(re.search("<title>(.*?)</title>", dom, re.DOTALL)[1])


class Elements(HTMLParser):
    """Every element of a page with its attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@needs_browser
def test_hostile_prompts_are_text_in_a_browser(finished, odd, tmp_path):
    """A prompt that is a script is shown and not run; one that closes an attribute opens no element."""
    dom = browse(finished / "report.html", tmp_path / "profile", "--dump-dom")
    assert title_of(dom) == "shapes <i>nft · flowrl report"
    assert "<script" not in dom
    assert "<img src=x" not in dom
    for prompt in odd[:3]:
        assert html.escape(prompt, quote=False) in dom


@needs_browser
def test_a_script_that_got_in_would_not_run(finished, tmp_path):
    """The page's policy forbids scripts: one put in by hand changes the title only once the policy is taken out."""
    page = (finished / "report.html").read_text(encoding="utf-8")
    injected = page.replace("</body>", f"{HACK}</body>")
    bare = re.sub("<meta http-equiv=[^>]*>", "", injected)
    for name, content in {"guarded": injected, "bare": bare}.items():
        (tmp_path / f"{name}.html").write_text(content, encoding="utf-8")
    assert title_of(browse(tmp_path / "bare.html", tmp_path / "profile", "--dump-dom")) == "hacked"
    assert title_of(browse(tmp_path / "guarded.html", tmp_path / "profile", "--dump-dom")) != "hacked"


@needs_browser
def test_pictures_and_curves_are_drawn_in_a_browser(finished, tmp_path):
    """The policy lets the page's own pictures and styles through: a red square, a blue and an orange curve are seen."""
    browse(finished / "report.html", tmp_path / "profile", f"--screenshot={tmp_path / 'seen.png'}")
    seen = np.asarray(Image.open(tmp_path / "seen.png").convert("RGB")).reshape(-1, 3)
    truth = np.asarray(Image.open(finished / "samples/step_000000/000.png")).reshape(-1, 3)
    red = truth[np.argmax(truth[:, 0].astype(int) - truth[:, 1])]
    for colour in (red, (0x3A, 0x6B, 0xE0), (0xD9, 0x62, 0x0C)):
        assert (seen == np.array(colour)).all(axis=1).sum() > 20, colour


def test_the_page_holds_all_that_it_needs(finished):
    """Nothing points outside: sources are data, references are inside, and there is no element that could load more."""
    page = (finished / "report.html").read_text(encoding="utf-8")
    elements = Elements(page)
    assert {tag for tag, _ in elements.found}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "a"})
    for tag, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "http://" not in page
    assert "https://" not in page
    policy = next(attributes for _, attributes in elements.found if "http-equiv" in attributes)
    assert policy["content"].startswith("default-src 'none'; img-src data:;")


def test_the_page_shows_the_run(finished):
    """Status, each chart, the outcome of each pair, the table, the settings."""
    page = (finished / "report.html").read_text(encoding="utf-8")
    text = " ".join(Elements(page).text.split())
    assert "finished, 40 steps" in text
    assert "trained for shapes in 2 min 02 s, 25,680 denoiser calls" in text
    assert page.count('class="chart"') == 8
    assert page.count('<article class="pair fixed"') == 8
    assert page.count('<article class="pair broken"') == 2
    assert "wrong to right 8 stayed right 6 stayed wrong 2 right to wrong 2" in text
    assert "could not be scored: my/rewards.py:<b>size</b>: 1 of 18" in text
    assert all(words in text for words in ("First against last evaluation", "shapes_heldout", "packages.torch"))
    assert "Alarm." not in text


def test_odd_unicode_is_written(finished):
    """A lone surrogate, a NUL and a change of direction do not stop the page, nor turn its text around."""
    page = (finished / "report.html").read_bytes().decode("utf-8")
    assert "? alone, \U0001f469\u200d\U0001f680 and \u4e09\u4e2a\u5706" in page
    assert "right to left , then another line" in page
    assert not set(page) & set("\0\u202e")


def test_an_unchanged_run_gives_an_unchanged_page(run):
    """No time of writing, no random identifiers: a report can be compared with its former self."""
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_a_killed_run_says_so(make_run):
    """Its last line cut off and no second evaluation: curves and pictures that are there, and a note for the rest."""
    run = make_run(last_step=9)
    log = run / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    text = " ".join(Elements(write_report(run).read_text(encoding="utf-8")).text.split())
    assert "partial, 8 of 40 steps" in text
    assert "has not reached its last step" in text
    assert "cut off" in text
    assert "only one evaluation so far" in text
    assert "Of the only evaluation so far: base model." in text
    assert "First against last" not in text


def test_a_run_that_wrote_only_its_config_has_a_page(make_run):
    """Killed before the first evaluation: every absence is said once."""
    run = make_run(last_step=0)
    shutil.rmtree(run / "samples")
    for name in ("metrics.jsonl", "environment.json"):
        (run / name).unlink()
    text = " ".join(Elements(write_report(run).read_text(encoding="utf-8")).text.split())
    assert "There is no metrics.jsonl" in text
    assert "There is no environment.json" in text
    assert "has not been evaluated yet" in text
    assert "partial, 0 of 40 steps" in text


def test_a_run_without_its_config_has_a_page(run):
    """Whatever a config may hold, or not: settings are left out, the rest stands."""
    for content in ("", "rewards: 3\nmax_steps: many\neval: no\nmodel:\n"):
        (run / "config.yaml").write_text(content)
        page = write_report(run).read_text(encoding="utf-8")
        assert '<article class="pair fixed"' in page
        assert "partial, 40 steps" in page


def test_unreadable_pictures_cost_their_pairs_only(run):
    """One broken file: one pair fewer, and a note."""
    (run / "samples/step_000040/000.png").write_bytes(b"cut")
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count("<article") == 17
    assert "Some pictures could not be read" in page


def test_a_large_evaluation_is_sampled_evenly(make_run):
    """24 of 36 pairs, and the page says that no score chose them."""
    page = write_report(make_run(samples_per_prompt=4)).read_text(encoding="utf-8")
    assert page.count("<article") == MAX_PAIRS
    assert "24 of 36 pairs, spread evenly, not chosen by score" in " ".join(page.split())


def test_alarms_stand_on_the_page(run):
    """A gradient of zero in every step is said at the top."""
    log = run / "metrics.jsonl"
    log.write_text(re.sub(r'"grad_norm": [\d.]+', '"grad_norm": 0.0', log.read_text()))
    assert "exactly zero for three steps in a row from step 1 on" in write_report(run).read_text(encoding="utf-8")


def test_what_is_no_run_folder_is_refused(tmp_path):
    """Nothing is written into a folder that is not a run's."""
    with pytest.raises(UserError, match="no run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_dig_and_flatten():
    """Dotted names go in and come out; a list of tables stays JSON."""
    assert dig({"a": {"b": {"c": 1}}}, "a.b.c") == 1
    assert dig({"a": [1]}, "a.b") is None
    assert list(flatten({"a": {"b": [1, 2]}, "c": [{"d": None}], "e": None})) == [
        ("a.b", "1, 2"),
        ("c", '[{"d": null}]'),
        ("e", "null"),
    ]
