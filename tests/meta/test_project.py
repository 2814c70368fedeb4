"""House rules that a program can check, for each of our packages that exists."""

import ast
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Package -> our packages that it may import, apart from itself.
ARROWS = {
    "spmd": set(),
    "fsdpv2": {"spmd"},
    "flags": set(),
    "profiling": {"spmd", "flags"},
}
NOT_FOR_PACKAGES = {"examples", "benchmarks", "tests"}
PACKAGES = [name for name in ARROWS if (ROOT / name).is_dir()]
FILES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]

# Importing any of these loads none of HEAVY.
PURE_PACKAGES = ("spmd", "flags", "profiling")
PURE_FILES = {
    "spmd/__init__.py",
    "spmd/_meshes/mesh.py",
    "spmd/_plans/plan.py",
    "spmd/_program/program.py",
    "spmd/_meshes/spec.py",
}
PURE_MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if path.relative_to(ROOT).parts[0] in {"flags", "profiling"}
    or path.relative_to(ROOT).as_posix() in PURE_FILES
]
HEAVY = ("torch", "torch_xla", "jax", "jaxlib")

TORCH_XLA_SEAM = (
    "spmd/_torch_xla/seam.py",
    "spmd/_torch_xla/graph.py",
    "spmd/_torch_xla/profile.py",
    "spmd/_torch_xla/scan.py",
    "spmd/_torch_xla/trace.py",
)
JAX_SEAM = (
    "spmd/_pjrt/client.py",
    "spmd/_pjrt/compile.py",
    "spmd/_pjrt/processes.py",
    "spmd/_pjrt/profile.py",
)

each_package = pytest.mark.parametrize("package", PACKAGES)
each_file = pytest.mark.parametrize(
    "path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix()
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(package: str) -> list[tuple[str, object]]:
    """The public names of a package with what they stand for."""
    module = importlib.import_module(package)
    return [(name, getattr(module, name)) for name in module.__all__]


def sort_key(name: str) -> tuple[int, str]:
    """The order ruff gives to `__all__`: constants, classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of a function's body, without those of functions nested in it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


def raises(function: Function) -> bool:
    """Whether the body raises something of its own; a bare `raise` passes one on."""
    return any(isinstance(n, ast.Raise) and n.exc for n in own_nodes(function))


def undocumented_raises(name: str, value: object) -> Iterator[str]:
    """Callables of a public function or class that raise, but do not say what."""
    target = inspect.unwrap(value)
    tree = ast.parse(textwrap.dedent(inspect.getsource(target))).body[0]
    if isinstance(tree, Function):
        if raises(tree) and "Raises:" not in (target.__doc__ or ""):
            yield name
        return
    assert isinstance(tree, ast.ClassDef), f"{name} is neither function nor class"
    for method in tree.body:
        if not isinstance(method, Function) or not raises(method):
            continue
        documented = ast.get_docstring(method) or ""
        if method.name in {"__init__", "__new__", "__post_init__"}:
            documented += target.__doc__ or ""
        elif method.name.startswith("_"):
            continue
        if "Raises:" not in documented:
            yield f"{name}.{method.name}"


def dotted(node: ast.AST) -> str:
    """`a.b.c` for nested attributes of a name, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def imported(path: Path) -> Iterator[str]:
    """Absolute dotted names that a file imports anywhere, `import_module` included."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Level 2 in profiling/hlo/_read.py: ("profiling", "hlo")[:1] = profiling.
            up = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*up, *filter(None, [node.module])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name, first = dotted(node.func), node.args[0]
            if name.rpartition(".")[2] in {"import_module", "__import__"}:
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def names_used(path: Path) -> Iterator[str]:
    """What `imported` gives, and every dotted expression and name of a file."""
    yield from imported(path)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute):
            yield dotted(node) or node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def test_there_are_packages():
    assert {"spmd", "fsdpv2"} <= set(PACKAGES)


@each_package
def test_all_resolves_sorted_and_without_repeats(package):
    names = importlib.import_module(package).__all__
    assert names == sorted(set(names), key=sort_key)
    assert [name for name, value in public(package) if value is None] == []


@each_package
def test_public_names_have_docstrings(package):
    missing = [
        name
        for name, value in public(package)
        if isinstance(value, type | types.ModuleType) or inspect.isroutine(value)
        if not value.__doc__
    ]
    assert importlib.import_module(package).__doc__
    assert missing == []


@each_package
def test_public_callables_document_what_they_raise(package):
    missing = [
        found
        for name, value in public(package)
        if isinstance(value, type) or inspect.isroutine(value)
        if value.__module__.partition(".")[0] in ARROWS
        for found in undocumented_raises(name, value)
    ]
    assert missing == []


@each_package
def test_package_is_typed(package):
    assert (ROOT / package / "py.typed").is_file()


@each_package
def test_import_leaves_the_environment_alone(package, run_script):
    # torch_xla itself writes variables when imported: not ours to answer for.
    theirs = "" if package in PURE_PACKAGES else "import torch, torch_xla"
    result = run_script(
        f"""
        import os
        {theirs}
        before = dict(os.environ)
        import {package}
        after = dict(os.environ)
        changed = {{k for k in before | after if before.get(k) != after.get(k)}}
        assert not changed, f"importing {package} wrote {{sorted(changed)}}"
        """
    )
    assert result.rc == 0, result.stderr


def test_pure_modules_load_nothing_heavy(run_script):
    result = run_script(
        f"""
        import importlib, sys
        for name in {PURE_MODULES!r}:
            importlib.import_module(name)
            loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]
            assert not loaded, f"importing {{name}} loads {{loaded}}"
        """
    )
    assert result.rc == 0, result.stderr


@each_file
def test_imports_follow_the_arrows(path):
    package = path.relative_to(ROOT).parts[0]
    forbidden = (ARROWS.keys() | NOT_FOR_PACKAGES) - ARROWS[package] - {package}
    assert {name.partition(".")[0] for name in imported(path)} & forbidden == set()


@each_file
def test_torch_xla_internals_stay_behind_the_seam(path):
    if path.relative_to(ROOT).as_posix() in TORCH_XLA_SEAM:
        pytest.skip("the seam")
    internal = re.compile(r"(.*\.)?_XLAC(\..*)?|torch_xla(\.\w+)*\._[a-z]\w*(\..*)?")
    found = {name for name in names_used(path) if internal.fullmatch(name)}
    found |= {n for n in imported(path) if n.startswith("torch_xla.distributed.spmd")}
    assert found == set(), f"only {TORCH_XLA_SEAM} may use these"


@each_file
def test_jax_internals_stay_behind_the_seam(path):
    if path.relative_to(ROOT).as_posix() in JAX_SEAM:
        pytest.skip("the seam")
    internal = re.compile(r"jaxlib(\..*)?|jax(\.\w+)*\._[a-z]\w*(\..*)?")
    found = {name for name in names_used(path) if internal.fullmatch(name)}
    assert found == set(), f"only {JAX_SEAM} may use these"


@each_file
def test_module_is_named_for_one_thing_and_short(path):
    assert path.stem.strip("_") not in {"utils", "common", "helpers"}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@each_file
def test_suppressions_name_their_rule(path):
    bare = re.compile(r"#\s*(noqa\b(?!:)|type:\s*ignore|pyright:\s*ignore\b(?!\[))")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if bare.search(line)] == []
