"""Launchers: cells on this machine, on a Ray cluster, or by the ranks of torchrun together."""
