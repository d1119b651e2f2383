"""Options that make a run small."""

SMALL = ["--preset", "demo", "--particles", "2", "--workers", "1", "--permutations", "1"]
SMALL += ["--set", "iterations=2", "--set", "hidden=4", "--set", "fisher_samples=8"]
TUNED = ["--preset", "demo", "--set", "iterations=30", "--set", "hidden=8"]
