"""`spmd explain`: text, data, exit status and bad use."""

import json

import pytest
from click.testing import CliRunner

from profiling._cli.main import main
from spmd import Plan
from tests.profiling import field_case, finding_pages


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    field, _ = field_case.compiled()
    fine, _ = finding_pages.compiled("many-small")
    waits, _ = finding_pages.compiled("synchronous")
    return (
        field.save(folder / "field.spmd"),
        fine.save(folder / "fine.spmd"),
        waits.save(folder / "waits.spmd"),
    )


def run(*args: object, code: int):
    result = CliRunner().invoke(main, ["explain", *map(str, args)])
    assert result.exit_code == code, result.output
    return result


def test_a_problem_ends_with_1(files):
    result = run(files[0], "--target", "h100:2x8", code=1)
    assert "activation-gathered" in result.output


def test_notes_end_with_0(files):
    result = run(files[1], "--target", "h100:1x8", "--notes", code=0)
    assert "many-small" in result.output


def test_data_with_proofs_and_a_plan(files, tmp_path):
    plan = tmp_path / "plan.yaml"
    result = run(
        files[0], "--target", "h100:2x8", "--json", "--verify", "--plan", plan, code=1
    )
    content = json.loads(result.stdout)
    found = {f["kind"]: f for f in content["findings"]}
    assert found["activation-gathered"]["fix"]["proof"]["gone"] is True
    waited = [f["exposed_s"] for f in content["findings"]]
    assert waited == sorted(waited, reverse=True)
    patterns = {r.pattern for r in Plan.from_yaml(plan).rules}
    assert patterns == {"up", "up.weight", "down.weight"}


def test_no_plan_is_written_where_none_changes(files, tmp_path):
    plan = tmp_path / "plan.yaml"
    result = run(files[2], "--target", "h100:1x8", "--verify", "--plan", plan, code=0)
    assert "no plan was written" in result.stderr
    assert not plan.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--target", "h100:1x8", "--plan", "p.yaml"], "--plan needs --verify"),
        (["--target", "h100:1x4"], "has 4"),
        (["--target", "nothing"], "nothing"),
    ],
)
def test_bad_use(files, args, words):
    assert words in run(files[1], *args, code=2).output


def test_files_that_are_no_programs(tmp_path):
    missing = run(tmp_path / "none.spmd", "--target", "h100:1x8", code=2)
    assert "No such file" in missing.output
    text = tmp_path / "text.spmd"
    text.write_text("no program", encoding="utf-8")
    run(text, "--target", "h100:1x8", code=2)


def test_a_plan_that_cannot_be_written(files, tmp_path):
    result = run(
        files[0],
        *("--target", "h100:2x8", "--verify", "--plan", tmp_path / "no" / "p.yaml"),
        code=2,
    )
    assert "No such file" in result.output
