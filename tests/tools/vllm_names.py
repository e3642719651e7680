"""Holds the vLLM connector against the Python files of a vLLM: that all it imports is there, and that what it overrides is
called as it expects. It reads files and runs nothing of them, so that versions without a build for this machine can be
looked at:

    pip download --no-deps vllm==0.33.0 && unzip -q vllm-0.33.0-*.whl '*.py' -d vllm-0.33
    python tests/tools/vllm_names.py vllm-0.33
"""

import ast
import sys
from pathlib import Path

CONNECTOR = Path(__file__).parents[2] / "crates" / "python" / "python" / "transload" / "vllm"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
CLASSES = {
    ("KVConnectorBase_V1", BASE): ("TransloadConnector", "connector.py"),
    ("SecondaryTierManager", "vllm.v1.kv_offload.tiering.base"): ("TransloadTier", "tier.py"),
}
CALLED = {
    "vllm.engine.arg_utils": {"EngineArgs": {"create_engine_config": ["usage_context", "headless"]}},
    "vllm.v1.engine.core": {
        "EngineCore": {
            "add_lora": ["lora_request"],
            "collective_rpc": ["method", "timeout", "args", "kwargs"],
            "set_weight_version": ["weight_version"],
        },
        "EngineCoreProc": {"_process_input_queue": []},
    },
    "vllm.lora.worker_manager": {"WorkerLoRAManager": {"_load_adapter": ["lora_request"], "list_adapters": []}},
    "vllm.lora.model_manager": {"LoRAModelManager": {"get_adapter": ["adapter_id"]}},
    "vllm.v1.core.sched.scheduler": {
        "Scheduler": {
            "get_kv_connector": [],
            "has_requests": [],
            "reset_connector_cache": [],
        }
    },
    "vllm.v1.core.sched.interface": {"SchedulerInterface": {"get_ec_connector": [], "has_unfinished_requests": []}},
    "vllm.v1.core.kv_cache_manager": {"KVCacheManager": {"get_block_ids": ["request_id"]}},
    "vllm.v1.core.block_pool": {"BlockPool": {"get_num_free_blocks": []}},
    "vllm.v1.request": {"Request": {"get_skip_reading_prefix_cache": []}},
    "vllm.distributed.kv_transfer.kv_connector.factory": {
        "KVConnectorFactory": {"register_connector": ["name", "module_path", "class_name"]}
    },
    "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector": {"MultiConnector": {"sub_connectors": []}},
}
"""What it calls, follows, or is called by, without importing it; and with which parameters."""
READ = {
    "vllm.v1.engine.core": {
        "EngineCore": ("batch_queue", "scheduler"),
        "EngineCoreProc": ("engines_running", "input_queue"),
    },
    "vllm.v1.core.sched.scheduler": {"Scheduler": ("finished_req_ids",)},
    "vllm.v1.core.kv_cache_manager": {"KVCacheManager": ("block_pool",)},
    "vllm.v1.core.block_pool": {"BlockPool": ("num_gpu_blocks",)},
}
"""Attributes of their objects that it reads."""


def parsed(root: Path, module: str) -> ast.Module | None:
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text())
    return None


def defined(tree: ast.Module) -> set[str]:
    """Names at the top of a module, also where they depend on something."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def methods(tree: ast.Module, name: str) -> dict[str, list[str]]:
    """The parameters of each method of a class."""
    [node] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    return {each.name: [argument.arg for argument in each.args.args] for each in functions}


def attributes(tree: ast.Module, name: str) -> set[str]:
    """What methods of a class set of `self`."""
    [node] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    set_ = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return {each.attr for each in set_ if isinstance(each.value, ast.Name) and each.value.id == "self"}


def faults(root: Path) -> list[str]:
    """What the connector expects of the vLLM in `root`, and is not there."""
    found = []
    for file in sorted(CONNECTOR.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("vllm"):
                continue
            tree = parsed(root, node.module)
            if tree is None:
                found.append(f"{file.name}: there is no {node.module}")
                continue
            # Modules of a package need not be named in it.
            there = defined(tree) | {each.stem for each in root.joinpath(*node.module.split(".")).glob("*")}
            found += [f"{file.name}: no {alias.name} in {node.module}" for alias in node.names if alias.name not in there]
    for (base, module), (ours, file) in CLASSES.items():
        tree = parsed(root, module)
        expected = methods(tree, base) if tree is not None else {}
        for name, parameters in methods(ast.parse((CONNECTOR / file).read_text()), ours).items():
            if name in expected and name != "__init__" and parameters != expected[name]:
                found.append(f"{file}: {name}{tuple(parameters)}, in vLLM {name}{tuple(expected[name])}")
    for module, classes in CALLED.items():
        for name, called in classes.items():
            tree = parsed(root, module)
            there = methods(tree, name) if tree is not None and name in defined(tree) else {}
            for method, parameters in called.items():
                if method not in there:
                    found.append(f"{module}: {name} has no {method}")
                elif there[method][1:] != parameters:
                    found.append(f"{module}: {name}.{method}{tuple(there[method][1:])}, expected {tuple(parameters)}")
    for module, classes in READ.items():
        for name, read in classes.items():
            tree = parsed(root, module)
            there = attributes(tree, name) if tree is not None and name in defined(tree) else set()
            found += [f"{module}: {name} sets no {each}" for each in read if each not in there]
    return found


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]))
    print("\n".join(wrong) or "all that the connector expects is there")
    sys.exit(bool(wrong))
