"""Sources as people have them: with ``main``, launches ``<<<...>>>``, host functions and the headers that only hosts have.

NVRTC compiles device code alone. A source that contains host code is preprocessed with its headers, as NVRTC would do it, and
the result is parsed (tree-sitter with its CUDA grammar). Host functions, host variables and host-only includes are replaced
by blanks in the files that they come from, so that every line keeps its number, and the rest is compiled. Standard C++
headers come from libcu++.

What is left out must not change the meaning of the rest. Functions of the host whose names device code uses, and member
functions of the host, become deleted functions; a class that does not compile becomes a declaration; other things are left
out only if nothing that is left names them. A use of any of these in device code is an error, as it is for nvcc.

====================  =================================================================================================
:mod:`.preprocessor`  decides conditions, expands macros and enters headers, and knows where each part comes from
:mod:`.conditions`    the value of a condition
:mod:`.device_part`   finds the device code of a translation unit
:mod:`.headers`       where an included header comes from: libcu++, a file, or nothing, if only hosts need it
:mod:`.compile`       compiles the device part, and leaves out what the compiler shows to be host code
:mod:`.kept`          keeps the result on disk, so that an unchanged source is neither parsed nor compiled again
====================  =================================================================================================
"""
