"""What the control service has assigned to this runtime, and the code behind it."""
