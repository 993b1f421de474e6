"""What a training loop hands to `Agent.update_model`: a module, as the bytes of a TorchScript file."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relevo.errors import ConfigError, ContractError, ExportError, ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

    from relevo._core import Contract
    from relevo.export.constants import Snapshot
    from relevo.export.torch_model import TorchModel

TAKES = "update_model takes a path, bytes, a ModelModule, a torch.nn.Module, or a model of Stable-Baselines3"

TOLERANCE = 5e-5
"""How far a trace may be from its module, relative plus absolute."""
SWITCH_INTERVAL = 0.0002
"""Seconds."""

EPISODE_ROLES = ("episode_mask", "episode_start")
"""Roles of inputs that tell whether an episode goes on."""

ROLES = {"q_values": "action_values"}
"""Roles of outputs that are not called by their role."""


@dataclass(frozen=True)
class _Trace:
    """The trace of a module, which later updates fill with new weights."""

    script: torch.jit.ScriptModule
    names: tuple[str, ...]
    limits: tuple[float | None, ...]
    """Of normalised observations: constants of the trace."""
    device: str
    constants: Snapshot


_ONE_AT_A_TIME = threading.Lock()
_TRACES: weakref.WeakKeyDictionary[nn.Module, _Trace] = weakref.WeakKeyDictionary()


def torchscript(
    source: Any,  # noqa: ANN401 : whatever a user gives
    contract: Contract,
    device: str,
    normalizes: bool,
) -> tuple[bytes, str, dict[str, tuple[int, ...]], dict[str, str]]:
    """The bytes of a TorchScript file of `source`, a name for messages, and the shapes and the roles of its inputs.

    Args:
        source: a module, or a model of Stable-Baselines3.
        contract: what the model that serves takes and gives. Its shapes are those of the inputs.
        device: where the policy runs.
        normalizes: whether the policy normalises observations itself, or nothing shall; without it the statistics of
            the source go before the module, or else those that the file that serves was exported with.

    Raises:
        ConfigError: the source is no module.
        ContractError: it has NaN in its weights or no values in them, or gives another number of tensors.
        ModelLoadError: neither a trace nor a script gives what it gives.
    """
    try:
        # A folder of that name, which Python would import as well, has no `nn`.
        from torch import nn  # noqa: F401 : what is imported next needs it
    except ImportError:
        raise ConfigError(
            f"{TAKES}, but {type(source).__name__} came, and a module takes relevo[torch], which is not installed: pip "
            'install "relevo[torch]" (in a checkout of the repository: make demo-torch)'
        ) from None
    from relevo.export.comparison import Comparison, UnsuitableInputError
    from relevo.export.declared import FILE, declared
    from relevo.export.evaluation import evaluating
    from relevo.export.scripting import argument_names
    from relevo.export.starts import check_start
    from relevo.export.weights import fault

    if any(state.input == state.output for state in contract.states):
        if contract.normalization and not normalizes:
            raise ContractError(
                "the model that serves normalises its observations, by statistics that were exported with it, and they "
                "cannot go before a module that keeps its memory in its attributes; give them to "
                "update_model(module, normalization=contract.normalization), or {} for none"
            )
        return _with_memory(source, contract, device)
    model = _torch_model(source, contract, normalizes)
    if not normalizes and not any(model.statistics):
        known = tuple(contract.normalization.get(tensor.name) for tensor in contract.inputs)
        model = replace(model, statistics=known if any(known) else ())
    if (wrong := fault(model.core)) is not None:
        raise ContractError(f"the new {type(model.core).__name__} {wrong}; the policy keeps its model")
    name = f"the module {type(model.core).__name__}"
    names = dict(zip((own.name for own in model.inputs), argument_names(model.inputs), strict=True))
    shapes = {names[own.name]: own.row_shape for own in model.inputs}
    # As the model that serves pairs them, whatever the module's own results are called.
    roles = {names[state.input]: f"state:{state.output}" for state in contract.states if state.input in names}
    episodes = zip(contract.inputs, model.inputs, strict=True)
    roles |= {names[own.name]: known.role for known, own in episodes if known.role in EPISODE_ROLES}
    try:
        with _ONE_AT_A_TIME, _short_turns(), evaluating(model.core, device) as core:
            check_start(model, core, device)
            script = _script(model, core, Comparison(model, core, device))
            about = declared(model, list(names.values()), with_types=False)
            return script.save_to_buffer(_extra_files={FILE: about}), name, shapes, roles
    except ConfigError as error:
        raise ContractError(
            f"the new model does not fit the one that serves: {error}; the policy keeps its model. Give a module that "
            "gives the same, or make another policy of it"
        ) from error
    except UnsuitableInputError as error:
        taken = ", ".join(f"{own.name} {own.dtype} {own.row_shape} for each actor" for own in model.inputs)
        raise ContractError(
            f"the new model does not fit the one that serves, which takes {taken}: {error}; the policy keeps its model"
            f"{_about_states(model) or '. Give a module that takes the same, or make another policy of it'}"
        ) from error
    except ExportError as error:
        raise ModelLoadError(f"{name} cannot be loaded: {error}{_about_states(model)}") from error


def _with_memory(
    source: Any,  # noqa: ANN401
    contract: Contract,
    device: str,
) -> tuple[bytes, str, dict[str, tuple[int, ...]], dict[str, str]]:
    """A module that keeps its memory in its attributes, as the one that serves: a trace would not see them change."""
    import torch

    from relevo.export.evaluation import evaluating
    from relevo.export.matching import places
    from relevo.export.source import unwrapped
    from relevo.export.weights import fault

    try:
        module = unwrapped(source)
    except ConfigError:
        raise ConfigError(f"{TAKES}, but {type(source).__name__} came") from None
    name = f"the module {type(module).__name__}"
    if (wrong := fault(module)) is not None:
        raise ContractError(f"the new {type(module).__name__} {wrong}; the policy keeps its model")
    kept = {state.input for state in contract.states if state.input == state.output}
    taken = [tensor for tensor in contract.inputs if tensor.name not in kept]
    rows, names = [tensor.row_shape for tensor in taken], [tensor.name for tensor in taken]
    try:
        with _ONE_AT_A_TIME, evaluating(module, device) as core:
            script = torch.jit.script(core)
            arguments = [argument.name for argument in script.forward.schema.arguments[1:]]
            data = script.save_to_buffer()
    except Exception as error:
        raise ModelLoadError(
            f"{name} cannot be loaded: the model that serves keeps memory in its attributes, and such a module must be "
            f"one that torch.jit.script takes: {error}"
        ) from error
    # As the file itself is served, its arguments stay in their order.
    if places(arguments[: len(names)], names, len(names), "inputs") is not None:
        raise ContractError(
            f"the new model does not fit the one that serves: the inputs are {', '.join(names)}, but forward takes "
            f"{', '.join(arguments)}; the policy keeps its model. Bring the arguments into that order"
        )
    return data, name, dict(zip(arguments, rows, strict=False)), {}


def _torch_model(source: Any, contract: Contract, normalizes: bool) -> TorchModel:  # noqa: ANN401
    """The source with the outputs of the model that serves, whose constants are kept."""
    from relevo.export import actor_critic, stable_baselines
    from relevo.export.inputs import of_contract
    from relevo.export.matching import ContradictionError
    from relevo.export.modules import Selected
    from relevo.export.source import of_module, torch_model, unwrapped

    wanted = [tensor for tensor in contract.outputs if tensor.role != "constant"]
    names = tuple(tensor.name for tensor in wanted)
    if stable_baselines.find(source) is not None:
        model = torch_model(source, None, None, None, {} if normalizes else None)
    else:
        try:
            module = unwrapped(source)
        except ConfigError:
            raise ConfigError(f"{TAKES}, but {type(source).__name__} came") from None
        inputs = of_contract(contract)
        if not actor_critic.is_one(module):
            states = {state.input: state.output for state in contract.states}
            try:
                return of_module(module, inputs, names, states=states)
            except ContradictionError as error:
                raise ContractError(
                    f"the new model does not fit the one that serves: {error}; the policy keeps its model"
                ) from None
        model = of_module(module, inputs, None)
    own = [ROLES.get(name, name) for name in model.outputs]
    # States have one role, and are told apart by their names.
    sought = [tensor.name if tensor.role == "state" else tensor.role for tensor in wanted]
    missing = [tensor.name for tensor, name in zip(wanted, sought, strict=True) if name not in own]
    if missing or len(model.inputs) != len(contract.inputs):
        raise ContractError(
            f"{type(source).__name__} gives {', '.join(model.outputs)} for {len(model.inputs)} inputs, but the model "
            f"that serves gives {', '.join(names)} for {len(contract.inputs)}; let the policy begin with a file that "
            "relevo.export wrote of it"
        )
    positions = [own.index(name) for name in sought]
    wrap = model.wrap
    return replace(model, wrap=lambda core: Selected(wrap(core), positions), outputs=names, branches=(), witness=None)


def _about_states(model: TorchModel) -> str:
    """What to do about a module that failed with room for one argument alone, where its states are more."""
    states = [given.name for given in model.inputs if given.is_state]
    try:
        parameters = list(inspect.signature(model.core.forward).parameters.values())
    except (TypeError, ValueError):  # scripted
        return ""
    if not states or len(parameters) != 1 or parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return ""
    taken = ", ".join([*(given.name for given in model.inputs if not given.is_state), *states])
    return (
        f". The policy is recurrent, but forward takes `{parameters[0].name}` alone, a dict of all inputs therefore; "
        f"let it take {', '.join(states)} too, as in forward({taken}), and return their next values, or make another "
        "policy of a module without states"
    )


def _script(model: TorchModel, core: nn.Module, comparison: Any) -> torch.jit.ScriptModule:  # noqa: ANN401
    from relevo.export.comparison import DisagreementError
    from relevo.export.constants import constants
    from relevo.export.scripting import named, runner, scripted

    known, own = _TRACES.get(model.core), constants(model.core)
    limits = tuple(None if statistics is None else statistics.clip for statistics in model.statistics)
    now = (model.names, limits, comparison.device, own)
    # The rows that are compared need not meet what a constant decides, such as a limit.
    if known is not None and (known.names, known.limits, known.device, known.constants) == now:
        try:
            known.script.load_state_dict(named(model, core, "dict").state_dict())
            comparison.largest_difference(runner(model, known.script, comparison.device), TOLERANCE)
        except (DisagreementError, RuntimeError):
            # Other layers, or values from elsewhere that the trace holds as constants: it is made anew.
            del _TRACES[model.core]
        else:
            return known.script
    script, _ = scripted(model, core, comparison, TOLERANCE, "dict")
    _TRACES[model.core] = _Trace(script, model.names, limits, comparison.device, own)
    return script


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Lets threads that act have the interpreter's lock sooner: by default they wait 5 ms for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_INTERVAL))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
