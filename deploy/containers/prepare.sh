#!/usr/bin/env bash
# Makes what the compose file needs, once: a database password, the services' shared secret, and a local CA with the gateway's
# certificate. Put your own certificate into tls/server.pem and tls/server.key instead when the Host has a public name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-../../.venv/bin/python}
umask 077
mkdir -p secrets tls
random() { "$python" -c 'import secrets; print(secrets.token_hex(24))'; }
[ -e .env ] || printf 'SAISEI_DATABASE_PASSWORD=%s\n' "$(random)" >.env
[ -e secrets/service.key ] || random >secrets/service.key
[ -e tls/server.pem ] || "$python" - <<'PYTHON'
from pathlib import Path

from saisei_cli.dev.certificates import ensure_certificates

ensure_certificates(Path("tls"), ("localhost", "*.workers.localhost", "127.0.0.1", "::1"))
PYTHON
# The services run as user 10001, and a secret that is a file keeps its owner and mode.
if [ "$(id -u)" = 0 ]; then chown 10001 secrets/service.key tls/server.pem tls/server.key; fi
echo "ready: docker compose up --build (clients trust $PWD/tls/ca.pem)"
echo "a token: docker compose exec control saisei token create --principal NAME --space '*:read,write'"
