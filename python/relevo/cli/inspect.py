"""`relevo inspect`: what a model takes and gives."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from relevo._core import ModelModule
from relevo.cli.terminal import ROLE_HELP, SHAPE_HELP, facts, output, parse_roles, parse_shapes, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relevo._core import Contract, StateContract, TensorContract


def inspect(
    policy: Annotated[Path, typer.Argument(metavar="FILE", help="The model, such as policy.onnx.", show_default=False)],
    role: Annotated[list[str] | None, typer.Option(metavar="NAME=ROLE", help=ROLE_HELP)] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar="NAME=SIZES", help=SHAPE_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Shows a model's contract: what it takes and gives, and how that was found out.

    [bold]What does this file take and give?[/bold]

        relevo inspect policy.onnx

    [bold]Where a name does not tell what a tensor is for, say it:[/bold]

        relevo inspect policy.onnx --role input.1=observation
    """
    model = ModelModule.load_from_path(policy, roles=parse_roles(role or []), shapes=parse_shapes(shape or []))
    contract = model.contract
    if json:
        print_json(_as_dict(model, contract))
        return
    console = output()
    console.print(_tensors("inputs", contract.inputs))
    console.print(_tensors("outputs", contract.outputs))
    console.print(facts(_facts(model, contract), title="model"))
    console.print(Text(_hint(policy, contract, role or [], shape or [])), soft_wrap=True)


def _as_dict(model: ModelModule, contract: Contract) -> dict[str, Any]:
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
        "notes": contract.notes,
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


def _facts(model: ModelModule, contract: Contract) -> list[tuple[str, str]]:
    head = contract.default_head or "none fits"
    if contract.unused_actions:
        head += f"; it leaves out {', '.join(contract.unused_actions)}"
    if contract.branches:
        head += f"; choices: {' × '.join(map(str, contract.branches))}"
    return [
        ("file", str(model.path)),
        ("format", model.format),
        ("made by", contract.producer or "not said"),
        ("batch", f"{contract.batch}: {contract.batch_reason}"),
        ("memory", _memory(contract)),
        ("random operators", ", ".join(contract.random_ops) or "none"),
        ("default head", head),
        *(("note", note) for note in contract.notes),
        ("sha256", model.sha256),
    ]


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


def _hint(policy: Path, contract: Contract, roles: Sequence[str], shapes: Sequence[str]) -> str:
    if contract.unlinked:
        name = contract.unlinked[0]
        return f"Say which output gives the next value of {name}: relevo inspect {policy} --role {name}=state:OUTPUT"
    command = ["relevo", "run", "--policy", str(policy), "--env", "ENVIRONMENT", "--actors", "64", "--out", "runs/a"]
    for role in roles:
        command += ["--role", role]
    for shape in shapes:
        command += ["--shape", shape]
    if contract.default_head is None:
        command += ["--head", "HEAD"]
    return f"Run it: {shlex.join(command)}"
