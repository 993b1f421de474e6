from typing import final

from relevo.settings import Bounds, Normalization

@final
class Contract:
    """What a model takes and gives, as its names say and as a forward pass showed."""

    @property
    def inputs(self) -> list[TensorContract]:
        """The inputs, in the file's order."""

    @property
    def outputs(self) -> list[TensorContract]:
        """The outputs, in the file's order."""

    @property
    def batch(self) -> str:
        """`"dynamic"`, or `"one"` where the model takes one row at a time."""

    @property
    def batch_reason(self) -> str:
        """How that showed."""

    @property
    def recurrent(self) -> bool:
        """Whether the model has memory: a state on which its outputs depend."""

    @property
    def states(self) -> list[StateContract]:
        """The states that it hands on from step to step; empty where it has no memory."""

    @property
    def unlinked(self) -> list[str]:
        """Names of states that its outputs depend on, though no output is known to give their next value.

        No agent serves such a model; `roles={"h": "state:OUTPUT"}` names the output.
        """

    @property
    def random_ops(self) -> list[str]:
        """Operators inside that draw random numbers."""

    @property
    def default_head(self) -> str | None:
        """The head that is used when none is named; None where none fits."""

    @property
    def branches(self) -> tuple[int, ...]:
        """Numbers of choices of the branches of its discrete actions; empty where they are not known."""

    @property
    def unused_actions(self) -> list[str]:
        """Action outputs that the default head does not read."""

    @property
    def bounds(self) -> Bounds | None:
        """What continuous actions are brought into where no bounds are given, as the file says; None if it does not.

        `relevo.export` writes them into its files.
        """

    @property
    def normalization(self) -> dict[str, Normalization]:
        """Statistics by which the model itself normalises observations, by name, as `relevo.export` wrote them down."""

    @property
    def producer(self) -> str:
        """The tool that wrote the file."""

    @property
    def notes(self) -> list[str]:
        """What loading found out beside that, in sentences."""

@final
class StateContract:
    """A state of a recurrent model: what one step gives, and the next one takes."""

    @property
    def input(self) -> str:
        """Name of the input that takes it."""

    @property
    def output(self) -> str:
        """Name of the output that gives its value for the next step."""

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one actor's row."""

    @property
    def batch_axis(self) -> int:
        """The axis that counts the actors."""

    @property
    def initial(self) -> str:
        """What an episode begins with: `"zeros"`, or `"the model's own"`."""

@final
class TensorContract:
    """An input or output of a model, and its role."""

    @property
    def name(self) -> str:
        """Name in the file."""

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The shape with which the model runs; a string is a size that is known only then.

        It is the declared one, but for what loading corrected: an ONNX graph that was rewritten from a batch of 1 shows
        `batch`, sizes that a forward pass or `shapes` told are filled in.
        """

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one actor's row; the whole shape where there is no batch axis."""

    @property
    def batch_axis(self) -> int | None:
        """The axis that counts the actors; None for constants."""

    @property
    def role(self) -> str:
        """What it is for: `observation`, `action_mask`, `state`, `episode_mask`; `action`, `logits`, `value`, …"""

    @property
    def reason(self) -> str:
        """How the role was inferred."""
