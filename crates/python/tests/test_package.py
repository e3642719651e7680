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
    """Names, and whether there is a default, of a function in the stubs: those that may stand by position, and the others."""
    plain, keyword = function.args.posonlyargs + function.args.args, zip(function.args.kwonlyargs, function.args.kw_defaults)
    optional = len(plain) - len(function.args.defaults)
    found = [(each.arg, at >= optional) for at, each in enumerate(plain) if each.arg not in ("self", "cls")]
    return found, [(each.arg, default is not None) for each, default in keyword]


def real_parameters(callable):
    plain, keyword = [], []
    for each in inspect.signature(callable).parameters.values():
        if each.name not in ("self", "cls"):
            of = keyword if each.kind is inspect.Parameter.KEYWORD_ONLY else plain
            of.append((each.name, each.default is not inspect.Parameter.empty))
    return plain, keyword


def stubs(kind):
    """What of this kind stands in the stubs, by name."""
    return {each.name: each for each in ast.parse(STUBS.read_text()).body if isinstance(each, kind)}


def fields(node):
    return {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}


def typed_dict(name):
    """The keys of a dict in the stubs."""
    return fields(stubs(ast.ClassDef)[name])


def test_the_stubs_are_those_of_the_module():
    def is_dict(node):
        return any(getattr(base, "id", None) == "TypedDict" for base in node.bases)

    classes = {name: node for name, node in stubs(ast.ClassDef).items() if not name.startswith("_") and not is_dict(node)}
    functions, values = stubs(ast.FunctionDef), fields(ast.parse(STUBS.read_text())) - {"__version__"}
    assert {name for name in dir(_transload) if not name.startswith("_")} == {*classes, *functions} | values
    for name, function in functions.items():
        assert parameters(function) == real_parameters(getattr(_transload, name)), name
    for name, node in classes.items():
        cls = getattr(_transload, name)
        if issubclass(cls, Exception):
            continue
        members = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        public = {member for member in vars(cls) if not member.startswith("_")}
        assert public == fields(node) | {member for member in members if not member.startswith("_")}, name
        for member, function in members.items():
            if any(getattr(each, "id", None) == "property" for each in function.decorator_list):
                assert inspect.isgetsetdescriptor(vars(cls)[member]) and vars(cls)[member].__doc__, (name, member)
            elif member == "__new__" or not member.startswith("__"):
                real = cls if member == "__new__" else getattr(cls, member)
                assert parameters(function) == real_parameters(real) and real.__doc__, (name, member)


def test_everything_is_exported():
    assert set(transload.__all__) == {"cuda"} | {
        name
        for name in dir(_transload)
        if name not in ("run_command", "cuda_available") and (not name.startswith("_") or name == "__version__")
    }


@pytest.mark.parametrize("command", [[sys.executable, "-m", "transload"], [Path(sys.executable).parent / "transload"]])
def test_the_command_is_there(command, tmp_path):
    def run(*arguments):
        return subprocess.run([*command, *arguments], capture_output=True, text=True)

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
