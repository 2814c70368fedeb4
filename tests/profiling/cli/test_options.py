"""Options that several commands have."""

import click
import pytest

from profiling._cli.options import refuse


def test_what_does_not_apply_is_refused_where_it_was_given():
    refuse(None, "--mesh", "there is none")
    refuse((), "--flag", "there is none")
    with pytest.raises(click.UsageError, match="--mesh does not apply: it has its own"):
        refuse({"fsdp": 8}, "--mesh", "it has its own")
