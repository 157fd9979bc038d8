"""Scalar functions that LLVM can run four at a time: exp and max.

The libm versions are calls, and a loop with a call in it stays scalar; these are straight-line arithmetic, so
the loops of :mod:`normscale._kernels.compiled` become AVX code. Accuracy: ``exp_nonpositive`` within 2 ulp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic as _untyped_intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

EXACT: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}
"""Fused multiply-add allowed, nothing reordered: NaN and infinity behave as IEEE 754 says."""

REDUCE: dict[str, Any] = {**EXACT, "fastmath": {"contract", "reassoc", "nsz"}}
"""Sums may also be taken in another order, which is what lets a reduction run in vector registers."""

INLINE: dict[str, Any] = {"forceinline": True}
"""Beside one of the above: a call with three arrays costs as much as ten divisions."""


def compiled(options: dict[str, Any]) -> Callable[[Function], Function]:
    """``numba.njit`` with its type written down; ``options`` is :data:`EXACT` or :data:`REDUCE`."""
    decorator: Callable[[Function], Function] = numba.njit(**options)
    return decorator


_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # its last bits are zero, so n * _LN2_HIGH is exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to a whole number, kept in the low bits
_LOWEST = -708.0  # exp of it is the smallest normal float64; such a term never matters beside a term of 1

# exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2)/2: q interpolates at the Chebyshev nodes (degree 9, error 2e-17).
_Q0, _Q1, _Q2, _Q3 = 0.5000000000000001, 0.16666666666666669, 0.041666666666624164, 0.008333333333330065
_Q4, _Q5, _Q6 = 0.0013888888917196719, 0.00019841269863040545, 2.4801521322368692e-05
_Q7, _Q8, _Q9 = 2.7557268480310024e-06, 2.7620075879983367e-07, 2.5100375832561234e-08


def _intrinsic(build: Callable[..., Any]) -> Any:
    """numba's decorator; what it makes is called with the arguments after the context."""
    return _untyped_intrinsic(build)


@_intrinsic
def _as_bits(_context: Any, value: Any) -> Any:
    def build(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), build


@_intrinsic
def _from_bits(_context: Any, bits: Any) -> Any:
    def build(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), build


@_intrinsic
def larger(_context: Any, a: Any, b: Any) -> Any:
    """The larger of two float64; undefined for NaN, which is why a max over a loop can be vectorised."""

    def build(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        flags = ("nnan", "nsz")
        first = builder.fcmp_ordered(">", args[0], args[1], flags=flags)
        return builder.select(first, args[0], args[1], flags=flags)

    return types.float64(types.float64, types.float64), build


@compiled(EXACT)
def exp_nonpositive(x: float) -> float:
    """exp(x) for x <= 0; below -708 the smallest normal number instead of a denormal."""
    x = x if x > _LOWEST else _LOWEST
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    s = r * r  # even and odd powers apart: two short chains instead of one long one
    even = _Q8
    even = even * s + _Q6
    even = even * s + _Q4
    even = even * s + _Q2
    even = even * s + _Q0
    odd = _Q9
    odd = odd * s + _Q7
    odd = odd * s + _Q5
    odd = odd * s + _Q3
    odd = odd * s + _Q1
    result: float = (1.0 + (r + s * (even + odd * r))) * _from_bits((_as_bits(shifted) + 1023) << 52)
    return result
