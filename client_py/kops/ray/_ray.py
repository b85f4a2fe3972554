"""Ray itself, for this package's modules: with an error that names the extra where it is missing."""

from __future__ import annotations

try:
    import ray as ray
    import ray.exceptions
except ImportError as error:
    raise ImportError(f'kops.ray needs Ray, which cannot be imported ({error}): pip install "ray>=2.9" numpy', name=error.name) from error

# A worker has ended, or its node has, or Ray lost touch with it: what it was doing may or may not have been done.
_LOST = ("RayActorError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "OutOfMemoryError")
LOST: tuple[type[Exception], ...] = tuple(getattr(ray.exceptions, name) for name in _LOST if hasattr(ray.exceptions, name))
