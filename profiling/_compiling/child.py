"""The process that compiles: ``python -m profiling._compiling.child FOLDER``.

FOLDER holds `program.spmd` and `job.json` ({devices, flags}); beside them it gets
`result.json`, written last, and `hlo`, `partitioned` and `buffers`. Whatever the
compiler does to this process, its parent lives on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling._hlo.wire import fields

if TYPE_CHECKING:
    from spmd._pjrt.client import Device

DUMP = "dump"
_MODULE, _ASSIGNMENT = 1, 3  # fields of HloProto


def main(folder: Path) -> None:
    """Compile what a folder holds.

    Args:
        folder: The job.
    """
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        result = _compiled(folder, job)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        result = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def _compiled(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    from spmd._pjrt.compile import compile_only
    from spmd._program.program import Program

    program = Program.load(folder / "program.spmd")
    devices = _devices(job["devices"])
    if len(devices) != program.num_devices:
        raise RuntimeError(
            f"the topology has {len(devices)} devices, {program.num_devices} expected"
        )
    start = time.perf_counter()
    made = compile_only(
        program.module,
        devices,
        inputs=program.input_shardings,
        outputs=program.output_shardings,
        donated=program.donations,
        options={**job["flags"], **_dump_flags(folder / DUMP)},
    )
    elapsed = time.perf_counter() - start
    (folder / "hlo").write_bytes(made.hlo)
    _keep_dumps(folder)
    return {
        "memory": dict(made.memory),
        "compiler": " ".join(made.compiler.split()),
        "compile_s": elapsed,
    }


def _devices(said: dict[str, Any]) -> tuple[Device, ...]:
    from spmd._pjrt import compile as pjrt_compile

    if said["kind"] == "cpu":
        return pjrt_compile.cpu_devices(said["number"])
    if said["kind"] == "gpu":
        return pjrt_compile.gpu_devices(said["description"], said["topology"])
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in said["options"].items()
    }
    return pjrt_compile.tpu_devices(said["name"], **options)


def _dump_flags(folder: Path) -> dict[str, Any]:
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_as_text": False,
        "xla_dump_hlo_pass_re": "spmd-partitioning",
    }


def _keep_dumps(folder: Path) -> None:
    """Take the module after partitioning and the buffer assignment from the dumps."""
    partitioned = sorted(
        (folder / DUMP).glob("*.after_*spmd-partitioning.before_*.hlo.pb")
    )
    if partitioned:
        data = partitioned[-1].read_bytes()
        ((start, end),) = (f[2:] for f in fields(data) if f[0] == _MODULE)
        (folder / "partitioned").write_bytes(data[start:end])
    for path in sorted((folder / DUMP).glob("*after_optimizations.hlo.pb")):
        data = path.read_bytes()
        if any(number == _ASSIGNMENT for number, *_ in fields(data)):
            (folder / "buffers").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
