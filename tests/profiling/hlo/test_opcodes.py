import pytest

from profiling._hlo.damage import TextFault
from profiling._hlo.opcodes import COLLECTIVES, OPCODES, check_opcode, nearest


def test_jaxlibs_opcodes_are_known() -> None:
    """jaxlib names them kAllGatherStart and shortens some."""
    from jaxlib import _hlo

    squeezed = {opcode.replace("-", "") for opcode in OPCODES}
    short = {
        "clz": "countleadingzeros",
        "cos": "cosine",
        "exp": "exponential",
        "expm1": "exponentialminusone",
        "log1p": "logplusone",
        "optimizationbarrier": "optbarrier",
        "populationcount": "popcnt",
        "sin": "sine",
        "mulhi": "mulhi",
    }
    names = [name[1:].lower() for name in _hlo.HloOpcode.__members__]
    unknown = [name for name in names if short.get(name, name) not in squeezed]
    assert unknown == []


@pytest.mark.parametrize("opcode", ["all-redoce", "al-gather-start", "dynamic-slise"])
def test_misspellings_are_damage(opcode: str) -> None:
    with pytest.raises(TextFault, match=f"no opcode '{opcode}'; '{nearest(opcode)}'"):
        check_opcode(opcode, 3)


@pytest.mark.parametrize("opcode", [*COLLECTIVES, "mosaic", "topk-start", "convert"])
def test_others_pass(opcode: str) -> None:
    check_opcode(opcode, 0)
