import functools

import pytest
import torch_xla.distributed.fsdp.wrap as theirs
from torch import nn
from torch.distributed.fsdp import wrap as torchs

from fsdpv2 import (
    WrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from fsdpv2._policy import select


class Block(nn.Module):
    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.down(self.up(x))


class Wide(Block):
    pass


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([Block(), Wide()])
        self.norm = nn.LayerNorm(4)


LAYERS = ("layers.0", "layers.1")


@pytest.mark.parametrize(
    "policy",
    [
        Block,
        "Block",
        {"Block"},
        [Block],
        ("Block", Block),
        frozenset({Block}),
        transformer_auto_wrap_policy(Block),
        transformer_auto_wrap_policy("Block"),
        transformer_auto_wrap_policy({Block}),
        WrapPolicy(classes=("Block",)),
        functools.partial(
            torchs.transformer_auto_wrap_policy, transformer_layer_cls={Block}
        ),
        functools.partial(
            theirs.transformer_auto_wrap_policy, transformer_layer_cls={Block}
        ),
        torchs.ModuleWrapPolicy({Block}),
        functools.partial(
            torchs.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block)
        ),
        lambda module, recurse, num: recurse or isinstance(module, Block),
        lambda module, recurse, **kwargs: recurse or isinstance(module, Block),
    ],
)
def test_layers_by_class_in_every_form(policy):
    assert select(policy, Model()) == LAYERS


def test_a_subclass_by_its_own_name():
    assert select("Wide", Model()) == ("layers.1",)


def test_several_classes_inner_ones_first():
    names = select({"Block", "Linear"}, Model())
    within = ("up", "down", "")
    assert names == tuple(f"{a}.{b}".rstrip(".") for a in LAYERS for b in within)


# A block has 4*16+16 + 16*4+4 = 148 parameters, its halves 80 and 68; the embedding 40.
SIZE_POLICIES = [
    pytest.param(size_based_auto_wrap_policy, id="ours"),
    pytest.param(
        lambda n: functools.partial(
            torchs.size_based_auto_wrap_policy, min_num_params=n
        ),
        id="torch",
    ),
    pytest.param(
        lambda n: functools.partial(
            theirs.size_based_auto_wrap_policy, min_num_params=n
        ),
        id="torch_xla",
    ),
]


@pytest.mark.parametrize("make", SIZE_POLICIES)
@pytest.mark.parametrize(
    "least, names",
    [
        (100, LAYERS),
        (148, LAYERS),
        (149, ()),
        (80, ("layers.0.up", "layers.1.up")),
        (500, ()),
    ],
)
def test_by_size(make, least, names):
    assert select(make(least), Model()) == names


def reference(policy, root) -> tuple[str, ...]:
    """What torch_xla's own wrapping chooses."""
    found = []

    class Note(nn.Module):
        def __init__(self, module, **_):
            super().__init__()
            found.append(next(n for n, m in names.items() if m is module))

    names = dict(root.named_modules())
    theirs.recursive_wrap(root, policy, Note, set(), set(), only_wrap_children=True)
    return tuple(found)


@pytest.mark.parametrize(
    "policy",
    [
        functools.partial(theirs.size_based_auto_wrap_policy, min_num_params=n)
        for n in (1, 40, 68, 80, 100, 148, 300)
    ]
    + [functools.partial(theirs.lambda_auto_wrap_policy, lambda_fn=lambda m: True)],
)
def test_the_choice_is_torch_xlas(policy):
    skip = (nn.ModuleList, nn.ModuleDict)  # torch_xla would wrap these, and then raise
    root = Model()
    kinds = {name: type(m) for name, m in root.named_modules()}
    ours = select(policy, root)
    assert ours == tuple(
        n for n in reference(policy, Model()) if not issubclass(kinds[n], skip)
    )


def test_a_module_in_two_places_is_found_in_both():
    block = Block()
    root = nn.Sequential(block, nn.ReLU(), block)
    assert select(Block, root) == ("0", "2")


def test_the_root_is_never_chosen():
    assert select(size_based_auto_wrap_policy(1), nn.Linear(2, 2)) == ()


@pytest.mark.parametrize("name", ["Blocks", "block"])
def test_a_class_that_no_submodule_has(name):
    with pytest.raises(ValueError, match=rf"no submodule of Model is a '{name}'; did"):
        select({name}, Model())


def test_the_nearest_names_are_suggested():
    with pytest.raises(ValueError, match="did you mean 'Block'"):
        select("Bloc", Model())
    with pytest.raises(ValueError, match="'Bilinear'; did you mean 'Linear'"):
        select(nn.Bilinear, Model())
    with pytest.raises(ValueError, match=r"did you mean .*'Embedding'.*'Wide'"):
        select("Zzz", Model())


def test_a_root_without_submodules():
    with pytest.raises(ValueError, match="Linear has no submodules to wrap"):
        select("Block", nn.Linear(2, 2))


@pytest.mark.parametrize("policy", [3, [3], {"Block": 1}, [int]])
def test_a_policy_of_another_form(policy):
    with pytest.raises(TypeError, match=r"auto_wrap_policy=.*: give layer classes"):
        select(policy, Model())


@pytest.mark.parametrize("make", [lambda: WrapPolicy(), lambda: WrapPolicy(())])
def test_a_policy_that_chooses_by_nothing(make):
    with pytest.raises(ValueError, match="WrapPolicy: give layer classes"):
        make()
    with pytest.raises(ValueError, match="WrapPolicy: give layer classes"):
        transformer_auto_wrap_policy(())
    with pytest.raises(ValueError, match="got 0"):
        size_based_auto_wrap_policy(0)
