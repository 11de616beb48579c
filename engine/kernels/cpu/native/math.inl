// Exponential and what is made of it, on 16 floats; the same bits in every lane.
namespace {

using vec::F;

// e^x with a relative error below 2e-7 for x in [-87, 88]; x outside is clamped, what is no number
// stays none. Range reduction by ln 2 in two parts and a polynomial of degree 5.
//
// Source:
//   Moshier, Cephes Mathematical Library, expf, https://netlib.org/cephes/
QD_INLINE F exponential(F x) {
  x = vec::min(vec::set(88.0f), vec::max(vec::set(-87.0f), x));
  const F n = vec::round(vec::mul(x, vec::set(1.44269504f)));
  F r = vec::fma(n, vec::set(-0.693359375f), x);
  r = vec::fma(n, vec::set(2.12194440e-4f), r);
  F p = vec::set(1.9875691500e-4f);
  p = vec::fma(p, r, vec::set(1.3981999507e-3f));
  p = vec::fma(p, r, vec::set(8.3334519073e-3f));
  p = vec::fma(p, r, vec::set(4.1665795894e-2f));
  p = vec::fma(p, r, vec::set(1.6666665459e-1f));
  p = vec::fma(p, r, vec::set(5.0000001201e-1f));
  p = vec::fma(p, vec::mul(r, r), vec::add(r, vec::set(1.0f)));
  return vec::scale_by_power_of_two(p, n);
}

// x / (1 + e^-x)
QD_INLINE F silu(F x) {
  return vec::div(x, vec::add(vec::set(1.0f), exponential(vec::sub(vec::zero(), x))));
}

// x * (1 + tanh(u)) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
//
// Source:
//   Hendrycks and Gimpel 2016, section 2, https://arxiv.org/abs/1606.08415
QD_INLINE F gelu(F x) {
  const F cube = vec::mul(vec::mul(x, x), x);
  const F minus_2u = vec::mul(vec::fma(cube, vec::set(0.044715f), x), vec::set(-1.5957691216f));
  return vec::div(x, vec::add(vec::set(1.0f), exponential(minus_2u)));
}

QD_INLINE F hyperbolic_tangent(F x) {  // 1 - 2 / (e^2x + 1)
  const F e = exponential(vec::add(x, x));
  return vec::sub(vec::set(1.0f), vec::div(vec::set(2.0f), vec::add(e, vec::set(1.0f))));
}

}  // namespace
