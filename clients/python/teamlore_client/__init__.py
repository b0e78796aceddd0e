"""Teamlore on a laptop: what a team decided and why, recalled locally and offline."""
