#include "offgraph/kernels/tiles.h"

#include "offgraph/kernels/amx.h"
#include "offgraph/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/tiles.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

bool IsForTiles() { return HWY_TARGET == HWY_AVX3_DL; }

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {

HWY_EXPORT(IsForTiles);

// Asking Highway which instruction sets there are takes microseconds, its choice is a look-up.
bool TilesAvailable() { return AmxBf16Available() && HWY_DYNAMIC_DISPATCH(IsForTiles)(); }

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
