import json
import math

import pytest

from profiling._metrics.step_record import RESERVED, StepRecord

RECORD = StepRecord(
    7,
    loss=2.5,
    scalars={"lr": 0.1},
    tokens=4000,
    tokens_per_s=8000.0,
    step_s=0.5,
    num_devices=8,
    flops=4e12,
    peak_flops=2e12,
)


def test_rates_are_of_one_device():
    assert RECORD.tps == 1000.0
    assert RECORD.tflops == 1.0  # 4e12 in half a second over 8 devices
    assert RECORD.mfu == 0.5


def test_what_is_not_known_is_none():
    empty = StepRecord(1)
    assert (empty.tps, empty.tflops, empty.mfu) == (None, None, None)
    assert StepRecord(1, flops=1e12, step_s=1.0).mfu is None


def test_json_has_all_and_scalars_among_the_rest():
    found = RECORD.as_json()
    assert found["loss"] == 2.5 and found["lr"] == 0.1 and found["mfu"] == 0.5
    assert found["grad_norm"] is None
    assert found["flops"] / (
        found["step_s"] * found["num_devices"] * found["peak_flops"]
    ) == pytest.approx(found["mfu"])
    assert set(found) - {"lr"} == RESERVED - {"time", "process"} - {"scalars"}


@pytest.mark.parametrize(
    ("loss", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_json_of_what_is_not_finite(loss, text):
    found = StepRecord(1, loss=loss).as_json()["loss"]
    assert found == text
    assert str(float(json.loads(json.dumps(found)))) == text


def test_scalars_cannot_be_changed():
    with pytest.raises(TypeError, match="does not support item assignment"):
        RECORD.scalars["lr"] = 1.0  # pyright: ignore[reportIndexIssue]
