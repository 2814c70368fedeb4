"""Cross entropy of logits that keep their dims, against torch."""

import pytest
import torch
import torch.nn.functional as F

import spmd
from tests.spmd.same_as_torch import check_same, graph, random, shapes_of

BATCH, SEQ, VOCAB = 4, 6, 33
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def labels():
    found = torch.randint(VOCAB, (BATCH, SEQ), generator=torch.Generator())
    found[0, :2] = -100
    return found


def loss(**options):
    """What everybody writes for logits [batch, seq, vocab]."""

    def function(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), **options)

    return function


@each_dtype
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients(reduction, smoothing, dtype):
    function = loss(reduction=reduction, label_smoothing=smoothing)
    check_same(function, 3 * random(BATCH, SEQ, VOCAB), labels(), dtype=dtype)


def test_another_ignored_label():
    check_same(loss(ignore_index=3), random(BATCH, SEQ, VOCAB), labels().clamp_min(0))


def test_logits_that_were_never_flattened():
    check_same(F.cross_entropy, random(8, VOCAB), torch.arange(8))


def test_logits_far_from_zero():
    check_same(loss(), random(BATCH, SEQ, VOCAB) + 200.0, labels(), scale=100.0)


def test_classes_that_cannot_be():
    """A masked class has no part and no gradient."""
    logits = random(BATCH, SEQ, VOCAB)

    def function(logits, target):
        masked = torch.arange(VOCAB, device=logits.device) == 7
        return loss()(logits.masked_fill(masked, float("-inf")), target)

    check_same(function, logits, labels().masked_fill(labels() == 7, 8))


def test_nothing_but_ignored_labels():
    with spmd.sharding_preserving():
        found = loss()(
            random(BATCH, SEQ, VOCAB).to("xla"),
            torch.full((BATCH, SEQ), -100).to("xla"),
        )
    assert found.isnan().cpu()


def test_second_derivative():
    def gradient(logits, target):
        found = loss()(logits.tanh(), target)
        return torch.autograd.grad(found, logits, create_graph=True)[0]

    check_same(gradient, random(BATCH, SEQ, VOCAB), labels())


FLATTENED = {
    "view": lambda x: x.view(-1, VOCAB),
    "reshape": lambda x: x.reshape(-1, VOCAB),
    "a part": lambda x: x[:, :-1].reshape(-1, VOCAB),
    "in float32": lambda x: x.bfloat16().flatten(0, 1).float(),
}


@pytest.mark.parametrize("how", FLATTENED)
def test_flattening_is_undone(how):
    logits = random(BATCH, SEQ, VOCAB).to("xla").requires_grad_()
    seq = SEQ - 1 if how == "a part" else SEQ
    target = torch.zeros(BATCH, seq, dtype=torch.int64).to("xla")
    with spmd.sharding_preserving():
        found = F.cross_entropy(FLATTENED[how](logits), target.flatten())
        found.backward()
    text = graph(found, logits.grad)
    assert [BATCH, seq, VOCAB] in shapes_of(text, "exponential")
    assert [BATCH * seq, VOCAB] not in shapes_of(text, "exponential")


def test_flattening_is_undone_without_gradients():
    target = torch.zeros(BATCH * SEQ, dtype=torch.int64).to("xla")
    with spmd.sharding_preserving(), torch.no_grad():
        logits = random(BATCH, SEQ, VOCAB).to("xla") * 2
        text = graph(F.cross_entropy(logits.view(-1, VOCAB), target))
    assert shapes_of(text, "exponential") == [[BATCH, SEQ, VOCAB]]


OTHERS = {
    "weights": lambda x, t: F.cross_entropy(x, t, torch.ones_like(x[0]).detach()),
    "probabilities": lambda x, t: F.cross_entropy(x, torch.softmax(-x.detach(), 1)),
    "classes in dim 1": lambda x, t: F.cross_entropy(x.view(4, 2, -1).mT, t.view(4, 2)),
    "one token": lambda x, t: F.cross_entropy(x[0], t[0]),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_forms_are_torchs(kind):
    check_same(OTHERS[kind], random(8, VOCAB), torch.arange(8))
