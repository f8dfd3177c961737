"""llama.cpp's prebuilt library and its headers."""

import subprocess
from pathlib import Path

PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
CRATE = ("llama-cpp-sys-2", "0.1.160")


def run(*command: str | Path, **options) -> bytes:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, **options).stdout


def fetch(to: Path) -> tuple[Path, list[Path]]:
    """The folder of libraries, from an npm package, and those of headers, from a crate."""
    run("npm", "pack", "--silent", PACKAGE, cwd=to)
    run("tar", "xf", next(to.glob("*.tgz")), cwd=to)
    crate = to / "crate"
    (crate / "src").mkdir(parents=True)
    (crate / "src" / "lib.rs").touch()
    (crate / "Cargo.toml").write_text(
        f'[package]\nname = "headers"\nversion = "0.0.0"\n[dependencies]\n{CRATE[0]} = "={CRATE[1]}"\n[workspace]\n')
    run("cargo", "vendor", "--quiet", "vendor", cwd=crate)
    headers = crate / "vendor" / CRATE[0] / "llama.cpp"
    return to / "package" / "bins" / "linux-x64", [headers / "include", headers / "ggml" / "include"]


def compile_tool(source: Path, to: Path, libraries: Path, headers: list[Path]) -> Path:
    """Compiles a C file into a folder, with the library."""
    linked = [f"-l:{next(libraries.glob(name)).name}" for name in ("libllama.v*", "libggml.v*", "libggml-base*")]
    tool = to / source.stem
    run("gcc", "-O2", *(f"-I{folder}" for folder in headers), source, "-o", tool, f"-L{libraries}", *linked,
        f"-Wl,-rpath,{libraries}", "-lm")
    return tool


def variant_folder(to: Path, libraries: Path, variant: str) -> Path:
    """A folder with one CPU variant alone, for `GGML_DIR`."""
    only = to / variant
    if not only.exists():
        only.mkdir()
        (only / f"libggml-cpu-{variant}.so").symlink_to(libraries / f"libggml-cpu-{variant}.so")
    return only
