"""Regions on this machine: each a Ray cluster and a Valkey of its own, its processes, ports and files, from start to end.

- Everything started carries its region's mark in its environment; only marked processes are ever ended, by id.
- The run folder says what should be there; the processes say what is. Where they differ, the next start mends it.
- Nothing here imports Ray: it is started as a program and asked over HTTP. Only the deploy step, a process of its
  own, imports it.
"""
