from profiling._hlo.module import NO_ATTRIBUTES, Instruction, Metadata
from profiling._hlo.shape import Shape
from profiling._step.model_flops import model_flops
from profiling._timeline.flops import Matmul

Done = tuple[Instruction, Matmul, float]


def product(
    name: str, op_name: str, flops: float, times: float = 1, dtype: str = "bfloat16"
) -> Done:
    """A dot that ran."""
    metadata = Metadata(op_name)
    dot = Instruction(name, "dot", Shape("f32"), (), (), metadata, NO_ATTRIBUTES, 0)
    return dot, Matmul(flops, dtype, dot), times


FORWARD = product("dot.1", "forward/layers.0/mm", 10)
BACKWARD = [
    product("dot.2", "backward/layers.0/mm", 10),
    product("dot.3", "backward/layers.0/mm", 10),
]


def test_a_product_and_its_two_gradients():
    assert model_flops([FORWARD, *BACKWARD]) == (30, "bfloat16")


def test_a_checkpoint_that_nothing_marks():
    """The backward computes the product anew: 30 of the backward's are twice 10."""
    again = product("dot.4", "backward/layers.0/mm", 10)
    assert model_flops([FORWARD, again, *BACKWARD]) == (30, "bfloat16")


def test_gradients_that_are_missing():
    """A frozen weight has no gradient; then a checkpoint is not seen: 30, not 20."""
    assert model_flops([FORWARD, BACKWARD[0]]) == (20, "bfloat16")
    again = product("dot.4", "backward/layers.0/mm", 10)
    assert model_flops([FORWARD, again, BACKWARD[0]]) == (30, "bfloat16")


def test_jax_says_what_it_computes_again():
    again = product(
        "dot.4", "jit(f)/transpose(jvp(g))/checkpoint/rematted_computation/dot", 10
    )
    ours = [
        product("dot.1", "jit(f)/jvp(g)/dot_general", 10),
        product("dot.2", "jit(f)/transpose(jvp(g))/dot_general", 10),
    ]
    assert model_flops([ours[0], again, ours[1]]) == (20, "bfloat16")


def test_xla_names_its_clones():
    clone = product("dot.1.remat", "forward/layers.0/mm", 10)
    second = product("dot.1.remat2", "forward/layers.0/mm", 10)
    assert model_flops([FORWARD, clone, *BACKWARD, second]) == (30, "bfloat16")
    # a clone whose original is gone is the only one there is
    assert model_flops([clone, *BACKWARD, second]) == (30, "bfloat16")


def test_without_phases_every_product_counts():
    found = [product(f"dot.{i}", "", 10, times=3) for i in range(4)]
    assert model_flops(found) == (120, "bfloat16")
    assert model_flops([product("dot.1", "backward/mm", 10)]) == (10, "bfloat16")


def test_the_dtype_that_most_are_in():
    small = product("dot.9", "forward/mm", 10, dtype="tfloat32")
    large = product("dot.8", "forward/mm", 10, times=3, dtype="float8")
    assert model_flops([small, large]) == (40, "float8")
    assert model_flops([]) == (0, "bfloat16")
