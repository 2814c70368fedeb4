"""Step records as scalars for TensorBoard, under torchtitan's tags."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling._metrics.step_record import StepRecord

_GIB = 2**30
_FLUSH_S = 10


class TensorBoard:
    """Scalars in a folder for ``tensorboard --logdir``, under torchtitan's tags.

    Written by tensorboard's own writer, which needs neither torch nor tensorflow.

    Args:
        folder: The folder; it is made.
    """

    def __init__(self, folder: Path) -> None:
        # It writes in a thread of its own; waiting for that would cost the step.
        self._writer = writer_class()(str(folder), flush_secs=_FLUSH_S)
        from tensorboard.compat.proto.event_pb2 import (
            Event,  # pyright: ignore[reportAttributeAccessIssue] - made by protoc
        )

        self._event = Event

    def write(self, records: Sequence[StepRecord]) -> None:
        """Write the numbers of each step, and those of the window once.

        Args:
            records: Of a window.
        """
        now = time.time()
        for record in records:
            scalars = tags(record)
            if record is records[-1]:
                scalars |= window_tags(records)
            event = self._event(wall_time=now, step=record.step)
            add = event.summary.value.add
            for tag, value in scalars.items():
                if value is not None:
                    add(tag=tag, simple_value=value)
            self._writer.add_event(event)

    def close(self) -> None:
        """Write what is left and end the writer's thread."""
        self._writer.close()


def tags(record: StepRecord) -> dict[str, float | None]:
    """What TensorBoard is told of each step.

    Args:
        record: The step.

    Returns:
        Values by tag.
    """
    return {
        "loss_metrics/global_avg_loss": record.loss,
        "grad_norm": record.grad_norm,
        **record.scalars,
    }


def window_tags(records: Sequence[StepRecord]) -> dict[str, float | None]:
    """What TensorBoard is told of a window.

    Args:
        records: Of a window.

    Returns:
        Values by tag, times and shares as means.
    """
    last = records[-1]
    data, host = (
        sum(getattr(r, name) for r in records) / len(records)
        for name in ("data_s", "host_s")
    )
    step_s = last.step_s
    memory, limit = last.memory_bytes, last.memory_limit_bytes
    return {
        "throughput(tps)": last.tps,
        "tflops": last.tflops,
        "mfu(%)": None if last.mfu is None else 100 * last.mfu,
        "time_metrics/end_to_end(s)": step_s,
        "time_metrics/data_loading(s)": data,
        "time_metrics/data_loading(%)": 100 * data / step_s if step_s > 0 else None,
        "time_metrics/host(s)": host,
        "time_metrics/host(%)": 100 * host / step_s if step_s > 0 else None,
        "memory/max_active(GiB)": None if memory is None else memory / _GIB,
        "memory/max_active(%)": 100 * memory / limit if memory and limit else None,
        "memory/host(GiB)": (
            None if last.host_memory_bytes is None else last.host_memory_bytes / _GIB
        ),
        "num_compiles": last.num_compiles,
    }


def writer_class() -> Any:
    """The writer of event files that tensorboard has.

    Returns:
        The class.

    Raises:
        ImportError: tensorboard is not installed.
    """
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ImportError(
            f"StepMetrics(tensorboard=...) needs tensorboard ({error}); run "
            f"pip install tensorboard, or leave it out and read json_lines"
        ) from error
    return EventFileWriter
