# Sourced by demo.sh and test.sh, from the repository's top: a virtual environment in .venv, made once and kept current.

VENV=${SAISEI_VENV:-.venv}

say() { printf '%s\n' "$*" >&2; }

# Prints the first interpreter that is new enough and can make a virtual environment.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  say "Saisei needs Python 3.11 or newer with its venv module; none of python3, python3.11 … python3.14 is that."
  say "Install one (Debian: apt-get install python3 python3-venv), or name yours: PYTHON=/path/to/python bash $0"
  return 1
}

# pip_install ARGS…: quiet, and tried again, for an index may be out of reach for a moment.
pip_install() {
  local try
  for try in 1 2 3; do
    if "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --retries 5 --timeout 60 "$@"; then
      return 0
    fi
    say "pip did not succeed (try $try of 3)"
    sleep "$try"
  done
  return 1
}

# ensure_environment NAME REQUIREMENT: NAME stamps the result, so that a second run installs nothing. What tests need holds
# what a run needs.
ensure_environment() {
  local stamp="$VENV/.saisei-$1" python wanted
  wanted=$(cksum <pyproject.toml)
  if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2>/dev/null \
      && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return 0
  fi
  python=$(find_python) || return 1
  if ! { [ -x "$VENV/bin/python" ] \
      && "$VENV/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; then
    say "making a virtual environment in $VENV with $("$python" --version)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || return 1
  fi
  say "installing Saisei and what it needs into $VENV"
  pip_install --editable "$2" || return 1
  printf '%s\n' "$wanted" | tee "$stamp" >"$VENV/.saisei-run"
}
