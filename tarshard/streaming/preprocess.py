"""Turns samples as they were read into a batch: decodes, resizes, transforms."""

import hashlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from tarshard.checks import one_of, whole_number
from tarshard.errors import ImageUndecodable, WorkerFailed
from tarshard.imaging.decode import MAX_PIXELS, Decoder, Frame, Pixels, Undecodable
from tarshard.streaming.batch import Batch, Delivered, Problem
from tarshard.streaming.read import ReadSample

Transform = Callable[[Pixels, Delivered, np.random.Generator], Any]
"""Called as ``transform(image, sample, rng)``, in a worker."""

OnError = Literal["fail", "skip"]

JPEG_QUALITY = 95


@dataclass(frozen=True)
class Preprocessing:
    """What happens to images before they are delivered; nothing unless asked for."""

    frame: Frame | None = None
    """The size that images get."""
    transform: Transform | None = None
    to_jpeg: bool = False
    """Deliver JPEG files: those of the dataset as they are, others encoded."""
    on_error: OnError = "fail"
    """What to do with an image that cannot be decoded."""
    max_pixels: int = MAX_PIXELS
    """A larger image, by its header, is not decoded."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for a value that cannot be."""
        one_of("on_error", self.on_error, ("fail", "skip"))
        whole_number("max_pixels", self.max_pixels, at_least=1)
        if self.frame:
            one_of("fit", self.frame.fit, ("cover", "contain", "stretch"))
            for side in self.frame.size:
                whole_number("size", side, at_least=1)

    @property
    def is_asked_for(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.frame or self.transform or self.to_jpeg)


class Preprocessor:
    """Does what a `Preprocessing` says; one for each process and epoch."""

    def __init__(self, asked: Preprocessing, *, seed: int, epoch: int, alone: bool) -> None:
        """Load OpenCV; with ``alone`` false other workers use the other cores."""
        self._asked = asked
        self._seed = seed
        self._epoch = epoch
        self._decoder = Decoder(max_pixels=asked.max_pixels)
        if not alone:
            self._decoder.use_one_thread()

    def batch(self, samples: Sequence[ReadSample], at: Callable[[str], None], /) -> Batch:
        """Return a batch; ``at`` is told where each sample is before it is worked on.

        Raises `ImageUndecodable`, unless such images are to be skipped: then they keep
        their place, zero-filled and with ``valid`` False. Raises `WorkerFailed` when the
        transform does.
        """
        facts, results, problems = [], [], []
        for sample in samples:
            at(sample.facts.place)
            result, complaint = _FAILED, ""
            fact = sample.facts
            try:
                result, complaint = self._one(sample)
            except Undecodable as error:
                if self._asked.on_error == "fail":
                    raise _undecodable(fact, str(error)) from error
                problems += [Problem(fact, str(error), is_fatal=True)] if fact.valid else []
                fact = fact._replace(valid=False)
            if complaint and fact.valid:
                problems.append(Problem(fact, complaint, is_fatal=False))
            facts.append(fact)
            results.append(result)
        if self._asked.to_jpeg:
            data = tuple(memoryview(b"" if jpeg is _FAILED else jpeg) for jpeg in results)
            return Batch(tuple(facts), data, None, tuple(problems))
        return Batch(tuple(facts), (), self._images(results), tuple(problems))

    def _one(self, sample: ReadSample) -> tuple[Any, str]:
        asked = self._asked
        if asked.to_jpeg and not asked.frame and _is_whole_jpeg(sample.data):
            return sample.data, ""
        pixels, complaint = self._decoder.decode(sample.data, asked.frame)
        if asked.to_jpeg:
            return self._decoder.encode_jpeg(pixels, quality=JPEG_QUALITY), complaint
        if asked.transform is None:
            return pixels.transpose(2, 0, 1), complaint
        try:
            return asked.transform(pixels, sample.facts, self._rng(sample.facts.index)), complaint
        except Exception as error:
            raise _failed_transform(sample.facts, error) from error

    def _rng(self, index: int) -> np.random.Generator:
        """Return random numbers that follow from seed, epoch and sample, not from workers."""
        text = f"transform\0{self._seed}\0{self._epoch}\0{index}"
        key = np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype="<u8")
        return np.random.Generator(np.random.Philox(key=key))

    def _images(self, results: list[Any]) -> Any:  # noqa: ANN401  (whatever the transform returns)
        """Stack arrays of one shape and type, zeros for what failed; anything else is a list."""
        arrays = [_as_array(result) for result in results]
        made = [array for array in arrays if array is not _FAILED]
        if not made and self._asked.frame and self._asked.transform is None:
            return np.zeros((len(results), 3, *self._asked.frame.size), dtype=np.uint8)
        if not made or not all(_is_like(array, made[0]) for array in made):
            return [None if result is _FAILED else result for result in results]
        stacked = np.zeros((len(arrays), *made[0].shape), dtype=made[0].dtype)
        for at, array in enumerate(arrays):
            if array is not _FAILED:
                stacked[at] = array
        return stacked


_FAILED: Any = object()
"""Stands for the result of an image that could not be decoded."""


def _as_array(result: Any) -> Any:  # noqa: ANN401
    if isinstance(result, torch.Tensor) and not result.requires_grad:
        # NumPy knows no bfloat16; such tensors are delivered one by one.
        return result if result.dtype is torch.bfloat16 else result.numpy()
    return result


def _is_like(array: object, first: object) -> bool:
    return (
        isinstance(array, np.ndarray)
        and isinstance(first, np.ndarray)
        and array.shape == first.shape
        and array.dtype == first.dtype
        and array.dtype.isnative
        # What torch has, too: no text, no objects.
        and array.dtype.kind in "biuf"
        and array.dtype.itemsize <= 8
    )


def _is_whole_jpeg(data: memoryview) -> bool:
    """Tell a JPEG that ends as it should; cut ones are left to the decoder, to be refused."""
    # Some cameras append a few bytes.
    return bytes(data[:3]) == b"\xff\xd8\xff" and b"\xff\xd9" in bytes(data[-64:])


def _undecodable(facts: Delivered, cause: str) -> ImageUndecodable:
    return ImageUndecodable(
        f"{facts.place}: {cause}; leave it out with on-error skip, or mend it and pack again",
        shard=facts.shard,
        member=facts.member,
        offset=facts.offset,
    )


def _failed_transform(facts: Delivered, error: Exception) -> WorkerFailed:
    trace = "".join(traceback.format_exception(error)).rstrip()
    return WorkerFailed(f"the transform failed on {facts.place}: {error!r}\n{trace}")
