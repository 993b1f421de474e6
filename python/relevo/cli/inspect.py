"""`relevo inspect`: what a model takes and gives."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from relevo._core import ModelModule
from relevo.builder import AgentBuilder
from relevo.cli.terminal import (
    BRANCHES_HELP,
    DEVICE_HELP,
    ROLE_HELP,
    SHAPE_HELP,
    facts,
    output,
    parse_branches,
    parse_roles,
    parse_shapes,
    print_json,
    prints_on_standard_error,
)
from relevo.cli.wording import for_command_line
from relevo.settings import Head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relevo._core import Contract, StateContract, TensorContract


def inspect(
    policy: Annotated[Path, typer.Argument(metavar="FILE", help="The model, such as policy.onnx.", show_default=False)],
    *,
    head: Annotated[
        Head | None,
        typer.Option(
            metavar="HEAD",
            help="Show what actors get by this head instead of the default: argmax, categorical, gaussian or raw.",
        ),
    ] = None,
    branches: Annotated[str | None, typer.Option(metavar="N,N,…", help=f"{BRANCHES_HELP}.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help=DEVICE_HELP, show_default=False)] = None,
    role: Annotated[list[str] | None, typer.Option(metavar="NAME=ROLE", help=ROLE_HELP)] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar="NAME=SIZES", help=SHAPE_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Shows a model's contract: what it takes and gives, and how that was found out.

    [bold]What does this file take and give?[/bold]

        relevo inspect policy.onnx

    [bold]Where a name does not tell what a tensor is for, say it:[/bold]

        relevo inspect policy.onnx --role input.1=observation

    [bold]What would actors get, if the output holds logits of two branches?[/bold]

        relevo inspect policy.onnx --head categorical --branches 3,2
    """
    roles, shapes = parse_roles(role or []), parse_shapes(shape or [])
    with prints_on_standard_error():
        model = ModelModule.load_from_path(policy, device=device, roles=roles, shapes=shapes)
        contract = model.contract
        actions = _actions(model, head, parse_branches(branches))
    if json:
        print_json(
            _as_dict(model, contract, head) | {"head": head or contract.default_head, "actions": actions.as_dict()}
        )
        return
    console = output()
    console.print(_tensors("inputs", contract.inputs))
    console.print(_tensors("outputs", contract.outputs))
    console.print(facts(_facts(model, contract, head, actions), title="model"))
    options = [("--head", head), ("--branches", branches), ("--device", device)]
    given = [word for name, value in options if value is not None for word in (name, value)]
    for name, values in (("--role", role), ("--shape", shape)):
        given += [word for value in values or [] for word in (name, value)]
    console.print(Text(_hint(policy, contract, given, head)), soft_wrap=True)


@dataclass(frozen=True)
class _Actions:
    """What an actor gets."""

    columns: dict[str, tuple[str, tuple[int, ...]]]
    branches: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in self.columns.items()}

    def __str__(self) -> str:
        columns = [f"{name}: {dtype} {_shape(shape)}" for name, (dtype, shape) in self.columns.items()]
        choices = f"; choices: {' × '.join(map(str, self.branches))}" if self.branches else ""
        return (", ".join(columns) or "none") + choices


def _actions(model: ModelModule, head: Head | None, branches: list[int] | None) -> _Actions:
    """By a policy of the model, which checks what was asked for. Without a head that fits there are none."""
    asked = head is not None or branches is not None
    if not asked and (model.contract.default_head is None or model.contract.unlinked):
        return _Actions({}, ())
    actors = AgentBuilder().default_model(model, head, branches=branches).actor_count(1).build().actors()
    return _Actions(actors.action_columns, actors.branches)


