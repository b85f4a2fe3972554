"""kops on a Ray cluster: work over many blocks, on all GPUs of all nodes.

    import kops.ray

    for index, y in kops.ray.map(kern, blocks):
        ...
    for index, verdict in kops.ray.judge_many(task, solutions):
        ...

Each worker is an actor with one GPU that talks to its node's daemon, which is started where there is none. Work goes to whichever worker
is free, and to another one where a worker, a node or a daemon is lost; each result is there once. Needs Ray:
`pip install "ray>=2.9" numpy`.
"""

from ._map import judge_many, map
from ._pool import Pool
from ._stats import ClusterStats
from ._trace import ClusterTrace
from ._work import Run
from ._worker import GivenUp, WorkerInfo, WorkersFailed

__all__ = ["ClusterStats", "ClusterTrace", "GivenUp", "Pool", "Run", "WorkerInfo", "WorkersFailed", "judge_many", "map"]
