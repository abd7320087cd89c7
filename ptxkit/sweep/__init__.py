"""Search for the best tile parameters: constraints, a pool of compiling processes, one measuring process, a journal,
reports."""
