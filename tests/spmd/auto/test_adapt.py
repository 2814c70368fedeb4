"""What `auto_plan` has models compute in another way, and what it says of it."""

from __future__ import annotations

import pytest
import transformers

from spmd import Mesh, meta_parameters
from spmd._adapt.rule import Adapted
from spmd._auto.adapt import (
    adapt_layers,
    divisors,
    fit_positions,
    num_repeated,
)
from spmd._auto.heads import Piece
from spmd._auto.layout import Axes, choose_axes
from spmd._auto.model import Model, read_model
from spmd._auto.rows import Rows
from tests.spmd.hf_models import CASES


def axes(ways: int = 4, *, sequence: bool = True) -> Axes:
    return choose_axes(
        Mesh({"fsdp": 2, "tensor": ways}),
        fsdp="fsdp",
        tensor="tensor",
        expert="expert",
        sequence_parallel=sequence,
        min_shard_elements=1,
    )


def built(name: str, **changes: int) -> Model:
    with meta_parameters():
        return read_model(CASES[name].build(**changes))


@pytest.mark.parametrize(("ways", "how"), [(4, "unflatten"), (1, None)])
def test_layers_that_flatten(ways, how):
    rows = Rows()
    adapt_layers(built("opt"), axes(ways, sequence=False), rows)
    names = [f"model.decoder.layers.{i}" for i in range(2)] if how else []
    assert {n: said.what for n, said in rows.adapted.items()} == dict.fromkeys(
        names, Adapted("", "unflatten")
    )
    said = {note.what for note in rows.notes}
    assert said == {
        f"{n}: its MLP is given [batch, seq, embed] as it is, not flattened"
        for n in ["model.decoder.layers.*"][: len(names)]
    }


def test_other_layers_stay():
    rows = Rows()
    adapt_layers(built("llama"), axes(), rows)
    assert rows.adapted == {}


def test_positions_are_padded():
    rows = Rows()
    assert fit_positions(built("vit"), axes(), rows) == axes()
    assert rows.adapted["vit"].what == Adapted("", "pad_positions", 4)
    assert rows.notes[0].what == (
        "vit: 17 positions do not divide over tensor=4, so 3 are added behind the "
        "embeddings, to which none attends, and taken away behind the last norm"
    )
    assert rows.notes[0].source == "positions of ViTModel"


def test_what_is_padded_is_split_there():
    rows = Rows()
    fit_positions(built("vit"), axes(), rows)
    assert {n: said.what for n, said in rows.outputs.items()} == {
        "vit.embeddings.dropout": ("fsdp", None, None),
        "vit.embeddings": ("fsdp", "tensor", None),
    }


def test_embeddings_that_end_otherwise_are_whole():
    model = built("vit")
    del model.root.get_submodule("vit.embeddings")._modules["dropout"]
    rows = Rows()
    fit_positions(model, axes(), rows)
    assert {n: said.what for n, said in rows.outputs.items()} == {
        "vit.embeddings": ("fsdp", None, None)
    }


@pytest.mark.parametrize(
    ("name", "changes", "sequence"),
    [("vit", {}, False), ("vit", {"image_size": 24, "patch_size": 24}, True)],
    ids=["not asked for", "divides"],
)
def test_positions_that_need_nothing(name, changes, sequence):
    rows = Rows()
    ways = 4 if not sequence else 2  # one patch and one for the class
    own = axes(ways, sequence=sequence)
    assert fit_positions(built(name, **changes), own, rows) == own
    assert not rows.adapted and not rows.notes
    assert {n: s.what for n, s in rows.outputs.items()} == (
        {"vit.embeddings": ("fsdp", None, None)} if sequence else {}
    )


def test_positions_that_cannot_be_padded():
    """CLIP's are 17 too; where they come from and go is not known."""
    config = transformers.CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=8,
        image_size=32,
        patch_size=8,
    )
    with meta_parameters():
        model = read_model(transformers.CLIPVisionModel(config))
    rows = Rows()
    assert not fit_positions(model, axes(), rows).sequence
    (note,) = rows.notes
    assert not rows.adapted
    assert "17 positions do not divide over tensor=4, and CLIPVisionModel is not" in (
        note.what
    )
    assert note.what.endswith("Sizes that split it: 1, 17")


@pytest.mark.parametrize(
    ("name", "matrix", "wanted"),
    [
        ("llama-few-kv", "model.layers.0.self_attn.k_proj", 4),
        ("falcon", "transformer.h.0.self_attention.query_key_value", 4),
        ("gpt2", "transformer.h.0.attn.c_attn", None),
    ],
)
def test_heads_to_repeat(name, matrix, wanted):
    model = built(name)
    piece = Piece("k", 16, 2, "key and value heads", is_shared=True)
    assert num_repeated(model, model.matrices[matrix], piece, axes()) == wanted


def test_more_heads_than_devices_are_repeated_to_a_common_multiple():
    model = built("llama-few-kv")
    matrix = model.matrices["model.layers.0.self_attn.k_proj"]
    piece = Piece("", 48, 6, "key and value heads", is_shared=True)
    assert num_repeated(model, matrix, piece, axes()) == 12


def test_divisors():
    assert divisors(12) == "1, 2, 3, 4, 6, 12"
