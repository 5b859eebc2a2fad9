"""Dense products on a CPU, computed by oneDNN.

torch gives float32 products to MKL, which uses AVX2 at most on CPUs of other makers than Intel;
oneDNN, which comes with torch too, uses what the CPU has (benchmarks/ratios.py measures both).
The two differ by float32 round-off.

Shapes: S independent products, N rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class OneDNN(TorchFunctionMode):
    """Compute the linear maps of a forward pass with oneDNN while the context lasts.

    Meant for inference: no gradient goes through. What is not a float32 product on the CPU is
    left to torch. XLNet writes its linear maps as `einsum`; one of them gets the same positions
    for each sequence of a batch (an operand of stride 0), which are multiplied once here.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (any function of torch)
        """Answer one call of torch."""
        if func is functional.linear and not kwargs and _fits(args[0]):
            return _linear(*args)
        if func is torch.einsum and not kwargs and args[0] in _EINSUMS and _fits(args[1]):
            return _EINSUMS[args[0]](*args[1:])
        return func(*args, **(kwargs or {}))


def batched(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W + b for each of S products, without a gradient.

    Each product is computed by itself, so that its bits do not depend on the others.

    Args:
        x: [S, N, in].
        weight: [S, in, out].
        bias: [S, out].

    Returns:
        [S, N, out].
    """
    if not _computable(x):
        return torch.bmm(x, weight) if bias is None else _add_bias(x, weight, bias)
    biases = [None] * len(x) if bias is None else list(bias)
    products = [_linear(*one) for one in zip(x, weight.mT, biases, strict=True)]
    return torch.stack(products) if len(products) > 1 else products[0].unsqueeze(0)


class Linear(torch.autograd.Function):
    """`linear`, for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN401
        """Return [S, N, out]."""
        ctx.save_for_backward(x, weight)
        return batched(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:  # noqa: ANN401
        """Return the gradients of x, weight and bias."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        incoming = batched(gradient, weight.mT) if ctx.needs_input_grad[0] else None
        return incoming, batched(x.mT, gradient), gradient.sum(1)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W + b as `batched` computes it, with its gradient."""
    y: Tensor = Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


def _add_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), x, weight)


def _fits(operand: Tensor) -> bool:
    return _computable(operand) and not torch.is_grad_enabled()


def _computable(operand: Tensor) -> bool:
    return (
        operand.dtype == torch.float32
        and operand.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _to_heads(x: Tensor, weight: Tensor) -> Tensor:
    """Return ibh,hnd->ibnd."""
    features, heads, width = weight.shape
    rows = x[:, :1] if x.stride(1) == 0 else x
    y = _linear(rows, weight.reshape(features, -1).T)  # [i, b or 1, n d]
    return y.reshape(*y.shape[:2], heads, width).expand(-1, x.shape[1], -1, -1)


def _from_heads(x: Tensor, weight: Tensor) -> Tensor:
    """Return ibnd,hnd->ibh."""
    return _linear(x.flatten(2), weight.flatten(1))


_EINSUMS = {"ibh,hnd->ibnd": _to_heads, "ibnd,hnd->ibh": _from_heads}
