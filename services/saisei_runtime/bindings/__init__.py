"""What Workers reach through `env`: one module for each kind of Binding."""
