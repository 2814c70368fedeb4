import math

import pytest
import torch
from torch import nn

from fsdpv2._recipe import Recipe, Recorder, tile_sides


def recorded(shape, initialise, seed=0, name="w"):
    with torch.device("meta"):
        tensor = torch.empty(shape)
    recorder = Recorder({name: tensor})
    with torch.no_grad(), recorder:
        initialise(tensor)
    return dict(recorder.recipes(seed=seed)), recorder, name


def recipe(shape, initialise, **options):
    found, _, name = recorded(shape, initialise, **options)
    return found[name]


def whole(made: Recipe) -> torch.Tensor:
    return made.piece(tuple(slice(0, d) for d in made.shape))


@pytest.mark.parametrize("shape", [(2500, 1300), (3, 1100, 1030), (2_000_000,), ()])
def test_a_piece_is_that_part_of_the_whole(shape):
    made = recipe(shape, nn.init.normal_)
    value = whole(made)
    assert value.shape == torch.Size(shape)
    for part in (3, 8):
        index = tuple(slice(d // part, d // 2 + d // part) for d in shape)
        assert torch.equal(made.piece(index), value[index])
    assert made.piece(tuple(slice(d, d) for d in shape)).numel() == (shape == ())


def test_numbers_have_the_distribution_and_do_not_repeat():
    value = whole(recipe((2048, 2048), lambda w: nn.init.normal_(w, 1.0, 0.5)))
    assert value.mean().item() == pytest.approx(1.0, abs=2e-3)
    assert value.std().item() == pytest.approx(0.5, abs=2e-3)
    tiles = value.reshape(2, 1024, 2, 1024).transpose(1, 2).reshape(4, -1)
    assert torch.corrcoef(tiles).fill_diagonal_(0).abs().max() < 0.01


@pytest.mark.parametrize(
    "initialise, least, most",
    [
        (lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)), -0.1, 0.1),
        (lambda w: nn.init.trunc_normal_(w, std=0.5, a=-1, b=1), -1.0, 1.0),
        (lambda w: nn.init.constant_(w, 3.0), 3.0, 3.0),
        (lambda w: nn.init.ones_(w).mul_(2).add_(1), 3.0, 3.0),
    ],
)
def test_torchs_initialisers(initialise, least, most):
    value = whole(recipe((200, 100), initialise))
    assert value.min().item() == pytest.approx(least, rel=0.01)
    assert value.max().item() == pytest.approx(most, rel=0.01)


def test_a_part_that_is_written_alone():
    def initialise(w):
        nn.init.normal_(w)
        w[3].zero_()
        w.data[:, 1:].mul_(2)

    made = recipe((8, 4), initialise)
    value = whole(made)
    assert (value[3] == 0).all() and (value[2] != 0).all()
    assert torch.equal(made.piece((slice(2, 5), slice(0, 4))), value[2:5])


def test_the_last_initialiser_counts():
    made = recipe((4,), lambda w: nn.init.constant_(nn.init.normal_(w), 2.0))
    assert len(made.steps) == 1 and whole(made).tolist() == [2.0] * 4


def test_values_on_the_host_may_be_copied_in():
    eye = torch.eye(4)
    assert torch.equal(whole(recipe((4, 4), lambda w: w.copy_(eye))), eye)


def test_seed_and_name_choose_the_numbers():
    one = whole(recipe((9,), nn.init.normal_))
    assert torch.equal(one, whole(recipe((9,), nn.init.normal_)))
    assert not torch.equal(one, whole(recipe((9,), nn.init.normal_, seed=1)))
    assert not torch.equal(one, whole(recipe((9,), nn.init.normal_, name="v")))


def test_what_is_computed_from_meta_has_no_recipe():
    found, recorder, _ = recorded((4, 4), lambda w: w.copy_(torch.ones_like(w)))
    assert found == {} and recorder.computed == {"w"}


def test_tiles_are_small():
    for shape in [(128256, 8192), (8, 4096, 14336), (10**7,), (512, 512, 3, 3)]:
        sides = tile_sides(shape)
        assert 2**17 <= math.prod(sides) <= 2**20
