"""`saisei dev`: the three services as child processes of one supervisor, on one folder of data."""
