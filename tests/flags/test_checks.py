from flags._catalogue import Catalogue
from flags._checks import Checks
from flags._flag import Flag
from flags._text import parse

TOOK = {"xla_a": Flag("xla_a", "int32", ("XLA_FLAGS", "options"), default="1")}
ONE = Catalogue("one", "1.0", TOOK)
OTHER = Catalogue("other", "2.0", {})


def checks(text, *readers, where="XLA_FLAGS"):
    found = {c.library: c for c in readers}
    return Checks(parse(text, where), where, None, found, found)


def test_who_takes_it():
    job = checks("--xla_a=2", ONE, OTHER)
    flag = job.linted(job.line.uses[0])
    assert (flag.accepted_by, flag.refused_by) == (("one 1.0",), ("other 2.0",))


def test_options_need_one_that_takes_them():
    assert [*checks("xla_a=2", ONE, OTHER, where="options").findings()] == []
    (found,) = checks("--xla_a=2", ONE, OTHER).findings()
    assert found.message.startswith("xla_a is known to one 1.0, but other 2.0 does not")


def test_findings_are_about_their_flag():
    text = "--xla_b --xla_a=x"
    found = list(checks(text, ONE).findings())
    assert [text[f.start : f.end] for f in found] == ["--xla_b", "--xla_a=x"]
