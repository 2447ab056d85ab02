"""`python -m saisei_cli` is `saisei`."""

from saisei_cli.main import main

main()
