"""The scheduling pass: the order of a rank's program, so that communication hides behind computing."""
