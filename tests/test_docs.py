"""The documentation's code runs: the blocks of a page in order, in one namespace and one temporary folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

import relevo

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
CLASSES = [
    relevo.AgentBuilder,
    relevo.Agent,
    relevo.Actors,
    relevo.ActionBatch,
    relevo.Episode,
    relevo.Run,
    relevo.RunWriter,
    relevo.Steps,
    relevo.ModelModule,
    relevo.Contract,
    relevo.StateContract,
    relevo.TensorContract,
    relevo.CollectResult,
    relevo.envs.ProcessVectorEnv,
    relevo.export.ExportReport,
    relevo.trajectories.EpisodeData,
    relevo.trajectories.ExportResult,
]
# A comment above a block names the packages without which it does not run.
FENCED = re.compile(r"(?:^<!-- needs: ([\w, ]+) -->\n\n)?^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    lines_before: int
    """Lines of the page above the first one of the block."""
    needs: tuple[str, ...]

    @property
    def absent(self) -> list[str]:
        """What it needs and is not installed."""
        specs = {name: importlib.util.find_spec(name) for name in self.needs}
        # A folder without a module in it, such as `tests/torchscript`, has no origin.
        return [name for name, spec in specs.items() if spec is None or spec.origin is None]


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    shown_output: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks = [
        Block(match[2], match[3], text.count("\n", 0, match.start(3)), tuple(re.findall(r"\w+", match[1] or "")))
        for match in FENCED.finditer(text)
        if match[2] == "python" or commands_of(match[3])
    ]
    # One that is indented, or has words after its language, would be passed over in silence.
    assert sum(block.language == "python" for block in blocks) == len(re.findall(r"```\s*py", text)), page.name
    return blocks


def commands_of(console: str) -> list[Command]:
    """The commands `$ relevo …`, each with the lines shown below it; other commands are not run."""
    sessions = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    commands = []
    for session in sessions:
        line, _, output = session.partition("\n")
        program, *arguments = shlex.split(line)
        if program == "relevo":
            commands.append(Command(arguments, output))
    return commands


def run(command: Command) -> None:
    program = Path(sysconfig.get_path("scripts")) / "relevo"
    done = subprocess.run(
        [program, *command.arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, f"relevo {shlex.join(command.arguments)}\n{done.stdout}\n{done.stderr}"
    if command.arguments[-1] == "--help":
        assert words(command.shown_output) == words(done.stdout)


def words(text: str) -> list[str]:
    """The text without its frames and line breaks."""
    return [word for word in text.split() if word.strip("─│╭╮╰╯")]


def write_policies(folder: Path) -> None:
    """The files that the pages name."""
    for example in ("guide_policies.py", "cartpole_policy.py"):
        target = folder / "cartpole.onnx" if example == "cartpole_policy.py" else folder
        subprocess.run([sys.executable, REPOSITORY / "examples" / example, target], check=True, capture_output=True)


def test_there_are_blocks() -> None:
    assert any(blocks_of(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(page)
    if not blocks:
        pytest.skip(f"{page.name} has no code to run")
    monkeypatch.chdir(tmp_path)
    write_policies(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    absent = sorted({name for block in blocks for name in block.absent})
    for block in blocks:
        if block.absent:
            continue
        if block.language == "python":
            # With the page's line numbers, so that a traceback points into the page.
            code = compile("\n" * block.lines_before + block.text, str(page), "exec")
            exec(code, namespace)  # noqa: S102  (the project's own pages)
        else:
            for command in commands_of(block.text):
                run(command)
    if absent:
        passed_over = sum(bool(block.absent) for block in blocks)
        pytest.skip(f"{passed_over} of {len(blocks)} blocks were passed over; not installed: {', '.join(absent)}")


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_the_reference_has_the_names_of(public: type) -> None:
    text = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    section = next(part for part in text.split("\n### ") if public.__name__ in re.findall(r"\w+", part.split("\n")[0]))
    names = {name for name in dir(public) if not name.startswith("_")}
    # A dataclass's fields are not among its attributes.
    names |= set(getattr(public, "__dataclass_fields__", ()))
    # In the first cell of a row: `name`, `name(…)`, `.name`, `Class.name`.
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    spans = [span for cell in cells for span in re.findall(r"`(.+?)`", cell)]
    shown = {match[1] for span in spans if (match := re.match(r"(?:[A-Z]\w+)?\.?(\w+)", span))}
    assert names - shown == set()


def test_the_reference_has_every_public_name() -> None:
    text = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    modules = (relevo, relevo.envs, relevo.export, relevo.kernels, relevo.trajectories)
    names = [name for module in modules for name in module.__all__]
    missing = [name for name in names if not name.startswith("_") and not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
