// Activations of fp32 vectors. Compiled once per instruction set: include it after foreach_target.h.
#if defined(OFFGRAPH_KERNELS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_ACTIVATION_INL_H_
#undef OFFGRAPH_KERNELS_ACTIVATION_INL_H_
#else
#define OFFGRAPH_KERNELS_ACTIVATION_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include <cmath>
#include <type_traits>

#include "offgraph/kernels/dtype-inl.h"
#include "offgraph/kernels/math-inl.h"
#include "offgraph/kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

HWY_INLINE F32V ErfOf(F32V x) {
  alignas(64) float lanes[kLanes];
  hn::Store(x, F32(), lanes);
  for (float& lane : lanes) lane = std::erf(lane);
  return hn::Load(F32(), lanes);
}

template <Activation kActivation>
HWY_INLINE F32V ActivationOf(F32V x) {
  const F32 d;
  const F32V half = hn::Set(d, 0.5F);
  const F32V one = hn::Set(d, 1.0F);
  if constexpr (kActivation == Activation::kCopy) return x;
  if constexpr (kActivation == Activation::kNegate) return hn::Neg(x);
  if constexpr (kActivation == Activation::kSilu) return hn::Mul(x, SigmoidOf(x));
  if constexpr (kActivation == Activation::kSigmoid) return SigmoidOf(x);
  if constexpr (kActivation == Activation::kTanh) return hn::Tanh(d, x);
  if constexpr (kActivation == Activation::kGelu) {
    return hn::Mul(hn::Mul(half, x), hn::Add(one, ErfOf(hn::Mul(x, hn::Set(d, 0.70710678F)))));
  }
  if constexpr (kActivation == Activation::kGeluTanh) {
    const F32V cube = hn::Mul(hn::Mul(x, x), x);
    const F32V inner = hn::Mul(hn::Set(d, 0.79788456F), hn::MulAdd(hn::Set(d, 0.044715F), cube, x));
    return hn::Mul(hn::Mul(half, x), hn::Add(one, hn::Tanh(d, inner)));
  }
}

// Calls f with the enumerator as a constant.
template <class F>
HWY_INLINE void WithActivation(Activation activation, const F& f) {
  using A = Activation;
  switch (activation) {
    case A::kCopy:
      return f(std::integral_constant<A, A::kCopy>());
    case A::kNegate:
      return f(std::integral_constant<A, A::kNegate>());
    case A::kSilu:
      return f(std::integral_constant<A, A::kSilu>());
    case A::kGelu:
      return f(std::integral_constant<A, A::kGelu>());
    case A::kGeluTanh:
      return f(std::integral_constant<A, A::kGeluTanh>());
    case A::kSigmoid:
      return f(std::integral_constant<A, A::kSigmoid>());
    case A::kTanh:
      return f(std::integral_constant<A, A::kTanh>());
  }
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
