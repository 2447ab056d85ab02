#!/usr/bin/env bash
# The main job, end to end, on a machine that has only Python 3.11 or newer: see deploy/examples/report/demo.py.
# Safe to run again; leaves nothing running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/environment.sh

began=$SECONDS
ensure_environment run .
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "fetching the data set (package palmerpenguins)"
pip_install --no-deps --target "$work/penguins" 'palmerpenguins>=0.1.4,<1'
"$VENV/bin/python" deploy/examples/report/demo.py \
  --penguins "$work/penguins/palmerpenguins/data/penguins.csv" --install-seconds $((SECONDS - began)) "$@"
