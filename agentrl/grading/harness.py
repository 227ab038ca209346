"""Program of a grading session: call one function, and write what it returned as JSON.

This text is sent into the session and runs beside the graded code, which can change all of it.
Nothing depends on it: it only turns a value into data, and the host judges the data.
"""

import importlib.util
import json
import math
import sys


def call_function(path: str, name: str, arguments_json: str, result_path: str) -> None:
    """Import `path` as a module, call its function, write what it returned."""
    sys.path.insert(0, ".")
    module_name = path.rsplit("/", 1)[-1].removesuffix(".py")
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if function is None:
        raise AttributeError(f"{path} defines no {name}")
    value = _plain(function(*json.loads(arguments_json)))
    with open(result_path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _plain(value: object) -> object:
    """Return a value in JSON's types; `TypeError` for any other, instead of a near miss."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) in (list, tuple):
        return [_plain(item) for item in value]  # type: ignore[attr-defined]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise TypeError(
        f"returned a {type(value).__name__}; return None, bool, int, finite float, str, list, or "
        "dict with str keys"
    )
