"""Buffers that stay float64 when a network is made half as precise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class DoubleBuffers(nn.Module):
    """A module whose own buffers move to other devices as asked, but never to another precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            now = self._buffers[name]
            if buffer is not None and now is not None and now.dtype != torch.float64:
                self._buffers[name] = buffer.to(now.device)
        return self
