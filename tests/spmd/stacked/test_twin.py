import torch
from torch import nn

from spmd._stacked.twin import twin
from tests.spmd.stacked_model import Layer


class Wrapper(nn.Module):
    """Shares what is below it with the module that it wraps, as `FSDPv2` does."""

    def __init__(self, module):
        super().__init__()
        self.__dict__["_wrapped"] = module
        for name in ("_parameters", "_buffers", "_modules"):
            self.__dict__[name] = getattr(module, name)


def test_it_has_tensors_of_its_own_and_all_else_of_the_shell():
    shell, like = Layer(), Layer()
    shell.up.name = "shell"
    like.eval()
    made = twin(shell, like, lambda tensor: tensor.detach() * 2)
    assert type(made) is Layer and made.up.name == "shell"
    assert not made.training and not made.up.training
    assert torch.equal(made.up.weight, like.up.weight * 2)
    assert torch.equal(made.mask, like.mask * 2)
    assert made.up is not shell.up and shell.up.weight is not made.up.weight


def test_what_a_wrapper_shares_is_shared_again():
    made = twin(Wrapper(Layer()), Wrapper(Layer()), torch.clone)
    inner = made.__dict__["_wrapped"]
    assert inner._modules is made._modules
    assert inner.up.weight is dict(made.named_parameters())["up.weight"]


def test_a_tensor_of_two_names_stays_one():
    shell, like = Layer(), Layer()
    for one in (shell, like):
        one.norm.weight = one.norm.bias
    made = twin(shell, like, torch.clone)
    assert made.norm.weight is made.norm.bias


def test_a_hook_that_asks_for_its_module_gets_the_twin():
    seen = []
    shell = Layer()
    shell.up.register_load_state_dict_pre_hook(lambda module, *_: seen.append(module))
    made = twin(shell, Layer(), torch.clone)
    made.load_state_dict(Layer().state_dict())
    assert seen == [made.up]
