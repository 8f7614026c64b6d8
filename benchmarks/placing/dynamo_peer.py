"""NVIDIA Dynamo's SelectionService, asked over a pipe. Runs in the peer's own environment: dynamo, numpy, pyzmq, msgspec.

Each line of its input is a JSON command, each line of its output the JSON answer. Blocks reach it as they do in
production: as vLLM's events over ZMQ.
"""

import asyncio
import json
import struct
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import zmq
import zmq.asyncio
from dynamo._core import SelectionService, compute_block_hash_for_seq
from workload import Run, Workload, distinct

NAMES = {"model_name": "default", "tenant_id": "default"}
_encode = msgspec.msgpack.Encoder().encode


class Peer:
    def __init__(self, folder: Path, replicas: int, block_tokens: int) -> None:
        self.workload = Workload(replicas, block_tokens)
        self._folder = folder
        self._service = SelectionService(indexer_threads=1)
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []
        self._sent: dict[int, int] = {}
        self._asked = 0

    async def start(self) -> None:
        for replica in range(self.workload.replicas):
            endpoint = f"ipc://{self._folder}/{replica}"
            socket = self._context.socket(zmq.PUB)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.bind(endpoint)
            self._sockets.append(socket)
            await self._service.upsert_worker(
                {
                    **NAMES,
                    "worker_id": replica + 1,
                    "endpoint": f"bench://{replica}",
                    "block_size": self.workload.block_tokens,
                    "max_num_batched_tokens": 8192,
                    "data_parallel_start_rank": 0,
                    "data_parallel_size": 1,
                    "kv_events_endpoints": {0: endpoint},
                    "replay_endpoint": None,
                }
            )
        await asyncio.sleep(1.0)  # subscriptions arrive; a publisher cannot see them

    async def store(self, run: Run) -> int:
        size = self.workload.block_tokens
        blocks = len(run.token_ids) // size
        event = {
            "type": "BlockStored",
            "block_hashes": list(range(run.first_hash, run.first_hash + blocks)),
            "parent_block_hash": run.parent,
            "token_ids": run.token_ids[: blocks * size].tolist(),
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        number = self._sent.get(run.replica, 0)
        self._sent[run.replica] = number + 1
        frames = [b"", struct.pack(">Q", number), _encode([time.time(), [event], 0])]
        await self._sockets[run.replica].send_multipart(frames)
        return blocks

    async def settled(self, run: Run) -> None:
        """Returns when the index knows a run to its end."""
        ids = np.concatenate([run.prefix, run.token_ids]).tolist()
        while True:
            answer = await self._service.overlap_scores(NAMES | {"token_ids": ids})
            if max(worker["device_blocks"] for worker in answer["workers"]) >= answer["num_blocks"]:
                return
            await asyncio.sleep(0.002)

    async def fill(self) -> dict:
        blocks, last = 0, {}
        for run in self.workload.runs():
            blocks += await self.store(run)
            last[run.replica] = run
        for run in last.values():
            await self.settled(run)
        return {"blocks": blocks}

    async def ask(self, tokens: int, times: int, *, hashed: bool) -> dict:
        """Seconds of each `select_and_reserve`; `hashed` gives it its own hashes instead of tokens."""
        ids = self.workload.prompt(tokens).tolist()
        body: dict = {"token_ids": ids}
        if hashed:
            selection = await self._select({"token_ids": ids})
            hashes = compute_block_hash_for_seq(ids, self.workload.block_tokens)
            body = {
                "block_hashes": np.asarray(hashes, np.uint64).astype(np.int64).tolist(),
                "sequence_hashes": selection["sequence_hashes"],
                "isl_tokens": tokens,
            }
        took, found = [], 0
        for _ in range(times):
            began = time.perf_counter()
            selection = await self._select(body, free=False)
            took.append(time.perf_counter() - began)
            found = selection["overlap"]["longest_matched"]
            await self._service.free_reservation(selection["selection_id"])
        return {"took_s": took, "found_tokens": found}

    async def _select(self, body: dict, *, free: bool = True) -> dict:
        self._asked += 1
        name = f"r{self._asked}"
        allowed = list(range(1, self.workload.replicas + 1))
        request = NAMES | body | {"selection_id": name, "allowed_worker_ids": allowed}
        selection = await self._service.select_and_reserve(request)
        if free:
            await self._service.free_reservation(name)
        return selection

    async def grow(self, blocks: int, run_blocks: int) -> dict:
        """Stores distinct blocks; bytes of memory that they took, and blocks a second."""
        before, began, last = _memory(), time.perf_counter(), None
        for last in distinct(self.workload.block_tokens, run_blocks, blocks):
            await self.store(last)
        await self.settled(last)
        return {"bytes": _memory() - before, "took_s": time.perf_counter() - began}

    async def lag(self, times: int) -> dict:
        """Seconds from sending one small run until a decision finds it."""
        took = []
        for number in range(times):
            ids = np.random.default_rng(9_000_000 + number).integers(
                10, 150_000, 4 * self.workload.block_tokens
            )
            ids = ids.astype(np.uint32)
            run = Run(0, ids[:0], ids, (1 << 58) + (number << 8))
            began = time.perf_counter()
            await self.store(run)
            await self.settled(run)
            took.append(time.perf_counter() - began)
        return {"took_s": took}


def _memory() -> int:
    return psutil.Process().memory_info().rss


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer: Peer | None = None
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            name = command.pop("do")
            if name == "start":
                peer = Peer(Path(folder), **command)
                answer = await peer.start() or {}
            else:
                answer = await getattr(peer, name)(**command)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
