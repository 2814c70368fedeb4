"""Documents of made-up schedules, in the form that `Schedule.as_json` gives."""

from __future__ import annotations

from typing import Any

from profiling._targets.target import Target

NASTY = "</script><b>bold</b><!-- &amp; \u2028 '\""
LINKS = {"fsdp": "nvlink", "replica": "ib"}
MESH = {"axis_names": ["replica", "fsdp"], "shape": [2, 8], "dcn_axes": ["replica"]}


def step(num_layers: int = 4, *, small_ops: int = 3) -> dict[str, Any]:
    """A step of a transformer under FSDP on two hosts of eight H100.

    Args:
        num_layers: Each has a gather and a matmul forward, twice that backward, a
            reduction over each axis and an update.
        small_ops: Fusions after each matmul.
    """
    clock = _Clock()
    layers = range(num_layers)
    for i in layers:
        clock.gather(i, "forward")
        clock.matmul(i, "forward", 400e-6, small_ops)
    for i in reversed(layers):
        clock.gather(i, "backward")
        clock.matmul(i, "backward", 800e-6, small_ops)
        clock.reduce(i, "fsdp", "reduce-scatter")
        clock.reduce(i, "replica", "all-reduce")
    for i in layers:
        clock.compute(f"update.{i}", "fusion", 30e-6, "", "update")
    return clock.document(num_layers)


def bare() -> dict[str, Any]:
    """What a dump gives of which neither target nor mesh nor program is known."""
    document = step(2)
    for collective in document["collectives"]:
        collective.update(axes=[], link="", crosses_hosts=False, role="unknown")
        collective.update(total_s=None, hidden_s=None, exposed_s=None, module="")
        collective["moved"][0].update(role="unknown", module="")
    document.update(
        target=None, mesh=None, timeline=None, flags={}, versions={}, compile_s=None
    )
    document.update(source="dump/module_0001.step", warnings=[])
    document.update(
        notes=["no target: give it (--target h100:2x8)", "no mesh: (--mesh)"]
    )
    document["memory"].update(origin="estimate", capacity_bytes=None, at_peak=[])
    document["totals"] = _totals(document["collectives"])
    return document


class _Clock:
    def __init__(self) -> None:
        self.now = self.free = self.exposed = 0.0
        self.events: list[dict[str, Any]] = []
        self.collectives: list[dict[str, Any]] = []

    def compute(
        self, name: str, kind: str, length: float, module: str, phase: str
    ) -> None:
        self._event(name, "compute", kind, self.now, length, module, phase)
        self.now += length

    def matmul(self, i: int, phase: str, length: float, small_ops: int) -> None:
        if self.free > self.now:
            wait = self.free - self.now
            self.collectives[-1]["exposed_s"] += wait
            self.collectives[-1]["hidden_s"] -= wait
            self.exposed += wait
            self.now = self.free
        self.compute(f"dot.{phase[0]}{i}", "matmul", length, f"layers.{i}.mlp", phase)
        for j in range(small_ops):
            name = f"fusion.{phase[0]}{i}.{j}"
            self.compute(name, "fusion", 8e-6, f"layers.{i}.norm", phase)

    def gather(self, i: int, phase: str) -> None:
        name = f"all-gather-start.{phase[0]}{i}"
        self._collective(name, "all-gather", i, "fsdp", phase, 14 << 20, 450e-6)

    def reduce(self, i: int, axis: str, kind: str) -> None:
        size = (14 << 20) if axis == "fsdp" else (4 << 20)
        name = f"{kind}-start.{i}"
        self._collective(name, kind, i, axis, "backward", size, size / 4e10)

    def _collective(
        self,
        name: str,
        kind: str,
        i: int,
        axis: str,
        phase: str,
        sent: int,
        time: float,
    ) -> None:
        start = max(self.now, self.free)
        module = f"layers.{i}.mlp"
        self._event(name, "communication", kind, start, time, module, phase)
        self.free = start + time
        role = "weight gather" if kind == "all-gather" else "gradient reduction"
        size = {"fsdp": 8, "replica": 2}[axis]
        moved = {
            "role": role,
            "tensor": f"layers.{i}.mlp.weight",
            "phase": phase,
            "module": module,
            "source": f"model.py:{40 + len(kind)}",
            "shape": "bf16[512,4096]",
            "operand_bytes": sent // 7,
            "wire_bytes": sent,
        }
        self.collectives.append(
            {
                "name": name,
                "kind": kind,
                "form": "plain",
                "axes": [axis],
                "groups": "[2,8]<=[16]" if axis == "fsdp" else "[8,2]<=[2,8]T(1,0)",
                "group_size": size,
                "num_groups": 16 // size,
                "link": LINKS[axis],
                "crosses_hosts": axis == "replica",
                "dtype": "bf16",
                "operand_bytes": sent // 7,
                "output_bytes": sent,
                "wire_bytes": sent,
                "num_runs": 1,
                "moved": [moved],
                "is_async": True,
                "total_s": time,
                "hidden_s": time,
                "exposed_s": 0.0,
                "overlaps_matmul": True,
                "step_wire_bytes": sent,
                **{
                    k: moved[k] for k in ("role", "phase", "tensor", "module", "source")
                },
            }
        )

    def _event(
        self,
        name: str,
        stream: str,
        kind: str,
        start: float,
        length: float,
        module: str,
        phase: str,
    ) -> None:
        self.events.append(
            {
                "name": name,
                "stream": stream,
                "kind": kind,
                "start_s": start,
                "duration_s": length,
                "num_runs": 1,
                "module": module,
                "phase": phase,
            }
        )

    def document(self, num_layers: int) -> dict[str, Any]:
        self.events.sort(key=lambda e: e["start_s"])
        compute = sum(e["duration_s"] for e in self.events if e["stream"] == "compute")
        talk = sum(c["total_s"] for c in self.collectives)
        return {
            "format": 1,
            "name": "train_step",
            "source": "",
            "mesh": MESH,
            "target": Target.parse("h100:2x8").as_json(),
            "memory": _memory(num_layers),
            "collectives": self.collectives,
            "totals": _totals(self.collectives),
            "timeline": {
                "events": self.events,
                "step_s": compute + self.exposed,
                "compute_s": compute,
                "communication_s": talk,
                "hidden_s": talk - self.exposed,
                "exposed_s": self.exposed,
                "flops": compute * 5e14,
                "peak_flops": 989e12,
                "overlaps": {},
                "matmul_overlap_share": 0.8,
                "model_flops": None,
                "mfu": compute * 5e14 / ((compute + self.exposed) * 989e12),
            },
            "flags": {"xla_gpu_enable_latency_hiding_scheduler": True, "n": 2},
            "versions": {"jax": "0.10.2", "compiler": "XLA made up"},
            "compile_s": 4.2,
            "warnings": ["involuntary rematerialisation of <f32[8]>"],
            "notes": [],
        }


