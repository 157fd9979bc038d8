"""How bytes are laid out, each format once: JSON text, .npy headers, .safetensors headers.

Tables, detector files, the guard's pipe, the server and the extraction all read and write through these modules.
"""
