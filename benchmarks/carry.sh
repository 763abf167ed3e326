#!/usr/bin/env bash
# Packs what perflab needs besides torch and triton, for a machine that reaches no package index: the versions that
# are installed here, for another Python if need be, less what is not needed at run time, recompressed with xz.
#
#   benchmarks/carry.sh [OUT] [PYTHON_VERSION]     default: .carry 3.12
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.carry}
version=${2:-3.12}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=()
for platform in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
  platforms+=(--platform "${platform}_x86_64")
done

pack() { # name of the archive, packages
  local name=$1 wanted
  shift
  wanted=$("$python" -c 'import sys; from importlib.metadata import version
print(*(f"{name}=={version(name)}" for name in sys.argv[1:]))' "$@")
  # shellcheck disable=SC2086 - one word a package
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
    "${platforms[@]}" --dest "$work/wheels-$name" $wanted
  mkdir -p "$work/$name"
  for wheel in "$work/wheels-$name"/*.whl; do python3 -m zipfile -e "$wheel" "$work/$name"; done
  # Sources and headers that only building would need, and copies where a link will do.
  rm -rf "$work/$name"/*.data "$work/$name"/tilelang/3rdparty/tvm/{src,include} \
    "$work/$name"/tilelang/3rdparty/cutlass/tools "$work/$name"/z3/include
  find "$work/$name" -name 'libz3.so.*' -exec sh -c 'ln -sf "$(basename "$1")" "$(dirname "$1")/libz3.so"' _ {} \;
  tar -C "$work/$name" -cf - . | xz -9e > "$out/$name.tar.xz"
  du -h "$out/$name.tar.xz"
}

pack engine pydantic pydantic-core annotated-types typing-inspection typing-extensions rich markdown-it-py mdurl \
  pygments typer shellingham annotated-doc plotly narwhals nvidia-ml-py filelock psutil \
  jinja2 markupsafe packaging
pack tilelang tilelang z3-solver apache-tvm-ffi torch-c-dlpack-ext ml-dtypes cloudpickle tqdm
