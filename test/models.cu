// What test/models.h promises.
#include "test/models.h"

template struct Gpt<Cpu, float>;
template struct Gpt<Cuda, float>;
template struct Gpt<Cuda, bf16>;
