"""Small serialised modules, made by jaxlib and then changed."""

import functools

from jaxlib import _hlo

from spmd._program.hlo_proto import HloModuleProto

SMALL = """HloModule m

ENTRY e {
  a = s32[] parameter(0)
  b = s32[] constant(7)
  ROOT c = s32[] add(a, b)
}
"""


@functools.cache
def proto(text: str) -> bytes:
    """Have jaxlib serialise HLO text: once, since a module's id grows in a process."""
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def changed(**fields: object) -> bytes:
    """The small module, with fields of its last instruction changed."""
    module = HloModuleProto.FromString(proto(SMALL))
    last = module.computations[0].instructions[-1]
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(last, name)[:]
            getattr(last, name).extend(value)
        else:
            setattr(last, name, value)
    return module.SerializeToString()
