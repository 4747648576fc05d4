"""CUDA kernels (`*.cu`, one operation a file) and the launchers beside them.

The launchers know arrays, shapes and a `Device` (device.py): a GPU through CuPy (cuda_device.py), or the
emulator of the tests. Importing this package imports neither CuPy nor a driver.
"""
