import pytest

from flags._workload import CONDITIONS, DEFAULT_BYTES, FORMULAS, Workload

MB = 1 << 20
GATHER, SCATTER = FORMULAS["all_gather_threshold"], FORMULAS["reduce_scatter_threshold"]


# Layers of the decoders that the rule was found on: d=2048 and d=4096, bf16.
@pytest.mark.parametrize(
    ("layer", "shards", "gather", "scatter"),
    [
        (103 * 10**6, 16, 64 * MB, 4 * MB),
        (103 * 10**6, 8, 64 * MB, 8 * MB),
        (486 * 10**6, 16, 256 * MB, 16 * MB),
        (486 * 10**6, 8, 256 * MB, DEFAULT_BYTES),
        (1, 8, 1, 1),
    ],
)
def test_thresholds(layer, shards, gather, scatter):
    step = Workload(shards, layer_bytes=layer)
    assert (GATHER(step), SCATTER(step)) == (gather, scatter)


@pytest.mark.parametrize(
    ("layer", "shards", "size"),
    [
        (436 * 10**6, 8, 64 * MB),
        (1946 * 10**6, 8, 256 * MB),
        (103 * 10**6, 8, DEFAULT_BYTES),
    ],
)
def test_all_reduces_carry_a_layers_shard(layer, shards, size):
    step = Workload(shards, layer_bytes=layer)
    assert FORMULAS["all_reduce_threshold"](step) == size


def test_no_more_than_all_gradients():
    step = Workload(4, layer_bytes=100 * MB, gradient_bytes=8 * MB)
    assert SCATTER(step) == 2 * MB


def test_the_default_is_xlas():
    from flags import catalogue

    for name in ("all_gather", "reduce_scatter"):
        flag = f"xla_gpu_{name}_combine_threshold_bytes"
        for library in ("torch_xla", "jaxlib"):
            assert catalogue(library).flags[flag].default == str(DEFAULT_BYTES)


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_a_figure_that_is_missing(formula):
    with pytest.raises(ValueError, match=r"needs Workload\.layer_bytes, which is not"):
        formula(Workload(8))


@pytest.mark.parametrize(
    "figures",
    [
        {"num_shards": 0},
        {"num_hosts": 0},
        {"layer_bytes": -1},
        {"gradient_bytes": 0},
        {"num_copy_hosts": 0},
    ],
)
def test_figures_are_above_zero(figures):
    (name,) = figures
    with pytest.raises(ValueError, match=rf"Workload\.{name} is -?\d; it must be 1"):
        Workload(**{"num_shards": 8, **figures})


def test_conditions():
    steps = [Workload(8), Workload(16, 2), Workload(8, num_copy_hosts=2)]
    met = {name: [test(step) for step in steps] for name, test in CONDITIONS.items()}
    assert met == {
        "several hosts": [False, True, False],
        "one host": [True, False, True],
        "several shards": [True, True, True],
        "copies on several hosts": [False, False, True],
    }
    assert not CONDITIONS["copies on several hosts"](Workload(1, num_copy_hosts=2))
    assert not CONDITIONS["several shards"](Workload(1))
