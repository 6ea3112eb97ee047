"""rooftune's core: finds the llama.cpp settings that make a model fastest on this machine, and proves it by measurement."""
