import pytest

from profiling._metrics.utilisation import Utilisation
from profiling._step.flops import StepFlops
from profiling._targets.target import Target


def test_formula_with_its_figures():
    found = Utilisation.parse(StepFlops(8e12, causal_flops=1e12), "h100")
    assert (found.flops, found.peak_flops) == (8e12, 989.5e12)
    assert found.text(8) == (
        "MFU = 8 TFLOP a step (matmuls of the traced step, recomputation left out; "
        "causal attention counted once (its masked half would add 1 TFLOP)) / (step "
        "time x 8 devices x 990 TFLOP/s bfloat16 of h100)"
    )


def test_the_peak_is_that_of_the_steps_dtype():
    flops = StepFlops(1e12, dtype="tfloat32")
    assert Utilisation.parse(flops, "h100").peak_flops == 494.7e12
    v5e = Target.parse("v5e:4x4")
    assert Utilisation.parse(1e12, v5e).peak_flops == v5e.peak_flops("bfloat16")


def test_numbers():
    found = Utilisation.parse(1e12, 2e12)
    assert found.text(1) == (
        "MFU = 1 TFLOP a step (a number that was given) / (step time x 1 device x "
        "2 TFLOP/s)"
    )


@pytest.mark.parametrize(
    ("flops", "peak", "text"),
    [
        (None, None, "no flops were given: MFU not given"),
        (
            1e12,
            None,
            "1 TFLOP a step (a number that was given); no peak was given (such as "
            "peak='h100'): MFU not given",
        ),
        (
            1e12,
            "cpu:8",
            "1 TFLOP a step (a number that was given); no peak known for cpu: MFU not "
            "given",
        ),
    ],
)
def test_why_there_is_no_mfu(flops, peak, text):
    found = Utilisation.parse(flops, peak)
    assert found.peak_flops is None
    assert found.text(8) == text


@pytest.mark.parametrize(
    ("flops", "peak", "error", "match"),
    [
        (None, "h100", ValueError, "peak='h100' without flops; MFU needs both"),
        ("many", None, TypeError, "flops='many'; a number of one step over all dev"),
        (True, None, TypeError, "flops=True; a number"),
        (0, None, ValueError, "flops=0; more than 0 is needed"),
        (1e12, -1, ValueError, "peak=-1; more than 0 is needed"),
        (1e12, [1], TypeError, r"peak=\[1\]; FLOP/s of one device, or a chip"),
        (1e12, "h101", ValueError, "h101"),
    ],
)
def test_bad_use(flops, peak, error, match):
    with pytest.raises(error, match=match):
        Utilisation.parse(flops, peak)
