import pytest
import torch

from spmd._warn import warn_user


class Inside(torch.nn.Module):
    def forward(self) -> None:
        warn_user("look")


def test_the_callers_line_is_named():
    with pytest.warns(UserWarning, match="look") as caught:
        warn_user("look")
    assert caught[0].filename == __file__


def test_frames_of_torch_are_passed_over():
    namespace = {"__name__": "spmd._pretend", "warn_user": warn_user}
    exec("def inner(module, args): warn_user('look')", namespace)
    module = torch.nn.Identity()
    module.register_forward_pre_hook(namespace["inner"])
    with pytest.warns(UserWarning, match="look") as caught:
        module(torch.ones(1))
    assert caught[0].filename == __file__


def test_a_users_module_in_between_is_the_user():
    with pytest.warns(UserWarning, match="look") as caught:
        Inside()()
    assert caught[0].lineno == Inside.forward.__code__.co_firstlineno + 1
