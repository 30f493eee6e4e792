"""Which rank of how many this process is: the one place that looks at its surroundings."""

import os

import torch.distributed

from tarshard.errors import UsageError


def resolve(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else of the process group, else one alone.

    Raises `UsageError` when only one is given, or when the environment tells of
    several processes that have not met yet: to guess would feed each of them
    the whole dataset.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise UsageError("give rank and world size together, or neither")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    announced = os.environ.get("WORLD_SIZE", "1")
    if announced != "1":
        raise UsageError(
            f"WORLD_SIZE is {announced} but torch.distributed is not initialised; call "
            "init_process_group first, or give rank and world size"
        )
    return 0, 1