def _memory(num_layers: int) -> dict[str, Any]:
    tensors = []
    for i in range(num_layers):
        for role, dtype, each in (("parameter", "bf16", 2), ("optimizer", "f32", 4)):
            name = f"layers.{i}.mlp.weight" + (
                ".exp_avg" if role == "optimizer" else ""
            )
            tensors.append(
                _tensor(name, role, dtype, [4096, 4096], ["fsdp", None], each)
            )
        tensors.append(_tensor(f"layers.{i}.norm", "parameter", "f32", [4096], None, 4))
    tensors.append(
        _tensor("tokens", "input", "s32", [32, 2048], [["replica", "fsdp"], None], 4)
    )
    by_role: dict[str, int] = {}
    for t in tensors:
        by_role[t["role"]] = by_role.get(t["role"], 0) + t["device_bytes"]
    arguments = sum(by_role.values())
    temporaries = 6 << 30
    return {
        "origin": "compiled",
        "argument_bytes": arguments,
        "output_bytes": arguments,
        "alias_bytes": arguments - 4096,
        "temp_bytes": temporaries,
        "peak_bytes": arguments + temporaries,
        "total_bytes": arguments + temporaries + 4096,
        "capacity_bytes": Target.parse("h100:2x8").hbm_bytes,
        "argument_bytes_by_role": by_role,
        "tensors": tensors,
        "at_peak": [
            {
                "name": f"fusion.{i}",
                "num_bytes": (512 >> i) << 20,
                "shape": "bf16[2,2048,4096]",
                "op_name": f"jit(step)/layers.{i}/mlp/dot",
                "module": f"layers.{i}.mlp",
                "phase": "forward",
            }
            for i in range(6)
        ],
        "replicated": [t for t in tensors if t["copies"] > 1],
    }


def _tensor(
    name: str, role: str, dtype: str, shape: list[int], spec: Any, each: int
) -> dict[str, Any]:
    sizes = dict(zip(MESH["axis_names"], MESH["shape"], strict=True))
    ways = 1
    for entry in spec or ():
        for axis in [entry] if isinstance(entry, str) else entry or ():
            ways *= sizes[axis]
    count = 1
    for size in shape:
        count *= size
    return {
        "name": name,
        "role": role,
        "dtype": dtype,
        "shape": shape,
        "spec": spec,
        "device_bytes": count * each // ways,
        "copies": 16 // ways,
    }


def _totals(collectives: list[dict[str, Any]]) -> dict[str, Any]:
    def key(by: str, c: dict[str, Any]) -> str:
        return ", ".join(c["axes"]) or c["groups"] if by == "axes" else c[by]

    found: dict[str, Any] = {}
    for by in ("role", "axes", "kind", "phase", "link"):
        sums: dict[str, dict[str, Any]] = {}
        for c in collectives:
            start = {"key": key(by, c), "num_collectives": 0, "num_runs": 0}
            start |= {"step_wire_bytes": 0, "exposed_s": None, "hidden_s": None}
            total = sums.setdefault(key(by, c), start)
            total["num_collectives"] += 1
            total["num_runs"] += c["num_runs"]
            total["step_wire_bytes"] += c["step_wire_bytes"]
            for name in ("exposed_s", "hidden_s"):
                if c[name] is not None:
                    total[name] = (total[name] or 0.0) + c[name]
        found[f"by_{by}"] = sorted(sums.values(), key=lambda t: -t["step_wire_bytes"])
    return found
