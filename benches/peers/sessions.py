"""ONNX Runtime as the peers use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnxruntime

if TYPE_CHECKING:
    from pathlib import Path


def one_thread_session(path: Path) -> onnxruntime.InferenceSession:
    """A session with one thread, as ours has by default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
