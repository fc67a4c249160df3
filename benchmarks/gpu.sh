#!/usr/bin/env bash
# The GPU table in 8 minutes at most, on one GPU:  bash benchmarks/gpu.sh [key=value …]     keys as in benchmarks/gpu.py
cd "$(dirname "$0")/.." || exit 1
exec timeout 480 "${PYTHON:-python}" benchmarks/gpu.py "$@"
