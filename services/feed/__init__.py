"""Every change of a bank, in order."""
