import io

from profiling._metrics.console import Console, joined, parts
from profiling._metrics.step_record import StepRecord

GIB = 2**30


def record(step: int = 10, **fields) -> StepRecord:
    return StepRecord(step, **({"loss": 8.19964, "step_s": 0.5} | fields))


def test_a_line_as_torchtitan_has_it():
    """As its metrics.py writes it, up to mfu."""
    found = parts(
        [
            record(
                1,
                grad_norm=0.5123,
                memory_bytes=int(2.65 * GIB),
                memory_limit_bytes=95 * GIB,
                memory_source="device",
                tokens_per_s=8 * 1772,
                num_devices=8,
                flops=8 * 0.5 * 0.13e12,
                peak_flops=989.5e12,
            )
        ]
    )
    assert "  ".join(found) == (
        "step:  1  loss:  8.1996  grad_norm:  0.5123  memory:  2.65GiB(2.79%)  "
        "tps: 1,772  tflops: 0.13  mfu: 0.01%  data: 0%  host: 0%"
    )


def test_what_is_not_known_is_left_out():
    assert parts([record(loss=None, step_s=0.0482)]) == [
        "step: 10",
        "time: 48.2ms",
        "data: 0%",
        "host: 0%",
    ]


def test_shares_are_those_of_the_window():
    window = [record(9, data_s=0.25), record(10, host_s=0.1, scalars={"lr": 3e-4})]
    assert parts(window)[-3:] == ["data: 25%", "host: 10%", "lr: 0.0003"]


def test_memory_says_where_it_is_from():
    compiled = record(memory_bytes=GIB, memory_source="compiled")
    assert parts([compiled])[2] == "memory:  1.00GiB(compiled)"
    assert parts([record(memory_bytes=GIB, memory_source="device")])[2] == (
        "memory:  1.00GiB"
    )


def test_compiles_are_told_when_there_are_more(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = io.StringIO()
    console = Console(stream)
    for step, number in ((1, 3), (2, 3), (3, 4), (4, None)):
        console.write([record(step, num_compiles=number)])
    lines = stream.getvalue().splitlines()
    assert [line.partition("compiles: ")[2] for line in lines] == ["3", "", "4", ""]


def test_what_does_not_fit_goes_below(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    console = Console(stream, about="MFU = a long sentence about how it is computed")
    console.write([record(grad_norm=1.0)])
    console.write([record(20)])
    assert stream.getvalue().splitlines() == [
        "MFU = a long sentence about how it is",
        "computed",
        "step: 10  loss:  8.1996",
        "    grad_norm:  1.0000  time: 500.0ms",
        "    data: 0%  host: 0%",
        "step: 20  loss:  8.1996  time: 500.0ms",
        "    data: 0%  host: 0%",
    ]
    assert joined(["a" * 50, "b"], 40).splitlines() == ["a" * 50, "    b"]


def test_it_prints_to_what_stdout_is_then(capsys):
    Console().write([record()])
    assert capsys.readouterr().out.startswith("step: 10  loss:  8.1996")
