"""Launchers: cells on this machine or on a Ray cluster."""
