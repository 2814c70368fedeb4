import pytest

from profiling._hlo.op_name import Scope, parse_op_name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # ours
        ("forward/layers.0.ffn.up/mm", Scope("forward", "layers.0.ffn.up", "mm")),
        ("backward/embed/index_put", Scope("backward", "embed", "index_put")),
        ("update/addcdiv", Scope("update", "", "addcdiv")),
        ("forward/select", Scope("forward", "", "select")),
        (
            "scan/call.558/forward/layers.0.up/mm",
            Scope("forward", "layers.0.up", "mm"),
        ),
        ("scan.2/while/body/call/backward/add", Scope("backward", "", "add")),
        ("scan/body/add", Scope("", "", "add")),
        ("layers.0.weight", Scope("", "", "layers.0.weight")),
        # jax
        ("jit(step)/jvp()/dot_general", Scope("forward", "", "dot_general")),
        ("jit(step)/sub", Scope("", "", "sub")),
        (
            "jit(step)/jvp(Net)/layer_0/attention/tanh",
            Scope("forward", "Net.layer_0.attention", "tanh"),
        ),
        (
            "jit(step)/transpose(jvp(Net))/layer_0/while/body/closed_call/mul",
            Scope("backward", "Net.layer_0", "mul"),
        ),
        (
            "jit(step)/transpose(jvp(Net))/layer_0/checkpoint/rematted_computation/dot",
            Scope("backward", "Net.layer_0", "dot"),
        ),
        ("jit(step)/jvp(Net)/jit(silu)/mul", Scope("forward", "Net", "mul")),
        ("jit(step)/vmap(jvp(Net/head))/add", Scope("forward", "Net.head", "add")),
        (
            "jit(step)/mul;jit(step)/transpose(jvp())/broadcast_in_dim",
            Scope("backward", "", "broadcast_in_dim"),
        ),
        ("jit(step)/mul;jit(step)/add", Scope("", "", "mul")),
        ("jit(step)/custom(name)/mul", Scope("", "custom(name)", "mul")),
        # torch_xla
        ("aten__mm", Scope("", "", "mm")),
        ("aten__mm.12", Scope("", "", "mm")),
        ("Net.1/layer.3/xla__device_data", Scope("", "Net.layer", "device_data")),
        # none
        ("", Scope()),
        ("///", Scope()),
        ("a)(/b", Scope("", "a)(", "b")),
    ],
)
def test_parse(text: str, wanted: Scope) -> None:
    assert parse_op_name(text) == wanted
