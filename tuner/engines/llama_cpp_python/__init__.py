"""llama.cpp through the C API that llama-cpp-python binds; `engine` holds the engine."""
