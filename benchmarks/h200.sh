#!/usr/bin/env bash
# One call on a machine with an NVIDIA GPU and nothing but python3, torch, triton and nvcc: unpack the packages that
# benchmarks/carry.sh has packed, run doctor, run the suite natively, leave a run folder to commit.
#
#   benchmarks/h200.sh [PACKED] [OUT]     default: .carry results
#
# DEVICE=cpu tries the script itself without a GPU; SUITE=quick takes another suite.
set -euo pipefail
cd "$(dirname "$0")/.."
packed=${1:-.carry}
out=${2:-results}
device=${DEVICE:-cuda}
suite=${SUITE:-h200}

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
for archive in "$packed"/*.tar.xz; do
  [ -e "$archive" ] && tar -xJf "$archive" -C "$site"
done
# What the machine has comes first: packed copies only fill gaps.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PERFLAB_CACHE="$site/cache"
python3 - "$site" <<'PYTHON'
import importlib.util, pathlib, shutil, sys
site = pathlib.Path(sys.argv[1])
for entry in list(site.iterdir()):
    name = entry.stem if entry.suffix == ".py" else entry.name
    if "." not in name and importlib.util.find_spec(name):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
# What is gone must not be told as the version in use.
for info in site.glob("*.dist-info"):
    tops = {line.split(",")[0].split("/")[0] for line in (info / "RECORD").read_text().splitlines()}
    if not any((site / top).exists() for top in tops - {info.name}):
        shutil.rmtree(info)
PYTHON
export PYTHONPATH="$PYTHONPATH:$site"

mkdir -p "$out/local"
echo "== doctor"
timeout 100 python3 -m perflab doctor | tee "$out/local/doctor.txt" || echo "doctor ended with $?"
echo "== suite $suite on $device"
# SIGTERM keeps what was measured.
code=0
timeout --signal=TERM 400 python3 -m perflab run suite "$suite" --device "$device" --results "$out" || code=$?
run=$(find "$out/local" -maxdepth 1 -type d -name "*-$suite-*" | sort | tail -n 1)
[ -n "$run" ] || exit "$code"
python3 -m perflab show "$run" --format markdown > "$out/local/$(basename "$run").md"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw --format=csv 2>/dev/null || true
echo "run folder: $run (exit code $code)"
exit "$code"
