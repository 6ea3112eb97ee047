"""Facts about a model file, read from its header alone; weights are never loaded."""

from tuner.model.finding import FoundModel, ModelSearch, demo_model_path, find_models, resolve_models, search_models
from tuner.model.reading import read_model, require_decoder, require_same_model
from tuner.model.spec import LayerKind, LayerSpec, ModelSpec

__all__ = [
    "FoundModel",
    "LayerKind",
    "LayerSpec",
    "ModelSearch",
    "ModelSpec",
    "demo_model_path",
    "find_models",
    "read_model",
    "require_decoder",
    "require_same_model",
    "resolve_models",
    "search_models",
]
