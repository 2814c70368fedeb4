import sys

import pytest

from profiling._metrics.step_record import StepRecord
from profiling._metrics.tensorboard import TensorBoard, writer_class

pytest.importorskip("tensorboard")


def read(folder) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: {event.step: event.value for event in found.Scalars(tag)}
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_reads_it(tmp_path):
    """Steps have a loss each; what is of the window is there once."""
    rates = {"tokens_per_s": 800.0, "num_devices": 8, "step_s": 0.5}
    board = TensorBoard(tmp_path / "tb")
    board.write(
        [
            StepRecord(1, loss=4.0, scalars={"lr": 0.5}, data_s=0.25, **rates),
            StepRecord(2, loss=2.0, memory_bytes=2**29, **rates),
        ]
    )
    board.close()
    found = read(tmp_path / "tb")
    assert found["loss_metrics/global_avg_loss"] == {1: 4.0, 2: 2.0}
    assert found["lr"] == {1: 0.5}
    assert found["throughput(tps)"] == {2: 100.0}
    assert found["time_metrics/end_to_end(s)"] == {2: 0.5}
    assert found["time_metrics/data_loading(%)"] == {2: 25.0}
    assert found["memory/max_active(GiB)"] == {2: 0.5}
    assert "mfu(%)" not in found and "grad_norm" not in found


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer", None)
    name = "tensorboard.summary.writer.event_file_writer"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=r"needs tensorboard .*pip install tensorb"):
        writer_class()
