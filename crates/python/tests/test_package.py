"""What is installed: the stubs, the command, and the examples of the manual."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transload
from transload import _transload

STUBS = Path(transload.__file__).parent / "_transload.pyi"
GUIDE = Path(__file__).parents[3] / "docs" / "src" / "guide"
EXAMPLES = [
    example
    for page in ("python.md", "gpu.md")
    for example in re.findall(r"```python\n(.*?)```", (GUIDE / page).read_text(), flags=re.S)
]


def parameters(function):
    """Names, kinds and whether there is a default, of a function in the stubs."""
    arguments = function.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    optional = len(arguments.defaults)
    found = [
        (name, index >= len(names) - optional)
        for index, name in enumerate(names)
        if name not in ("self", "cls")
    ]
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults)
    return found, [(argument.arg, default is not None) for argument, default in keyword]


def real_parameters(callable):
    signature = inspect.signature(callable).parameters.values()
    plain, keyword = [], []
    for parameter in signature:
        if parameter.name in ("self", "cls"):
            continue
        entry = (parameter.name, parameter.default is not inspect.Parameter.empty)
        only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        (keyword if only else plain).append(entry)
    return plain, keyword


def test_the_stubs_are_those_of_the_module():
    tree = ast.parse(STUBS.read_text())
    classes = {
        n.name: n
        for n in tree.body
        if isinstance(n, ast.ClassDef) and not n.name.startswith("_")
    }
    typed_dicts = {
        name
        for name, node in classes.items()
        if any(isinstance(base, ast.Name) and base.id == "TypedDict" for base in node.bases)
    }
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    values = {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)} - {"__version__"}
    real = {name for name in dir(_transload) if not name.startswith("_")}
    assert real == (set(classes) - typed_dicts) | set(functions) | values
    for name, function in functions.items():
        assert parameters(function) == real_parameters(getattr(_transload, name)), name
    for name in set(classes) - typed_dicts:
        members = {
            n.name: n for n in classes[name].body if isinstance(n, ast.FunctionDef)
        }
        cls = getattr(_transload, name)
        if issubclass(cls, Exception):
            continue
        public = {member for member in vars(cls) if not member.startswith("_")}
        fields = {
            n.target.id for n in classes[name].body if isinstance(n, ast.AnnAssign)
        }
        assert public == fields | {m for m in members if not m.startswith("_")}, name
        for member, function in members.items():
            is_property = any(
                isinstance(d, ast.Name) and d.id == "property"
                for d in function.decorator_list
            )
            if is_property:
                assert inspect.isgetsetdescriptor(vars(cls)[member]), (name, member)
                assert vars(cls)[member].__doc__, (name, member)
                continue
            if member.startswith("__") and member != "__new__":
                continue
            real_member = cls if member == "__new__" else getattr(cls, member)
            assert parameters(function) == real_parameters(real_member), (name, member)
            assert (cls if member == "__new__" else real_member).__doc__, (name, member)


def typed_dict(name):
    """The keys of a dict in the stubs."""
    tree = ast.parse(STUBS.read_text())
    [found] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return {entry.target.id for entry in found.body}


def test_everything_is_exported():
    assert set(transload.__all__) == {"cuda"} | {
        name
        for name in dir(_transload)
        if name not in ("run_command", "cuda_available") and (not name.startswith("_") or name == "__version__")
    }


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "transload", *arguments], capture_output=True, text=True
    )


def test_the_command_is_there(tmp_path):
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"transload {transload.__version__}\n")
    assert run("nonsense").returncode == 2
    # It starts itself once more, for each item of the check.
    done = run("store", "check", f"file://{tmp_path}/kv", "--quick")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_manual_run(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "an example of the manual", "exec"), {"__name__": "example"})


def test_vllm_finds_the_connector_by_its_name(monkeypatch):
    """As vLLM does in each process, whether it has loaded plugins there before or not."""
    from importlib.metadata import entry_points
    from types import ModuleType, SimpleNamespace

    [point] = [point for point in entry_points(group="vllm.general_plugins") if point.name == "transload"]
    place = "vllm.distributed.kv_transfer.kv_connector.factory"
    parts = place.split(".")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    registered = {}
    sys.modules[place].KVConnectorFactory = SimpleNamespace(
        _registry=registered, register_connector=lambda name, *of: registered.setdefault(name, of)
    )
    for _ in range(2):
        point.load()()
    assert registered == {"TransloadConnector": ("transload.vllm", "TransloadConnector")}


def test_the_command_has_a_script():
    script = Path(sys.executable).parent / "transload"
    done = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"transload {transload.__version__}\n")