def _as_dict(model: ModelModule, contract: Contract, head: Head | None) -> dict[str, Any]:
    return {
        "path": str(model.path),
        "format": model.format,
        "sha256": model.sha256,
        "producer": contract.producer,
        "inputs": [_tensor_as_dict(tensor) for tensor in contract.inputs],
        "outputs": [_tensor_as_dict(tensor) for tensor in contract.outputs],
        "batch": contract.batch,
        "batch_reason": contract.batch_reason,
        "recurrent": contract.recurrent,
        "states": [_state_as_dict(state) for state in contract.states],
        "unlinked": contract.unlinked,
        "random_ops": contract.random_ops,
        "default_head": contract.default_head,
        "branches": list(contract.branches),
        "unused_actions": contract.unused_actions,
        "bounds": contract.bounds and contract.bounds.as_dict(),
        "normalization": {name: own.as_dict() for name, own in contract.normalization.items()},
        "notes": _notes(contract, head),
    }


def _tensor_as_dict(tensor: TensorContract) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "row_shape": list(tensor.row_shape),
        "batch_axis": tensor.batch_axis,
        "role": tensor.role,
        "reason": tensor.reason,
    }


def _state_as_dict(state: StateContract) -> dict[str, Any]:
    return {
        "input": state.input,
        "output": state.output,
        "dtype": state.dtype,
        "row_shape": list(state.row_shape),
        "batch_axis": state.batch_axis,
        "initial": state.initial,
    }


def _tensors(title: str, tensors: Sequence[TensorContract]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("name", style="cyan", overflow="fold")
    table.add_column("role, and why", overflow="fold")
    table.add_column("tensor, and an actor's row", overflow="fold")
    for tensor in tensors:
        if tensor.batch_axis is None:
            row = "the same for all actors"
        else:
            row = f"{_shape(tensor.row_shape)}, actors along axis {tensor.batch_axis}"
        table.add_row(
            Text(tensor.name),
            Text.assemble((tensor.role, "bold"), "\n", (tensor.reason, "dim")),
            Text.assemble(f"{tensor.dtype} {_shape(tensor.shape)}", "\n", (row, "dim")),
        )
    return table


def _shape(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


def _facts(model: ModelModule, contract: Contract, head: Head | None, actions: _Actions) -> list[tuple[str, str]]:
    default = contract.default_head or "none fits"
    if contract.unused_actions:
        default += f"; it leaves out {', '.join(contract.unused_actions)}"
    chosen = [("head", head)] if head is not None else []
    return [
        ("file", str(model.path)),
        ("format", model.format),
        ("made by", contract.producer or "not said"),
        ("batch", f"{contract.batch}: {contract.batch_reason}"),
        ("memory", _memory(contract)),
        ("random operators", ", ".join(contract.random_ops) or "none"),
        ("default head", default),
        *chosen,
        ("an actor gets", str(actions)),
        *([("bounds", f"{contract.bounds}, from the file")] if contract.bounds else []),
        *(("normalises", f"{name}, by itself: {own}") for name, own in contract.normalization.items()),
        *(("note", for_command_line(note)) for note in _notes(contract, head)),
        ("sha256", model.sha256),
    ]


def _notes(contract: Contract, head: Head | None) -> list[str]:
    """Without what speaks of the default head, where another one is asked for."""
    return [note for note in contract.notes if head is None or not note.startswith("by default ")]


def _memory(contract: Contract) -> str:
    if not contract.recurrent:
        return "none"
    states = [
        f"{state.input} <- {state.output}: {state.dtype} {_shape(state.row_shape)}, "
        f"actors along axis {state.batch_axis}, begins with {state.initial}"
        for state in contract.states
    ]
    states += [f"{name} <- ?: which output gives its next value is not known" for name in contract.unlinked]
    return "\n".join(["recurrent: each actor carries", *states])


def _hint(policy: Path, contract: Contract, given: Sequence[str], head: Head | None) -> str:
    if contract.unlinked:
        name = contract.unlinked[0]
        return f"Say which output gives the next value of {name}: relevo inspect {policy} --role {name}=state:OUTPUT"
    command = ["relevo", "run", "--policy", str(policy), "--env", "ENVIRONMENT", "--actors", "64", "--out", "runs/a"]
    command += given
    if contract.default_head is None and head is None:
        command += ["--head", "HEAD"]
    return f"Run it: {shlex.join(command)}"
