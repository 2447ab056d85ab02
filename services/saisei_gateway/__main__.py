"""`python -m saisei_gateway`."""

from saisei_gateway.main import main

main()
