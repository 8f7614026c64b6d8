"""The installer: makes `.venv` equal to the locks, from nothing or from whatever an earlier run left.

- Standard library only: it runs before anything is installed.
- The stamp is the only word that an install is whole: removed before the first change, written after the last.
- Whatever has no stamp is made anew; uv's cache makes that cheap, and no half-linked package survives.
- Versions and hashes come from the locks alone; addresses come from the machine's pip settings alone.
- CUDA builds are never pulled, and the result is checked for them.
"""
