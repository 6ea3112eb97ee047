"""How a tune goes: stages, samplers, Optuna's storage, stopping, events. The only room that knows Optuna."""
