"""`saisei deploy`: from a folder with a saisei.toml to Resources of a Host."""
