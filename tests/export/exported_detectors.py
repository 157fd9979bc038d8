"""Detectors of logits with a formula, which both the ONNX graphs and the torch modules must carry."""

from __future__ import annotations

import math

import normscale as ns

DETECTORS: dict[str, ns.Detector] = {
    "norm_scaling": ns.NormScaling("msp", 3.0, 0.5),
    "norm_scaling, frozen": ns.NormScaling("energy", math.inf, 0.3),
    "norm_scaling+max_logit": ns.NormScaling("max_logit", 10.0, 3.0),
    "robust_norm_scaling": ns.RobustNormScaling(),
    "centred": ns.Centred(),
    "centred+norm_scaling": ns.Centred("norm_scaling"),
    "present_classes": ns.PresentClasses(),
    "stream_aware": ns.StreamAware(),
    "stream_aware+energy": ns.StreamAware("energy"),
    "tempered": ns.Tempered(),
    "tempered+norm_scaling": ns.Tempered("norm_scaling", 2.0),
    "msp": ns.MSP(),
    "max_logit": ns.MaxLogit(),
    "energy": ns.Energy(2.5),
    "odin": ns.ODIN(),
    "temperature_scaling": ns.TemperatureScaling(),
    "multi_threshold": ns.MultiThreshold(),
}
