import json

import pytest
from click.testing import CliRunner

import flags
from flags._cli import flags_group

LEVEL = "xla_backend_optimization_level"
STEP = flags.Workload(16, 2, layer_bytes=103_000_000)


def workload_of(path, text):
    """Stands in for the one of `profiling`."""
    if text == "bad":
        raise ValueError("target 'bad': no target")
    return (STEP if path else None), "gpu"


def run(*args, env=None, given=workload_of, **more):
    variables = {"XLA_FLAGS": None, "LIBTPU_INIT_ARGS": None, "COLUMNS": "80"}
    return CliRunner().invoke(
        flags_group(given), args, env={**variables, **(env or {})}, **more
    )


HOSTS = ("--library", "torch_xla", "--library", "jaxlib")


def test_lint_fine():
    result = run("lint", f"--{LEVEL}=1", *HOSTS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "nothing to say" in result.stdout


@pytest.mark.parametrize(
    "text", [["--xla_a=1 --xla_b"], ["--xla_a=1", "--xla_b"], ["--", "--xla_a --xla_b"]]
)
def test_lint_errors(text):
    result = run("lint", *HOSTS, *text)
    assert result.exit_code == 1
    assert "do not know xla_a" in result.stdout
    assert "do not know xla_b" in result.stdout
    assert "^~~~" in result.stdout


def test_lint_from_stdin():
    assert run("lint", "-", *HOSTS, input="--xla_a\n").exit_code == 1
    assert run("lint", "-", *HOSTS, input=f"--{LEVEL}=1\n").exit_code == 0


def test_lint_strict():
    text = f"--{LEVEL}=1 --{LEVEL}=2"
    assert run("lint", text, *HOSTS).exit_code == 0
    assert run("lint", text, *HOSTS, "--strict").exit_code == 1


def test_lint_json():
    result = run("lint", "--xla_a=1", *HOSTS, "--json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert content["ok"] is False
    assert content["findings"][0]["kind"] == "unknown"
    assert content["flags"][0]["refused_by"] == ["torch_xla 2.9.0", "jaxlib 0.10.2"]


def test_lint_fix():
    result = run("lint", f"--xla_a --{LEVEL}=1 --xla_cpu_ftz=false", *HOSTS, "--fix")
    assert result.exit_code == 1
    assert result.stdout == f"--{LEVEL}=1\n"
    assert result.stderr == "for options: --xla_cpu_ftz=false\n"


def test_lint_environment(monkeypatch):
    result = run("lint", "--env", *HOSTS, env={"XLA_FLAGS": "--xla_a=1"})
    assert result.exit_code == 1
    assert "XLA_FLAGS: 1 flag" in result.stdout
    result = run("lint", "--env", "--fix", *HOSTS, env={"XLA_FLAGS": f"--{LEVEL}=1"})
    assert result.stdout == f"XLA_FLAGS=--{LEVEL}=1\n"
    result = run("lint", "--env", "--json", *HOSTS, env={"XLA_FLAGS": "--xla_a=1"})
    assert [entry["where"] for entry in json.loads(result.stdout)] == ["XLA_FLAGS"]
    result = run("lint", "--env", *HOSTS)
    assert (result.exit_code, result.stdout) == (
        0,
        "neither XLA_FLAGS nor LIBTPU_INIT_ARGS is set\n",
    )


def test_lint_both_variables(needs):
    needs("libtpu")
    both = {
        "XLA_FLAGS": f"--{LEVEL}=1",
        "LIBTPU_INIT_ARGS": "--megascale_grpc_num_channels=64",
    }
    result = run("lint", "--env", env=both)
    assert result.exit_code == 0
    assert "LIBTPU_INIT_ARGS: 1 flag, read by libtpu" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["lint"], 'give either a line, such as "--xla_a=1", or --env'),
        (["lint", "--xla_a", "--env"], "give either a line"),
        (["lint", "--xla_a", "--library", "x"], "unknown library 'x'"),
        (["lint", "--xla_a", "--where", "env"], "Invalid value for '--where'"),
        (["list", "--library", "x"], "unknown library 'x'"),
        (["show", "gpu"], "unknown preset 'gpu'"),
        (["show", "none.yaml"], "none.yaml: No such file"),
        (["show", "gpu-overlap"], "computes values from the step; give --target and"),
        (["show", "gpu-overlap", "--target", "h100:2x8"], "computes values from"),
        (["show", "gpu-overlap", "--program", "p"], "--program needs --target"),
        (["show", "gpu-overlap", "--target", "bad"], "target 'bad': no target"),
        (["show", "gpu-overlap", "--num-shards", "8"], "needs Workload.layer_bytes"),
        (["show", "gpu-overlap", "--num-shards", "0"], "Workload.num_shards is 0"),
        (["show", "cpu-debug", "--set", "a"], "--set 'a': write name=value"),
    ],
)
def test_bad_use(args, words):
    result = run(*args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_no_way_to_read_a_target():
    result = run("show", "cpu-debug", "--target", "cpu:8", given=None)
    assert result.exit_code == 2
    assert "--target cannot be read here" in result.stderr


@pytest.mark.parametrize("columns", ["80", "120"])
def test_list(columns):
    result = run("list", "combine", "threshold", *HOSTS, env={"COLUMNS": columns})
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    assert "T torch_xla 2.9.0, J jaxlib 0.10.2" in result.stdout
    assert ("31457287" in result.stdout) == (columns == "120")
    assert "autotune" not in result.stdout


def test_list_json():
    result = run("list", "autotune_level", "--json", *HOSTS)
    content = json.loads(result.stdout)
    assert [entry["library"] for entry in content] == ["torch_xla", "jaxlib"]
    assert content[1]["flags"] == [
        {
            "name": "xla_gpu_autotune_level",
            "type": "int32",
            "channels": ["XLA_FLAGS", "options"],
            "default": "4",
        }
    ]


def test_list_says_what_is_not_installed(monkeypatch):
    real = flags._library.Library.find

    def find(entry):
        if entry.name == "libtpu":
            raise flags.NotInstalledError("no")
        return real(entry)

    monkeypatch.setattr(flags._library.Library, "find", find)
    result = run("list", "autotune_level")
    assert "libtpu is not installed: pip install 'xla-spmd[tpu]'" in result.stdout


def test_show():
    result = run(
        "show", "gpu-overlap", "--target", "h100:2x8", "--program", "p", *HOSTS
    )
    assert result.exit_code == 0
    assert result.stdout == (
        "export XLA_FLAGS='--xla_gpu_reduce_scatter_combine_threshold_bytes=4194304 "
        "--xla_gpu_all_gather_combine_threshold_bytes=67108864'\n"
    )
    assert "# gpu-overlap (gpu): Hide FSDP's collectives" in result.stderr
    assert "jaxlib 0.10.2" in result.stderr
    assert all(line.startswith("#") for line in result.stderr.splitlines())


def test_show_by_figures():
    figures = ("--num-shards", "8", "--layer-bytes", "103000000")
    result = run("show", "gpu-overlap", *figures, *HOSTS)
    assert "reduce_scatter_combine_threshold_bytes=8388608" in result.stdout
    assert "all_gather" not in result.stdout
    result = run("show", "gpu-overlap", *figures, "--num-hosts", "2", *HOSTS)
    assert "all_gather_combine_threshold_bytes=67108864" in result.stdout


def test_show_with_changes_and_what_the_user_has():
    result = run(
        "show",
        "cpu-debug",
        "--set",
        "xla_cpu_ftz=false",
        "--set",
        "zzz=1",
        *HOSTS,
        env={"XLA_FLAGS": f"--{LEVEL}=3"},
    )
    assert result.stdout == ""
    assert f"# {LEVEL} stays at 3, as XLA_FLAGS has it" in result.stderr
    assert "# options: --flag xla_cpu_ftz=false" in result.stderr
    assert "# zzz is dropped" in result.stderr


def test_show_json():
    content = json.loads(run("show", "cpu-debug", "--json", *HOSTS).stdout)
    assert content["variables"] == {"XLA_FLAGS": f"--{LEVEL}=0"}


def test_show_all():
    result = run("show")
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        *flags.presets()
    ]
    content = json.loads(run("show", "--json").stdout)
    assert {entry["name"] for entry in content} == set(flags.presets())


def test_show_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"flags: {{{LEVEL}: 2}}", encoding="utf-8")
    result = run("show", str(path), *HOSTS)
    assert result.stdout == f"export XLA_FLAGS=--{LEVEL}=2\n"


def test_help():
    assert "Check a line of flags" in run("lint", "--help").stdout
    assert run("--help").exit_code == 0
