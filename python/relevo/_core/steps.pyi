from collections.abc import Iterator
from typing import Self, final

import numpy as np
import numpy.typing as npt

@final
class Steps:
    """Steps of a run that are wanted. Nothing is read before they are taken; each time anew.

    As an Arrow stream: `pyarrow.table(steps)`, `polars.DataFrame(steps)`, `duckdb.from_arrow(...)`,
    `pandas.DataFrame.from_arrow(steps)`. As NumPy arrays, batch by batch: by iteration.
    """

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow PyCapsule interface: a stream of record batches. What is asked for by a schema is passed over."""

    def __iter__(self) -> StepBatches: ...

@final
class StepBatches(Iterator[dict[str, npt.NDArray[np.generic]]]):
    """Batches of steps, each a dict of arrays by column; `acted` tells step rows from closing rows.

    Tensors, ids and times are views of the file where it is not compressed, and cannot be written to. Booleans, texts,
    and numbers of which some are missing (NaN stands for those) are copies.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, npt.NDArray[np.generic]]: ...
