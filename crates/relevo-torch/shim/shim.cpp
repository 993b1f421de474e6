// One unit of everything: torch's headers take more than a minute to compile, and are so once.
#include "load.cpp"
#include "signature.cpp"
#include "branches.cpp"
#include "writes.cpp"
#include "memory.cpp"
#include "state.cpp"
#include "forward.cpp"
