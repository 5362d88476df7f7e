"""The tensors of well-known models, and the buckets that DistributedDataParallel makes of tensors.

Sizes are numbers of parameters, in the order in which the model registers its tensors.
"""

from collections.abc import Callable, Iterable, Iterator

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes from which a bucket is full (PyTorch 2.13, torch/csrc/distributed/c10d/reducer.hpp:
kDefaultFirstBucketBytes, kDefaultBucketBytesCap)."""


def _resnet50() -> Iterator[int]:
    """Yield the tensors of torchvision's resnet50 (He et al., arXiv 1512.03385, table 1)."""

    def convolution(inputs: int, outputs: int, width: int) -> Iterator[int]:
        yield from (inputs * outputs * width**2, outputs, outputs)  # with its batch norm

    yield from convolution(3, 64, 7)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            yield from convolution(inputs, inner, 1)
            yield from convolution(inner, inner, 3)
            yield from convolution(inner, 4 * inner, 1)
            if block == 0:
                yield from convolution(inputs, 4 * inner, 1)
            inputs = 4 * inner
    yield from _linear(inputs, 1000)


def _linear(inputs: int, outputs: int) -> tuple[int, int]:
    return inputs * outputs, outputs


def _bert_base() -> Iterator[int]:
    """Yield the tensors of transformers' bert-base-uncased (Devlin et al., arXiv 1810.04805)."""
    width, norm = 768, (768, 768)
    yield from (30_522 * width, 512 * width, 2 * width, *norm)
    for _ in range(12):
        for _ in ("query", "key", "value", "output"):
            yield from _linear(width, width)
        yield from (*norm, *_linear(width, 4 * width), *_linear(4 * width, width), *norm)
    yield from _linear(width, width)


def _gpt2() -> Iterator[int]:
    """Yield the tensors of transformers' gpt2, the smallest (Radford et al. 2019, table 2)."""
    width, norm = 768, (768, 768)
    yield from (50_257 * width, 1024 * width)
    for _ in range(12):
        yield from (*norm, *_linear(width, 3 * width), *_linear(width, width))
        yield from (*norm, *_linear(width, 4 * width), *_linear(4 * width, width))
    yield from norm


PRESETS: dict[str, Callable[[], Iterator[int]]] = {
    "resnet50": _resnet50,
    "bert-base": _bert_base,
    "gpt2": _gpt2,
}


def ddp_buckets(tensors: Iterable[int], bytes_per_parameter: float) -> tuple[int, ...]:
    """Return the parameters of each bucket, the first to be averaged first.

    Tensors are taken in the order of their gradients, the last first; a bucket is full with the
    tensor that reaches its limit (reducer.cpp, compute_bucket_assignment_by_size).
    """
    buckets = [0]
    limit = FIRST_BUCKET
    for size in reversed(tuple(tensors)):
        buckets[-1] += size
        if buckets[-1] * bytes_per_parameter >= limit:
            buckets.append(0)
            limit = BUCKET
    return tuple(size for size in buckets if size)
