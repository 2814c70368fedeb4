"""Counts of traced steps, held against the closed form of a decoder."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2
from profiling._metrics.step_record import StepRecord
from profiling._step.flops import StepFlops, flops_of
from tests.profiling.hlo_files import parse

DIM, HIDDEN, HEADS, LAYERS = 32, 64, 4, 2
BATCH, SEQ, VOCAB = 8, 16, 128


class Block(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def traced(*, causal: bool = True, **options) -> spmd.Program:
    blocks = nn.Sequential(*(Block(causal) for _ in range(LAYERS)))
    network = nn.Sequential(nn.Embedding(VOCAB, DIM), blocks, nn.Linear(DIM, VOCAB))
    model = FSDPv2(network, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(tokens):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = torch.empty(BATCH, SEQ, dtype=torch.int64, device="meta")
    return spmd.trace(step, tokens, model=model, optimizer=optimizer)


def closed_form(*, causal: bool) -> tuple[float, float]:
    """6 FLOPs of each weight and token but the table's, 12 of each pair of tokens."""
    weights = LAYERS * (4 * DIM * DIM + 2 * DIM * HIDDEN) + DIM * VOCAB
    attention = LAYERS * 12 * DIM * SEQ * SEQ * BATCH
    linear = 6 * weights * BATCH * SEQ
    return linear + attention / (2 if causal else 1), attention / 2 if causal else 0.0


@pytest.mark.parametrize(
    ("causal", "options"),
    [
        (True, {}),
        (False, {}),
        (True, {"remat": "full", "auto_wrap_policy": "Block"}),
        (True, {"scan_layers": True}),  # a loop, with full rematerialisation
    ],
    ids=["causal", "full", "remat", "scan"],
)
def test_a_decoders_step(causal, options):
    found = profiling.step_flops(traced(causal=causal, **options))
    assert (found.flops, found.causal_flops) == closed_form(causal=causal)
    assert found.dtype == "tfloat32"
    assert found.is_exact
    assert ("causal attention counted once" in found.text) == causal


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    found = flops_of(
        parse("""HloModule m
cond {
  p = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  m = f32[4,4] get-tuple-element(p), index=1
  n = s32[] constant(5)
  x = f32[] constant(1)
  f = f32[4,4] broadcast(x), dimensions={}
  ROOT c = pred[] compare(i, i), direction=LT
}
body {
  p = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  m = f32[4,4] get-tuple-element(p), index=1
  d = f32[4,4] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[4,4]) tuple(i, d)
}
ENTRY e {
  i = s32[] parameter(0)
  m = f32[4,4] parameter(1)
  s = (s32[], f32[4,4]) tuple(i, m)
  ROOT w = (s32[], f32[4,4]) while(s), condition=cond, body=body
}
""")
    )
    assert found.flops == 2 * 4 * 4 * 4
    assert not found.is_exact
    assert found.text.endswith("a loop of unknown length counted as one trip")


def test_only_programs_are_counted():
    with pytest.raises(TypeError, match=r"step_flops: 'x'; a Program is needed"):
        profiling.step_flops("x")  # pyright: ignore[reportArgumentType]


def test_one_device_has_its_share():
    found = StepFlops(8e12, 2e12, "float32", False).of_one(4)
    assert found == StepFlops(2e12, 0.5e12, "float32", False)


@pytest.mark.parametrize("causal", [True, False])
def test_mfu_is_the_same_before_and_while_a_step_runs(causal):
    """Of a `Schedule` it is an estimate, of `StepMetrics` measured: of the same."""
    program = traced(causal=causal)
    schedule = profiling.compile(program, "cpu:8")
    found = schedule.timeline
    assert found is not None
    wanted, left_out = closed_form(causal=causal)
    record = StepRecord(
        1, step_s=found.step_s, num_devices=8, flops=wanted, peak_flops=found.peak_flops
    )
    assert found.model_flops == pytest.approx(wanted / 8, rel=1e-12)
    assert found.mfu == pytest.approx(record.mfu, rel=1e-12)
    assert found.flops == pytest.approx((wanted + left_out) / 8, rel=1e-12)
    alone = profiling.analyse(schedule.module, target="cpu:8").timeline
    assert alone is not None
    assert alone.model_flops is None
    assert alone.mfu == pytest.approx(found.flops / (alone.step_s * alone.peak_flops))
