"""A cluster that labels: Ray Data with a pool of actors, a model in each."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pixalign.config import AlignConfig
from pixalign.core.protocols import AlignmentModel
from pixalign.labelling.manifest import Unit
from pixalign.labelling.work import Job, ModelFacts, UnitReport, label_units

LOCAL = "local"  # the address of a cluster that is started here and ends with this process
AUTO = "auto"  # that of the cluster to which this machine belongs
_FEWEST_CPUS = 4  # logical ones; with fewer Ray Data's own actors starve
_STORE = 2**28  # bytes of the object store: only names of pictures and reports go through it
_MOST_BLOCKS = 4096
_AT_ONCE = 2  # units that an actor works at: one is read while the other is in the network


@dataclass(frozen=True)
class RayCluster:
    """A cluster whose machines see the pictures and the shards under the same paths.

    ``load`` makes an actor's model and must be picklable. ``address`` is `LOCAL`, `AUTO`, or a
    head's HOST:PORT.
    ``actors`` are as many as there are GPUs where none are named, and 1 where there are no GPUs. An
    actor that dies is started again, and its units are labelled again.
    """

    load: Callable[[], AlignmentModel]
    address: str = LOCAL
    actors: int | None = None

    def __post_init__(self) -> None:
        missing = [name for name in ("ray", "pandas") if importlib.util.find_spec(name) is None]
        if missing:
            what = " and ".join(missing)
            raise ValueError(f"a cluster needs {what}: pip install 'pixalign[ray]'")
        if self.actors is not None and self.actors < 1:
            raise ValueError(f"actors is {self.actors}; allowed: 1 or more")

    def facts(self, config: AlignConfig) -> ModelFacts:
        """Those of a model that is loaded on the cluster: this machine may lack the device."""
        ray = self._connected()
        task = ray.remote(max_calls=1, **self._resources(ray))(_facts)
        found: ModelFacts = ray.get(task.remote(self.load, config))
        return found

    def label(self, job: Job, todo: Sequence[Unit]) -> Iterator[UnitReport]:
        """In any order; a unit's report comes when its shard is written."""
        if not todo:
            return
        ray = self._connected()
        from ray.data import ActorPoolStrategy, DataContext, from_items

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        DataContext.get_current().enable_progress_bars = False
        rows = [{"unit": pickle.dumps(unit)} for unit in todo]
        reports = from_items(rows, override_num_blocks=min(len(rows), _MOST_BLOCKS)).map_batches(
            _LabellingActor,
            fn_constructor_args=(self.load, job),
            batch_size=None,
            compute=ActorPoolStrategy(size=self._actors(ray)),
            max_concurrency=_AT_ONCE,
            **self._resources(ray),
        )
        for row in reports.iter_rows():
            yield pickle.loads(row["report"])

    def _connected(self) -> Any:
        """Ray, with a cluster behind it."""
        import ray

        if not ray.is_initialized():
            here: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            if self.address == LOCAL:
                cpus = max(_FEWEST_CPUS, os.cpu_count() or 1)
                here |= {"num_cpus": cpus, "object_store_memory": _STORE}
                here["include_dashboard"] = False
            elif self.address != AUTO:
                _check_reachable(self.address)
            try:
                ray.init(self.address, **here)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _missing(self.address, error) from error
        return ray

    def _gpus(self, ray: Any) -> int:
        return int(ray.cluster_resources().get("GPU", 0))

    def _actors(self, ray: Any) -> int:
        return self.actors or self._gpus(ray) or 1

    def _resources(self, ray: Any) -> dict[str, Any]:
        """Of an actor: a GPU, or a part of one where there are more actors, else a CPU."""
        gpus = self._gpus(ray)
        if not gpus:
            return {"num_cpus": 1}
        return {"num_gpus": min(1.0, gpus / self._actors(ray))}


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and "/" not in host):
        raise ValueError(f"Ray's address is {address!r}; allowed: {LOCAL!r}, {AUTO!r} or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _missing(address, error) from error


def _missing(address: str, error: Exception) -> ValueError:
    said = str(error).splitlines()[0]
    return ValueError(f"no Ray cluster at {address!r}: {said}")


def _facts(load: Callable[[], AlignmentModel], config: AlignConfig) -> ModelFacts:
    return ModelFacts.of(load(), config)


class _LabellingActor:
    """A process with a model; pictures are read in its threads."""

    def __init__(self, load: Callable[[], AlignmentModel], job: Job) -> None:
        self.model, self.job = load(), job

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Units in, reports out."""
        units = [pickle.loads(unit) for unit in batch["unit"]]
        reports = [pickle.dumps(report) for report in label_units(self.model, self.job, units)]
        return {"report": np.array(reports, dtype=object)}
