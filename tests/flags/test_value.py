import pytest

from flags import _oracle
from flags._catalogue import catalogue
from flags._flag import Flag
from flags._library import LIBRARIES
from flags._value import as_option, meant_number, problem, same

BOOL = Flag("xla_b", "bool", ())
TRISTATE = Flag("xla_t", "tristate", ())
INT = Flag("xla_i", "int32", ())
ENUM = Flag("xla_e", "enum", (), choices=("MODE_OFF", "MODE_ON"))
ENUMS = Flag("xla_es", "enum", (), choices=("FUSION", "CUBLAS"), repeated=True)
DETECT = Flag("xla_gpu_detect_nan", "enum", (), choices=("DETECTION_MODE_NONE",))
XLA, TPU, OPTION = "XLA_FLAGS", "LIBTPU_INIT_ARGS", "options"


# Seen by starting jaxlib 0.10.2, torch_xla 2.9.0 and libtpu 0.0.42.1 with each.
@pytest.mark.parametrize(
    ("flag", "value", "channel"),
    [
        (BOOL, None, XLA),
        (BOOL, "True", XLA),
        (BOOL, "1", XLA),
        (BOOL, "yes", TPU),
        (BOOL, "true", OPTION),
        (TRISTATE, "AUTO", TPU),
        (TRISTATE, "ENABLED", TPU),
        (INT, "-3", XLA),
        (INT, "0x100", TPU),
        (ENUM, "MODE_ON", XLA),
        (ENUM, "1", OPTION),
        (ENUM, "anything", TPU),
        (ENUMS, "", XLA),
        (ENUMS, "+fusion,-CUBLAS", XLA),
        (ENUMS, "FUSION,CUBLAS", OPTION),
        (DETECT, "none", XLA),
        (DETECT, "DETECTION_MODE_NONE", OPTION),
        (Flag("xla_f", "float", ()), "1e-3", XLA),
        (Flag("xla_u", "unknown", ()), None, XLA),
        (Flag("xla_s", "string", ()), "", XLA),
    ],
)
def test_taken(flag, value, channel):
    assert problem(flag, value, channel) is None


@pytest.mark.parametrize(
    ("flag", "value", "channel", "said"),
    [
        (BOOL, "maybe", XLA, "needs true or false"),
        (BOOL, "yes", XLA, "needs true or false"),
        (BOOL, "", XLA, "needs true or false"),
        (BOOL, "1", OPTION, "needs true or false"),
        (BOOL, "maybe", TPU, "needs true or false"),
        (TRISTATE, "1", TPU, "needs true, false or auto"),
        (INT, None, XLA, "needs a value: --xla_i=..."),
        (INT, "two", XLA, "needs a whole number"),
        (INT, "2.0", XLA, "needs a whole number"),
        (INT, "0x100", XLA, "needs a whole number"),
        (INT, "64MB", XLA, "needs a whole number (67108864)"),
        (INT, "3000000000", XLA, "needs a whole number from -2147483648 to 2147483647"),
        (ENUM, "on", XLA, "needs one of MODE_OFF, MODE_ON"),
        (ENUM, "1", XLA, "needs one of MODE_OFF, MODE_ON"),
        (ENUM, "mode_on", OPTION, "needs one of MODE_OFF, MODE_ON"),
        (ENUMS, "NOPE", XLA, "needs any of FUSION, CUBLAS"),
        (ENUMS, "+FUSION", OPTION, "needs any of FUSION, CUBLAS"),
        (DETECT, "DETECTION_MODE_NONE", XLA, "needs one of none, warning, fail"),
        (Flag("xla_f", "float", ()), "x", XLA, "needs a number"),
    ],
)
def test_not_taken(flag, value, channel, said):
    assert problem(flag, value, channel) == said


@pytest.mark.parametrize(
    ("flag", "value", "default", "is_same"),
    [
        (BOOL, None, "true", True),
        (BOOL, "1", "true", True),
        (BOOL, "False", "false", True),
        (BOOL, "true", "false", False),
        (INT, "1", "1", True),
        (INT, "1", "0", False),
        (ENUMS, "CUBLAS,FUSION", "FUSION,CUBLAS", True),
        (TRISTATE, "ENABLED", "true", True),
        (TRISTATE, "AUTO", "auto", True),
        (Flag("xla_f", "float", ()), "1.10", "1.1", True),
        (Flag("xla_s", "string", ()), "", "", True),
    ],
)
def test_same(flag, value, default, is_same):
    assert same(flag, value, default) is is_same


@pytest.mark.parametrize(
    ("text", "number"),
    [("1GB", 1 << 30), ("1.5k", 1536), ("2MiB", 2 << 20), ("x", None), ("", None)],
)
def test_sizes(text, number):
    assert meant_number(text) == number


@pytest.mark.parametrize(
    ("flag", "value", "option"),
    [
        (BOOL, "True", True),
        (BOOL, "0", False),
        (BOOL, True, True),
        (INT, "12", 12),
        (INT, 12, 12),
        (ENUM, "MODE_ON", "MODE_ON"),
    ],
)
def test_options(flag, value, option):
    found = as_option(flag, value)
    assert (found, type(found)) == (option, type(option))


def enum_settings():
    """Each enum of jaxlib with a value of it, that in lower case, and no value."""
    for flag in catalogue("jaxlib").in_channel(XLA):
        if flag.type == "enum" and flag.choices:
            last = flag.choices[-1]
            yield from ((flag, value) for value in (last, last.lower(), "NOPE_X"))


@pytest.mark.slow
def test_enums_are_taken_as_jaxlib_takes_them():
    wrong = [
        f"{flag.name}={value}"
        for flag, value in enum_settings()
        if (problem(flag, value, XLA) is None)
        != (_oracle.start(LIBRARIES["jaxlib"], f"--{flag.name}={value}")[0] == 0)
    ]
    assert wrong == []
