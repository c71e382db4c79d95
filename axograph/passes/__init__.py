"""The passes, one a file: each takes a valid program and leaves a valid one."""
