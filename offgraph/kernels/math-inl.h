// Functions of fp32 vectors. Compiled once per instruction set: include it after foreach_target.h.
#if defined(OFFGRAPH_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_MATH_INL_H_
#undef OFFGRAPH_KERNELS_MATH_INL_H_
#else
#define OFFGRAPH_KERNELS_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include "offgraph/kernels/dtype-inl.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// exp(x) for x <= 0: within 2 ulps, 0 below -87 (where the result would be subnormal), NaN for NaN. It is 2^n 2^r with
// n the nearest integer to x log2(e), which adding 1.5 * 2^23 leaves in the lowest bits, and the series of 2^r, whose
// coefficients are ln(2)^i / i!.
HWY_INLINE F32V ExpOfNonPositive(F32V x) {
  const F32 d;
  const U32 du;
  const F32V log2e = hn::Set(d, 1.44269504088896341F);
  const F32V magic = hn::Set(d, 0x1.8p23F);
  const F32V shifted = hn::MulAdd(x, log2e, magic);
  const F32V r = hn::MulSub(x, log2e, hn::Sub(shifted, magic));
  F32V p = hn::Set(d, 1.5403530393381609e-4F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3333558146428443e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 9.6181291076284772e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5504108664821580e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022650695910071e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 6.9314718055994531e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::BitCast(d, hn::Add(hn::BitCast(du, p), hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), p);
}

// 1 / (1 + exp(-x)), within 4 ulps; NaN for NaN.
HWY_INLINE F32V SigmoidOf(F32V x) {
  const F32 d;
  const F32V one = hn::Set(d, 1.0F);
  const F32V e = ExpOfNonPositive(hn::Neg(hn::Abs(x)));
  const F32V sum = hn::Add(one, e);  // in [1, 2]
  // Newton's steps for a reciprocal double the digits of an estimate, which has 8 at least.
  F32V inverse = hn::ApproximateReciprocal(sum);
  inverse = hn::MulAdd(inverse, hn::NegMulAdd(sum, inverse, one), inverse);
  inverse = hn::MulAdd(inverse, hn::NegMulAdd(sum, inverse, one), inverse);
  return hn::Mul(inverse, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one));
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // OFFGRAPH_KERNELS_MATH_INL_H_
