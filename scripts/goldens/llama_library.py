"""llama.cpp's prebuilt library, its headers, and its library built for this machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
CRATE = ("llama-cpp-sys-2", "0.1.160")
BUILD_TOOLS = ["cmake==4.4.4", "ninja==1.13.2"]
# CPU variants of the library, and what they need, as Linux calls it.
NEEDS = {
    "sapphirerapids": "amx_int8", "icelake": "avx512vbmi", "cascadelake": "avx512_vnni", "alderlake": "avx_vnni",
    "haswell": "avx2",
}


def run(*command: str | Path, **options) -> bytes:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, **options).stdout


def has(instructions: str) -> bool:
    """Whether this processor has these instructions."""
    return instructions in Path("/proc/cpuinfo").read_text().split()


def runnable(variants: list[str]) -> list[str]:
    """The variants that this processor can run."""
    return [variant for variant in variants if has(NEEDS[variant])]


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


def build(to: Path, source: Path) -> Path:
    """Builds the library for the instructions of this machine. Returns its folder."""
    made, tools = to / "native-build", to / "build-tools"
    if not (made / "complete").exists():
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", *BUILD_TOOLS)
        environment = os.environ | {"PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(source, made)
        # gcc 12 drops the stores to a tile configuration that nothing else reads.
        tiles = made / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
        load = "_tile_loadconfig(&tc);"
        assert load in tiles.read_text()
        tiles.write_text(tiles.read_text().replace(load, f'asm volatile("" : : "r"(&tc) : "memory"); {load}'))
        run("cmake", "-G", "Ninja", "-B", "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=ON",
            "-DGGML_OPENMP=ON", "-DLLAMA_BUILD_COMMON=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_TOOLS=OFF",
            "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", cwd=made, env=environment)
        run("cmake", "--build", "build", "--target", "llama", cwd=made, env=environment)
        (made / "complete").touch()
    return made / "build" / "bin"


def compile_tool(source: Path, to: Path, libraries: Path, headers: list[Path]) -> Path:
    """Compiles a C file into a folder, with the library."""
    names = ("libllama[.]*", "libggml[.]*", "libggml-base*")
    linked = [f"-l:{next(libraries.glob(name)).name}" for name in names]
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
