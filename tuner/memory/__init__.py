"""What a configuration takes of memory, by cause and device, before anything is loaded."""

from tuner.memory.cache import kv_bytes, kv_table, recurrent_bytes, settle_geometry
from tuner.memory.defaults import TARGET_CONTEXT, choose_context, default_config
from tuner.memory.estimate import estimate_footprint
from tuner.memory.extras import ProjectorMemory, read_projector
from tuner.memory.fit import Budget, explain_misfit, find_budget, find_misfit, largest_context
from tuner.memory.placement import Placement, count_offloaded, place_layers
from tuner.memory.record import Basis, Cause, Footprint, FrontEnd, Part

__all__ = [
    "TARGET_CONTEXT",
    "Basis",
    "Budget",
    "Cause",
    "Footprint",
    "FrontEnd",
    "Part",
    "Placement",
    "ProjectorMemory",
    "choose_context",
    "count_offloaded",
    "default_config",
    "estimate_footprint",
    "explain_misfit",
    "find_budget",
    "find_misfit",
    "kv_bytes",
    "kv_table",
    "largest_context",
    "place_layers",
    "read_projector",
    "recurrent_bytes",
    "settle_geometry",
]
