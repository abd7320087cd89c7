"""Sources as people have them: with ``main``, launches ``<<<...>>>``, host functions and the headers that only hosts have.

NVRTC compiles device code alone. A source that contains host code is parsed (tree-sitter with its CUDA grammar), its host
functions, host variables and host-only includes are replaced by blanks, so that every line keeps its number, and the rest is
compiled. Standard C++ headers come from libcu++.

===================  ==========================================================================================
:mod:`.device_part`  finds the device code of a text
:mod:`.headers`      where an included header comes from: libcu++, a file, or nothing, if only hosts need it
:mod:`.compile`      compiles the device part, and leaves out what the compiler shows to be host code
===================  ==========================================================================================
"""
