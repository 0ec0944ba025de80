"""Generate the Python bindings of the MLX schema inside an installed executorch.

ExecuTorch's Linux wheel ships the exporter for its MLX backend and the generator of these bindings, but not the
bindings themselves (they are made when the wheel is built for macOS). Run with the environment's python, and with
flatc on PATH.
"""

import importlib.util
import pathlib
import sys
import sysconfig


def load_generator(folder: pathlib.Path):
    """The wheel's generate.py as a module, without importing the package around it (which needs the bindings)."""
    spec = importlib.util.spec_from_file_location("mlx_schema_generator", folder / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    folder = site / "executorch/backends/mlx/serialization"
    if not (folder / "generate.py").exists():
        sys.exit(f"{folder} has no generate.py: this is not the executorch version that dependencies.env names")
    generator = load_generator(folder)
    schema = generator.parse_fbs(generator.SCHEMA_FBS)
    generator.run_flatc("flatc")
    generator._fixup_flatc_imports()
    outputs = {
        generator.GENERATED_SCHEMA_PY: generator.generate_python_schema,
        generator.GENERATED_SERIALIZERS: generator.generate_python_serializers,
        generator.GENERATED_INSPECTOR: generator.generate_inspector,
    }
    for path, generate in outputs.items():
        path.write_text(generate(schema))
    # flatc leaves the package's __init__ empty; the exporter imports every type from it.
    names = {item.name for group in (schema.tables, schema.enums, schema.structs, schema.unions) for item in group}
    package = "executorch.backends.mlx.serialization._generated.mlx_delegate"
    lines = [f"from {package}.{name} import {name}\n" for name in sorted(names)]
    (generator.GENERATED_DIR / "__init__.py").write_text("".join(lines))


if __name__ == "__main__":
    main()
