"""An empty torchvision: pytorch-ood imports it for data sets and networks, none of which the benchmarks use.

Every submodule that pytorch-ood names exists here, and every name in it is a class that refuses to be made.
"""

import sys
from types import ModuleType


class _Absent:
    def __init__(self, *_args, **_kwargs):
        raise NotImplementedError("this torchvision is a stub of normscale's benchmarks; install the real one.")


class _EmptyModule(ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Absent,), {})


for _name in ("datasets", "datasets.utils", "models", "models.resnet", "transforms", "transforms.functional"):
    sys.modules[f"{__name__}.{_name}"] = _EmptyModule(f"{__name__}.{_name}")
datasets = sys.modules[f"{__name__}.datasets"]
models = sys.modules[f"{__name__}.models"]
transforms = sys.modules[f"{__name__}.transforms"]
