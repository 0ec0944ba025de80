#include "offgraph/cache/sequence_cache.h"
