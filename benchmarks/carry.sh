#!/usr/bin/env bash
# Packs what perflab needs besides torch and triton, for a machine that reaches no package index.
#
#   benchmarks/carry.sh [OUT] [PYTHON_VERSION]     default: .carry 3.12
#
# Recompressed with xz, since wheels are zip files: tilelang and z3 shrink from 79 MB to 46 MB or so.
set -euo pipefail
out=${1:-.carry}
version=${2:-3.12}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=()
for platform in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
  platforms+=(--platform "${platform}_x86_64")
done
pack() { # name of the archive, packages
  local name=$1
  shift
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
    "${platforms[@]}" --dest "$work/wheels-$name" "$@"
  mkdir -p "$work/$name"
  for wheel in "$work/wheels-$name"/*.whl; do python3 -m zipfile -e "$wheel" "$work/$name"; done
  tar -C "$work/$name" -cf - . | xz -T0 -6 > "$out/$name.tar.xz"
  du -h "$out/$name.tar.xz"
}
pack engine pydantic pydantic-core annotated-types typing-inspection typing-extensions rich markdown-it-py mdurl \
  pygments typer shellingham click plotly narwhals pytest-benchmark py-cpuinfo nvidia-ml-py filelock psutil \
  jinja2 markupsafe pandas python-dateutil six
pack tilelang tilelang z3-solver apache-tvm-ffi torch-c-dlpack-ext ml-dtypes cloudpickle tqdm
