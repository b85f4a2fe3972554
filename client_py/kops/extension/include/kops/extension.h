// torch/extension.h in small: tensors are handles with sizes, strides and dtype; every computation goes through one table of functions.
#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
#include <kops/abi.h>
#include <kops/cuda.h>

namespace c10 {
#define KOPS_TYPES(_) _(uint8_t, Byte, 0) _(int8_t, Char, 1) _(int16_t, Short, 2) _(int, Int, 3) _(int64_t, Long, 4) \
  _(::c10::Half, Half, 5) _(float, Float, 6) _(double, Double, 7) _(bool, Bool, 11) _(::c10::BFloat16, BFloat16, 15)
struct Half { uint16_t x; Half() = default; Half(float f) : x(kops::to_half(f)) {} operator float() const { return kops::from_half(x); }
  struct from_bits_t {}; Half(const __half& h) : x(h.x) {} operator __half() const { __half h; h.x = x; return h; } };
struct BFloat16 { uint16_t x; BFloat16() = default; BFloat16(float f) { uint32_t u; memcpy(&u, &f, 4); x = (u + 0x7fff + ((u >> 16) & 1)) >> 16; }
  operator float() const { uint32_t u = uint32_t(x) << 16; float f; memcpy(&f, &u, 4); return f; } };
template <class T> struct complex { T re, im; complex(T r = 0, T i = 0) : re(r), im(i) {} T real() const { return re; } T imag() const { return im; } };
enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8, QInt32, BFloat16, Float8_e5m2 = 23, Float8_e4m3fn = 24, Undefined = 44 };
inline const char* toString(ScalarType t) { switch (t) {
#define _(T, N, I) case ScalarType::N: return #N;
  KOPS_TYPES(_)
#undef _
  default: return "Undefined"; } }
inline size_t elementSize(ScalarType t) { switch (t) {
#define _(T, N, I) case ScalarType::N: return sizeof(T);
  KOPS_TYPES(_)
#undef _
  case ScalarType::ComplexFloat: return 8; case ScalarType::ComplexDouble: return 16; default: return 1; } }
inline bool isFloatingType(ScalarType t) { return t == ScalarType::Half || t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::BFloat16; }
inline bool isIntegralType(ScalarType t, bool b = false) { return int(t) <= 4 || (b && t == ScalarType::Bool); }
inline std::ostream& operator<<(std::ostream& o, ScalarType t) { return o << toString(t); }
template <class T> struct CppTypeToScalarType { static constexpr ScalarType value = ScalarType::Undefined; };
#define _(T, N, I) template <> struct CppTypeToScalarType<T> { static constexpr ScalarType value = ScalarType::N; };
KOPS_TYPES(_)
#undef _
template <> struct CppTypeToScalarType<complex<float>> { static constexpr ScalarType value = ScalarType::ComplexFloat; };
#define KOPS_K(K, S) constexpr ScalarType K = ScalarType::S;
KOPS_K(kByte, Byte) KOPS_K(kUInt8, Byte) KOPS_K(kChar, Char) KOPS_K(kInt8, Char) KOPS_K(kShort, Short) KOPS_K(kInt16, Short) KOPS_K(kInt, Int) KOPS_K(kInt32, Int)
KOPS_K(kLong, Long) KOPS_K(kInt64, Long) KOPS_K(kHalf, Half) KOPS_K(kFloat16, Half) KOPS_K(kFloat, Float) KOPS_K(kFloat32, Float) KOPS_K(kDouble, Double)
KOPS_K(kFloat64, Double) KOPS_K(kBool, Bool) KOPS_K(kBFloat16, BFloat16) KOPS_K(kComplexFloat, ComplexFloat) KOPS_K(kComplexDouble, ComplexDouble)
KOPS_K(kFloat8_e4m3fn, Float8_e4m3fn) KOPS_K(kFloat8_e5m2, Float8_e5m2)
enum class DeviceType : int8_t { CPU = 0, CUDA = 1, HIP = 6, Meta = 13 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kMeta = DeviceType::Meta;
using DeviceIndex = int8_t;
inline std::ostream& operator<<(std::ostream& o, DeviceType t) { return o << (t == kCPU ? "cpu" : "cuda"); }
struct Device { DeviceType t; DeviceIndex i; Device(DeviceType t = kCPU, DeviceIndex i = -1) : t(t), i(i) {}
  Device(const std::string& s) : t(s.compare(0, 4, "cuda") ? kCPU : kCUDA), i(s.size() > 5 && s[4] == ':' ? atoi(s.c_str() + 5) : -1) {} Device(const char* s) : Device(std::string(s)) {}
  DeviceType type() const { return t; } DeviceIndex index() const { return i; } bool has_index() const { return i >= 0; } bool is_cuda() const { return t == kCUDA; } bool is_cpu() const { return t == kCPU; }
  std::string str() const { std::string s = t == kCPU ? "cpu" : "cuda"; return i < 0 ? s : s + ":" + std::to_string(int(i)); } };
inline bool operator==(const Device& a, const Device& b) { return a.t == b.t && (a.i == b.i); }
inline bool operator!=(const Device& a, const Device& b) { return !(a == b); }
inline std::ostream& operator<<(std::ostream& o, const Device& d) { return o << d.str(); }
enum class Layout { Strided, Sparse }; constexpr Layout kStrided = Layout::Strided, kSparse = Layout::Sparse;
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
template <class T> struct ArrayRef { const T* d = nullptr; size_t n = 0; using value_type = T; using iterator = const T*;
  ArrayRef() = default; ArrayRef(const T& x) : d(&x), n(1) {} ArrayRef(const T* d, size_t n) : d(d), n(n) {} ArrayRef(const T* b, const T* e) : d(b), n(e - b) {}
  ArrayRef(const std::vector<T>& v) : d(v.data()), n(v.size()) {} ArrayRef(const std::initializer_list<T>& l) : d(l.begin()), n(l.size()) {}
  template <size_t N> ArrayRef(const std::array<T, N>& a) : d(a.data()), n(N) {} template <size_t N> ArrayRef(const T (&a)[N]) : d(a), n(N) {}
  const T* begin() const { return d; } const T* end() const { return d + n; } const T* data() const { return d; } size_t size() const { return n; } bool empty() const { return !n; }
  const T& operator[](size_t i) const { return d[i]; } const T& at(size_t i) const { return d[i]; } const T& front() const { return d[0]; } const T& back() const { return d[n - 1]; }
  std::vector<T> vec() const { return std::vector<T>(d, d + n); } bool equals(ArrayRef o) const { return n == o.n && std::equal(d, d + n, o.d); }
  ArrayRef slice(size_t s, size_t k) const { return {d + s, k}; } ArrayRef slice(size_t s) const { return {d + s, n - s}; } operator std::vector<T>() const { return vec(); } };
template <class T> bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); } template <class T> bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <class T> bool operator==(const std::vector<T>& a, ArrayRef<T> b) { return b.equals(a); } template <class T> bool operator==(ArrayRef<T> b, const std::vector<T>& a) { return b.equals(a); }
template <class T> bool operator!=(const std::vector<T>& a, ArrayRef<T> b) { return !b.equals(a); } template <class T> bool operator!=(ArrayRef<T> b, const std::vector<T>& a) { return !b.equals(a); }
template <class T> std::ostream& operator<<(std::ostream& o, ArrayRef<T> a) { o << "["; for (size_t i = 0; i < a.n; i++) o << (i ? ", " : "") << a.d[i]; return o << "]"; }
using IntArrayRef = ArrayRef<int64_t>; template <class T, unsigned N = 6> using SmallVector = std::vector<T>;
template <class T> using optional = std::optional<T>; using std::nullopt; using std::nullopt_t; using std::make_optional; template <class T> using OptionalRef = std::optional<T>; using string_view = std::string_view;
struct Error : std::runtime_error { using runtime_error::runtime_error; }; struct IndexError : Error { using Error::Error; }; struct ValueError : Error { using Error::Error; };
template <class... A> std::string str(const A&... a) { std::ostringstream s; ((s << a), ...); return s.str(); }
template <class... A> [[noreturn]] void fail(const char* file, int line, const char* what, const A&... a) { if constexpr (sizeof...(A) == 0) throw Error(str("Expected ", what, " to be true, but got false. (", file, ":", line, ")")); else throw Error(str(a...)); }
struct Scalar { int tag; int64_t i; double d; Scalar() : Scalar(0) {} template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> Scalar(T v) : tag(std::is_same_v<T, bool> ? 4 : std::is_integral_v<T> ? 2 : 3), i(int64_t(v)), d(double(v)) {}
  Scalar(Half h) : Scalar(float(h)) {} Scalar(BFloat16 h) : Scalar(float(h)) {} template <class T> T to() const { return tag == 3 ? T(d) : T(i); }
  double toDouble() const { return d; } float toFloat() const { return float(d); } int64_t toLong() const { return i; } int toInt() const { return int(i); } bool toBool() const { return i; } bool isFloatingPoint() const { return tag == 3; } bool isIntegral(bool = false) const { return tag == 2; } };
struct TypeMeta { ScalarType t; TypeMeta(ScalarType t = ScalarType::Float) : t(t) {} operator ScalarType() const { return t; } ScalarType toScalarType() const { return t; } std::string name() const { return toString(t); } size_t itemsize() const { return elementSize(t); } };
inline bool operator==(TypeMeta a, TypeMeta b) { return a.t == b.t; } inline bool operator!=(TypeMeta a, TypeMeta b) { return a.t != b.t; }
inline bool operator==(TypeMeta a, ScalarType b) { return a.t == b; } inline bool operator!=(TypeMeta a, ScalarType b) { return a.t != b; } inline bool operator==(ScalarType b, TypeMeta a) { return a.t == b; } inline bool operator!=(ScalarType b, TypeMeta a) { return a.t != b; }
inline std::ostream& operator<<(std::ostream& o, TypeMeta t) { return o << toString(t.t); }
inline ScalarType typeMetaToScalarType(TypeMeta t) { return t.t; } inline TypeMeta scalarTypeToTypeMeta(ScalarType t) { return t; }
struct TensorOptions { std::optional<ScalarType> ty; std::optional<Device> dev; bool grad = false; TensorOptions() = default; TensorOptions(ScalarType t) : ty(t) {} TensorOptions(TypeMeta t) : ty(t.t) {} TensorOptions(Device d) : dev(d) {} TensorOptions(DeviceType d) : dev(d) {} TensorOptions(MemoryFormat) {} TensorOptions(Layout) {}
  TensorOptions dtype(ScalarType t) const { auto o = *this; o.ty = t; return o; } TensorOptions dtype(TypeMeta t) const { return dtype(t.t); } template <class T> TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); } TypeMeta dtype() const { return ty.value_or(kFloat); } Device device() const { return dev.value_or(Device()); }
  template <class D> TensorOptions device(D d) const { auto o = *this; o.dev = Device(d); return o; } TensorOptions device(DeviceType d, int i) const { return device(Device(d, i)); } TensorOptions device_index(int i) const { return device(Device(kCUDA, i)); }
  TensorOptions requires_grad(bool g = true) const { auto o = *this; o.grad = g; return o; } TensorOptions layout(Layout) const { return *this; } TensorOptions memory_format(MemoryFormat) const { return *this; } TensorOptions pinned_memory(bool = true) const { return *this; } bool requires_grad() { return grad; } bool has_dtype() const { return bool(ty); } };
inline std::ostream& operator<<(std::ostream& o, const TensorOptions& t) { return o << "TensorOptions(dtype=" << t.dtype() << ", device=" << t.device() << ")"; }
template <class T> struct intrusive_ptr : std::shared_ptr<T> {};
}  // namespace c10
namespace caffe2 { using c10::TypeMeta; }

namespace at {
using namespace c10; namespace indexing_ns {}
class Tensor; using TensorList = ArrayRef<Tensor>; using ITensorListRef = TensorList;
}
namespace at::indexing { enum class TensorIndexType { None, Ellipsis }; struct EllipsisType {}; constexpr EllipsisType Ellipsis{}; using NoneType = std::nullopt_t; constexpr std::nullopt_t None = std::nullopt;
struct Slice { std::optional<int64_t> v[3]; Slice(std::optional<int64_t> a = {}, std::optional<int64_t> b = {}, std::optional<int64_t> c = {}) : v{a, b, c} {} }; }
namespace kops {
using namespace c10; using at::Tensor;
struct Box { std::vector<KopsValue> v; std::vector<std::vector<int64_t>> keep; 
  void add(int tag, int64_t i, double d = 0, const void* p = nullptr, int n = 0) { v.push_back({tag, n, i, d, p}); }
  void operator()(const Tensor& t); void operator()(std::nullopt_t) { add(0, 0); } void operator()(const Scalar& s) { add(s.tag, s.i, s.d); }
  void operator()(ScalarType t) { add(5, int(t)); } void operator()(TypeMeta t) { add(5, int(t.t)); } void operator()(Device d) { add(6, int(d.t), d.i); } void operator()(DeviceType d) { add(6, int(d), -1); } void operator()(MemoryFormat m) { add(2, int(m)); } void operator()(Layout) { add(0, 0); }
  void operator()(const char* s) { add(7, 0, 0, s, strlen(s)); } void operator()(const std::string& s) { add(7, 0, 0, s.data(), s.size()); }
  void operator()(IntArrayRef a) { add(8, 0, 0, a.d, a.n); } void operator()(const std::vector<int64_t>& a) { add(8, 0, 0, a.data(), a.size()); } void operator()(ArrayRef<double> a) { add(10, 0, 0, a.d, a.n); }
  template <size_t N> void operator()(const std::array<bool, N>& a) { std::vector<int64_t> k(a.begin(), a.end()); keep.push_back(k); add(8, 0, 0, keep.back().data(), N); }
  void operator()(ArrayRef<Tensor> a); void operator()(const std::vector<Tensor>& a); 
  void operator()(const TensorOptions& o) { add(11, int(o.ty ? int(*o.ty) : 44) | (o.dev ? int(o.dev->t) : 255) << 8 | (o.dev ? o.dev->i & 255 : 255) << 16, o.grad); }
  void operator()(at::indexing::Slice s) { std::vector<int64_t> k; for (auto& x : s.v) k.push_back(x ? *x : INT64_MIN); keep.push_back(k); add(12, 0, 0, keep.back().data(), 3); } void operator()(at::indexing::EllipsisType) { add(7, 0, 0, "...", 3); }
  template <class T> void operator()(const std::optional<T>& o) { if (o) (*this)(*o); else add(0, 0); }
  template <class T> std::enable_if_t<std::is_arithmetic_v<T>> operator()(T x) { (*this)(Scalar(x)); } };
template <class R> R call(const char* name, Box& b);
template <class R, class... A> R call(const char* name, const A&... a) { Box b; b.v.reserve(sizeof...(A)); (b(a), ...); return call<R>(name, b); }
}  // namespace kops

namespace at {
struct GenericPackedTensorAccessorTag {};
template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; }; template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t> struct PackedTensorAccessor { T* data_; I sizes_[N], strides_[N]; I size(I i) const { return sizes_[i]; } I stride(I i) const { return strides_[i]; } T* data() { return data_; }
  PackedTensorAccessor<T, (N > 1 ? N - 1 : 1), P, I> operator[](I) const { abort(); } template <class... A> T& operator()(A...) const { abort(); } };
template <class T, size_t N, template <class> class P = DefaultPtrTraits> using PackedTensorAccessor32 = PackedTensorAccessor<T, N, P, int32_t>; template <class T, size_t N, template <class> class P = DefaultPtrTraits> using PackedTensorAccessor64 = PackedTensorAccessor<T, N, P, int64_t>;
template <class T, size_t N> struct TensorAccessor { T* data_; int64_t sizes_[N], strides_[N]; int64_t size(int64_t i) const { return sizes_[i]; } int64_t stride(int64_t i) const { return strides_[i]; } T* data() { return data_; } decltype(auto) operator[](int64_t i) const { if constexpr (N == 1) return (data_[i * strides_[0]]); else { TensorAccessor<T, N - 1> a; a.data_ = data_ + i * strides_[0]; for (size_t k = 1; k < N; k++) a.sizes_[k - 1] = sizes_[k], a.strides_[k - 1] = strides_[k]; return a; } } };
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t> using GenericPackedTensorAccessor = PackedTensorAccessor<T, N, P, I>;
struct Storage { uint64_t p; size_t n; void* data() const { return (void*)p; } size_t nbytes() const { return n; } };
struct DeprecatedType { ScalarType t; bool cuda; ScalarType scalarType() const { return t; } operator ScalarType() const { return t; } bool is_cuda() const { return cuda; } std::string toString() const { return c10::toString(t); } operator TensorOptions() const { return TensorOptions(t).device(cuda ? kCUDA : kCPU); } };
#define KOPS_UNARY(_) _(abs) _(exp) _(log) _(sqrt) _(rsqrt) _(sin) _(cos) _(tan) _(tanh) _(sigmoid) _(relu) _(floor) _(ceil) _(round) _(neg) _(erf) _(square) _(pow) _(clamp) _(sum) _(mean) _(prod) _(var) _(std) _(any) _(all) _(argmax) _(argmin) _(norm) _(matmul) _(mm) _(bmm) _(add) _(sub) _(mul) _(div) _(softmax) _(log_softmax) _(logsumexp) _(cumsum) _(cumprod) _(flip) _(roll) _(transpose) _(permute) _(reshape) _(squeeze) _(unsqueeze) _(flatten) _(t) _(select) _(narrow) _(gather) _(index_select) _(masked_fill) _(clone) _(eq) _(ne) _(lt) _(gt) _(le) _(ge) _(maximum) _(minimum) _(amax) _(amin) _(addmm) _(baddbmm) _(dot) _(mv) _(outer) _(tril) _(triu) _(diag) _(sign) _(isnan) _(isinf) _(logical_not) _(logical_and) _(logical_or) _(bitwise_not) _(bitwise_and) _(bitwise_or) _(where) _(nonzero) _(numpy_T) _(broadcast_to) _(movedim) _(tile) _(relu_) _(sigmoid_) _(tanh_) _(clamp_) _(clamp_min) _(clamp_max) _(lerp) _(bincount) _(log1p) _(expm1) _(log2) _(reciprocal) _(diagonal) _(slice) _(detach) _(swapaxes) _(frobenius_norm) _(masked_select) _(scatter) _(scatter_add) _(repeat_interleave) _(trunc) _(remainder) _(fmod) _(index_add) _(take) _(kron) _(cosh) _(sinh) _(multiply) _(true_divide) _(hardshrink) _(hardtanh)
#define KOPS_METHOD(_) _(contiguous) _(view) _(view_as) _(reshape_as) _(expand) _(expand_as) _(repeat) _(to) _(cuda) _(cpu) _(copy_) _(zero_) _(fill_) _(add_) _(sub_) _(mul_) _(div_) _(unsqueeze_) _(squeeze_) _(resize_) _(set_) _(to_dense) _(toType) _(half_) _(exp_) _(sqrt_) _(pow_) _(neg_) _(abs_) _(normal_) _(uniform_) _(masked_fill_) _(scatter_) _(scatter_add_) _(index_add_) _(index_copy_) _(transpose_) _(as_strided) _(new_empty) _(new_zeros) _(new_ones) _(new_full) _(unfold) _(type_as) _(unflatten) _(pin_memory) _(addmm_) _(clamp_min_) _(clamp_max_) _(floor_divide) _(bernoulli_) _(new_tensor) _(mT) _(mH) _(alias) _(grad) _(record_stream)
#define KOPS_FUNCTION(_) _(gelu) _(silu) _(leaky_relu) _(elu) _(selu) _(celu) _(softplus) _(hardsigmoid) _(hardswish) _(mish) _(softsign) _(dropout) _(embedding) _(cross_entropy_loss) _(mse_loss) _(nll_loss) _(smooth_l1_loss) _(huber_loss) _(kl_div) _(cosine_similarity) _(cdist) _(instance_norm) _(native_batch_norm) _(adaptive_avg_pool1d) _(adaptive_avg_pool2d) _(adaptive_avg_pool3d) _(adaptive_max_pool2d) _(constant_pad_nd) _(pad) _(interpolate) _(scaled_dot_product_attention) _(rms_norm) _(threshold) _(_softmax) _(addcmul) _(addcdiv) _(logical_xor) _(normalize) _(_cast_Float) _(sum_out) _(matmul_out) _(mm_out) _(add_out) _(mul_out) _(bmm_out) _(addmm_out) _(copy) _(from_file) _(hinge_embedding_loss) _(triplet_margin_loss) _(binary_cross_entropy) _(binary_cross_entropy_with_logits) _(pixel_shuffle) _(upsample_nearest2d) _(im2col) _(leaky_relu_) _(elu_) _(hardtanh_)
class Tensor {
 public:
  struct Impl { KopsTensor t; ~Impl() { if (kops::table) kops::table->release(t.id); } };
  std::shared_ptr<Impl> p;
  Tensor() = default; explicit Tensor(const KopsTensor& t) : p(new Impl{t}) {}
  const KopsTensor& m() const { if (!p) throw Error("an undefined tensor is used"); return p->t; }
  bool defined() const { return bool(p); } int64_t dim() const { return m().ndim; } int64_t ndimension() const { return dim(); }
  int64_t wrap(int64_t d) const { int64_t n = dim(); if (d < -n || d >= n) throw IndexError(str("Dimension out of range (expected to be in range of [", -n, ", ", n - 1, "], but got ", d, ")")); return d < 0 ? d + n : d; }
  int64_t size(int64_t d) const { return m().sizes[wrap(d)]; } int64_t stride(int64_t d) const { return m().strides[wrap(d)]; } IntArrayRef sizes() const { return {m().sizes, size_t(dim())}; } IntArrayRef strides() const { return {m().strides, size_t(dim())}; }
  int64_t numel() const { int64_t n = 1; for (int i = 0; i < m().ndim; i++) n *= m().sizes[i]; return n; } size_t nbytes() const { return numel() * element_size(); } int64_t element_size() const { return c10::elementSize(scalar_type()); } int64_t itemsize() const { return element_size(); }
  ScalarType scalar_type() const { return ScalarType(m().dtype); } TypeMeta dtype() const { return scalar_type(); } Device device() const { return {DeviceType(m().device_type), DeviceIndex(m().device_index)}; } int64_t get_device() const { return m().device_index; } DeprecatedType type() const { return {scalar_type(), is_cuda()}; }
  bool is_cuda() const { return m().device_type == 1; } bool is_cpu() const { return m().device_type == 0; } bool is_sparse() const { return false; } bool is_floating_point() const { return isFloatingType(scalar_type()); } bool is_complex() const { return false; } bool requires_grad() const { return m().requires_grad; } Layout layout() const { return kStrided; }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); } bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const { int64_t z = 1; for (int i = m().ndim - 1; i >= 0; i--) { if (m().sizes[i] != 1 && m().strides[i] != z) return false; z *= m().sizes[i]; } return true; } MemoryFormat suggest_memory_format() const { return MemoryFormat::Contiguous; }
  bool is_same(const Tensor& o) const { return p == o.p; } Storage storage() const { return {m().data, nbytes()}; } int64_t storage_offset() const { return 0; } bool has_storage() const { return true; } int64_t use_count() const { return p.use_count(); } Tensor set_requires_grad(bool) const { return *this; } Tensor requires_grad_(bool = true) const { return *this; }
  template <class T> T* data_ptr() const { using U = std::remove_const_t<T>; if constexpr (c10::CppTypeToScalarType<U>::value != ScalarType::Undefined) if (scalar_type() != c10::CppTypeToScalarType<U>::value) throw Error(str("expected scalar type ", c10::CppTypeToScalarType<U>::value, " but found ", scalar_type())); return (T*)m().data; }
  void* data_ptr() const { return (void*)m().data; } template <class T> T* data() const { return data_ptr<T>(); } Tensor data() const { return *this; } template <class T> const T* const_data_ptr() const { return data_ptr<T>(); } const void* const_data_ptr() const { return data_ptr(); } template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); } void* mutable_data_ptr() const { return data_ptr(); } void* unsafeGetTensorImpl() const { return p.get(); }
  template <class T, size_t N, template <class> class P = DefaultPtrTraits> PackedTensorAccessor<T, N, P, int32_t> packed_accessor32() const { return acc<PackedTensorAccessor<T, N, P, int32_t>, T>(N); } template <class T, size_t N, template <class> class P = DefaultPtrTraits> PackedTensorAccessor<T, N, P, int64_t> packed_accessor64() const { return acc<PackedTensorAccessor<T, N, P, int64_t>, T>(N); }
  template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t> PackedTensorAccessor<T, N, P, I> packed_accessor() const { return acc<PackedTensorAccessor<T, N, P, I>, T>(N); } template <class T, size_t N> TensorAccessor<T, N> accessor() const { return acc<TensorAccessor<T, N>, T>(N); }
  template <class A, class T> A acc(int n) const { A a; if (n != dim()) throw Error("accessor: wrong number of dimensions"); a.data_ = data_ptr<T>(); for (int i = 0; i < n; i++) a.sizes_[i] = size(i), a.strides_[i] = stride(i); return a; }
  template <class T> T item() const { return kops::call<Scalar>("item", *this).template to<T>(); } template <int = 0> Scalar item() const { return kops::call<Scalar>("item", *this); }
  template <int = 0> bool equal(const Tensor& o) const { return kops::call<Scalar>("equal", *this, o).toBool(); } template <int = 0> bool allclose(const Tensor& o, double r = 1e-5, double a = 1e-8) const { return kops::call<Scalar>("allclose", *this, o, r, a).toBool(); }
#define KOPS_M(N) template <class... A> Tensor N(const A&... a) const { return kops::call<Tensor>(#N, *this, a...); } template <class... A> Tensor N(IntArrayRef s, const A&... a) const { return kops::call<Tensor>(#N, *this, s, a...); }
  KOPS_UNARY(KOPS_M) KOPS_METHOD(KOPS_M)
#undef KOPS_M
  template <int = 0> std::vector<Tensor> split(int64_t n, int64_t d = 0) const { return kops::call<std::vector<Tensor>>("split", *this, n, d); } template <int = 0> std::vector<Tensor> split(IntArrayRef n, int64_t d = 0) const { return kops::call<std::vector<Tensor>>("split", *this, n, d); } std::vector<Tensor> split_with_sizes(IntArrayRef n, int64_t d = 0) const { return split(n, d); } template <int = 0> std::vector<Tensor> chunk(int64_t n, int64_t d = 0) const { return kops::call<std::vector<Tensor>>("chunk", *this, n, d); } template <int = 0> std::vector<Tensor> unbind(int64_t d = 0) const { return kops::call<std::vector<Tensor>>("unbind", *this, d); }
#define KOPS_PAIR(N) template <class D> std::tuple<Tensor, Tensor> N(D d, bool k = false) const { auto v = kops::call<std::vector<Tensor>>(#N, *this, d, k); return {v.at(0), v.at(1)}; }
  template <int = 0> Tensor max() const { return kops::call<Tensor>("max", *this); } template <int = 0> Tensor max(const Tensor& o) const { return kops::call<Tensor>("maximum", *this, o); } template <int = 0> std::tuple<Tensor, Tensor> max(int64_t d, bool k = false) const { auto v = kops::call<std::vector<Tensor>>("max", *this, d, k); return {v.at(0), v.at(1)}; }
  template <int = 0> Tensor min() const { return kops::call<Tensor>("min", *this); } template <int = 0> Tensor min(const Tensor& o) const { return kops::call<Tensor>("minimum", *this, o); } template <int = 0> std::tuple<Tensor, Tensor> min(int64_t d, bool k = false) const { auto v = kops::call<std::vector<Tensor>>("min", *this, d, k); return {v.at(0), v.at(1)}; }
  std::tuple<Tensor, Tensor> topk(int64_t n, int64_t d = -1, bool l = true, bool s = true) const { auto v = kops::call<std::vector<Tensor>>("topk", *this, n, d, l, s); return {v.at(0), v.at(1)}; } template <int = 0> std::tuple<Tensor, Tensor> sort(std::optional<bool> st, int64_t d, bool r) const { return sort(d, r); } std::tuple<Tensor, Tensor> sort(int64_t d = -1, bool r = false) const { auto v = kops::call<std::vector<Tensor>>("sort", *this, d, r); return {v.at(0), v.at(1)}; }
  struct Index { std::function<void(kops::Box&)> f; template <class T> Index(const T& t) : f([t](kops::Box& b) { b(t); }) {} };
  Tensor index(std::initializer_list<Index> l) const { kops::Box b; b(*this); for (auto& i : l) i.f(b); return kops::call<Tensor>("index", b); } template <class V> Tensor index_put_(std::initializer_list<Index> l, const V& v) { kops::Box b; b(*this); b(v); for (auto& i : l) i.f(b); kops::call<Tensor>("index_put_", b); return *this; }
  Tensor operator[](int64_t i) const { return select(0, i); } Tensor operator[](const Tensor& i) const { return index({i}); } Tensor operator-() const { return neg(); } Tensor operator~() const { return bitwise_not(); }
#define _(OP, N) Tensor operator OP##=(const Tensor& o) { N##_(o); return *this; } Tensor operator OP##=(const Scalar& o) { N##_(o); return *this; }
  _(+, add) _(-, sub) _(*, mul) _(/, div)
#undef _
};
#define _(OP, N) template <int = 0> Tensor operator OP(const Tensor& a, const Tensor& b) { return kops::call<Tensor>(#N, a, b); } template <int = 0> Tensor operator OP(const Tensor& a, const Scalar& b) { return kops::call<Tensor>(#N, a, b); } template <int = 0> Tensor operator OP(const Scalar& a, const Tensor& b) { return kops::call<Tensor>("r" #N, b, a); }
_(+, add) _(-, sub) _(*, mul) _(/, div) _(<, lt) _(>, gt) _(<=, le) _(>=, ge) _(==, eq) _(!=, ne) _(&, bitwise_and) _(|, bitwise_or) _(^, bitwise_xor)
#undef _
inline std::ostream& operator<<(std::ostream& o, const Tensor& t) { return o << "tensor" << t.sizes(); }
#define KOPS_F(N) template <class... A> Tensor N(const Tensor& t, const A&... a) { return kops::call<Tensor>(#N, t, a...); } template <class... A> Tensor N(const Tensor& t, IntArrayRef s, const A&... a) { return kops::call<Tensor>(#N, t, s, a...); }
KOPS_UNARY(KOPS_F) KOPS_FUNCTION(KOPS_F)
#define KOPS_NEW(N) template <int = 0> Tensor N(IntArrayRef s, const TensorOptions& o = {}, std::optional<MemoryFormat> = {}) { return kops::call<Tensor>(#N " options", s, o); }
KOPS_NEW(empty) KOPS_NEW(zeros) KOPS_NEW(ones) KOPS_NEW(rand) KOPS_NEW(randn)
#define KOPS_LIKE(N) template <int = 0> Tensor N(const Tensor& t, const TensorOptions& o = {}, std::optional<MemoryFormat> = {}) { return kops::call<Tensor>(#N " options", t, o); }
KOPS_LIKE(empty_like) KOPS_LIKE(zeros_like) KOPS_LIKE(ones_like) KOPS_LIKE(rand_like) KOPS_LIKE(randn_like)
template <int = 0> Tensor full(IntArrayRef s, const Scalar& v, const TensorOptions& o = {}) { return kops::call<Tensor>("full options", s, v, o); } template <int = 0> Tensor full_like(const Tensor& t, const Scalar& v, const TensorOptions& o = {}) { return kops::call<Tensor>("full_like options", t, v, o); } template <int = 0> Tensor empty_strided(IntArrayRef s, IntArrayRef t, const TensorOptions& o = {}) { return kops::call<Tensor>("empty_strided options", s, t, o); }
template <int = 0> Tensor arange(const Scalar& e, const TensorOptions& o = {}) { return kops::call<Tensor>("arange options", e, o); } template <int = 0> Tensor arange(const Scalar& a, const Scalar& e, const TensorOptions& o = {}) { return kops::call<Tensor>("arange options", a, e, o); } template <int = 0> Tensor arange(const Scalar& a, const Scalar& e, const Scalar& s, const TensorOptions& o = {}) { return kops::call<Tensor>("arange options", a, e, s, o); } template <int = 0> Tensor eye(int64_t n, const TensorOptions& o = {}) { return kops::call<Tensor>("eye options", n, o); } template <int = 0> Tensor linspace(const Scalar& a, const Scalar& e, int64_t n, const TensorOptions& o = {}) { return kops::call<Tensor>("linspace options", a, e, n, o); } template <int = 0> Tensor scalar_tensor(const Scalar& v, const TensorOptions& o = {}) { return kops::call<Tensor>("scalar_tensor options", v, o); } template <int = 0> Tensor randint(int64_t lo, int64_t hi, IntArrayRef s, const TensorOptions& o = {}) { return kops::call<Tensor>("randint options", lo, hi, s, o); }
template <class T> std::enable_if_t<std::is_arithmetic_v<T>, Tensor> tensor(T v, const TensorOptions& o = {}) { return scalar_tensor(v, o); } template <int = 0> Tensor tensor(ArrayRef<int64_t> v, const TensorOptions& o = {}) { return kops::call<Tensor>("tensor options", v, o); } template <int = 0> Tensor tensor(ArrayRef<double> v, const TensorOptions& o = {}) { return kops::call<Tensor>("tensor options", v, o); }
template <class D> Tensor from_blob(void* p, IntArrayRef s, const D&, const TensorOptions& o = {}) { return kops::call<Tensor>("from_blob options", int64_t(p), s, o); } template <int = 0> Tensor from_blob(void* p, IntArrayRef s, const TensorOptions& o = {}) { return kops::call<Tensor>("from_blob options", int64_t(p), s, o); }
template <int = 0> Tensor cat(TensorList l, int64_t d = 0) { return kops::call<Tensor>("cat", l, d); } template <int = 0> Tensor stack(TensorList l, int64_t d = 0) { return kops::call<Tensor>("stack", l, d); } template <int = 0> Tensor concat(TensorList l, int64_t d = 0) { return cat(l, d); } template <int = 0> Tensor where(const Tensor& c, const Tensor& a, const Tensor& b) { return kops::call<Tensor>("where", c, a, b); } template <int = 0> Tensor where(const Tensor& c, const Scalar& a, const Tensor& b) { return kops::call<Tensor>("where", c, a, b); } template <int = 0> Tensor where(const Tensor& c, const Tensor& a, const Scalar& b) { return kops::call<Tensor>("where", c, a, b); } template <int = 0> Tensor einsum(const std::string& e, TensorList l) { return kops::call<Tensor>("einsum", e, l); }
template <int = 0> bool allclose(const Tensor& a, const Tensor& b, double r = 1e-5, double t = 1e-8) { return a.allclose(b, r, t); } template <int = 0> bool equal(const Tensor& a, const Tensor& b) { return a.equal(b); } template <int = 0> std::vector<Tensor> split(const Tensor& t, int64_t n, int64_t d = 0) { return t.split(n, d); } template <int = 0> std::vector<Tensor> chunk(const Tensor& t, int64_t n, int64_t d = 0) { return t.chunk(n, d); } template <int = 0> std::tuple<Tensor, Tensor> topk(const Tensor& t, int64_t n, int64_t d = -1, bool l = true, bool s = true) { return t.topk(n, d, l, s); } template <int = 0> Tensor max(const Tensor& a) { return a.max(); } template <int = 0> Tensor max(const Tensor& a, const Tensor& b) { return a.max(b); } template <int = 0> std::tuple<Tensor, Tensor> max(const Tensor& a, int64_t d, bool k = false) { return a.max(d, k); } template <int = 0> Tensor min(const Tensor& a) { return a.min(); } template <int = 0> Tensor min(const Tensor& a, const Tensor& b) { return a.min(b); }
#define KOPS_CONV(N) template <int = 0> Tensor N(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b = {}, IntArrayRef s = 1, IntArrayRef p = 0, IntArrayRef d = 1, int64_t g = 1) { return kops::call<Tensor>(#N, x, w, b, s, p, d, g); }
KOPS_CONV(conv1d) KOPS_CONV(conv2d) KOPS_CONV(conv3d)
#define KOPS_CONVT(N) template <int = 0> Tensor N(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b = {}, IntArrayRef s = 1, IntArrayRef p = 0, IntArrayRef q = 0, int64_t g = 1, IntArrayRef d = 1) { return kops::call<Tensor>(#N, x, w, b, s, p, q, g, d); }
KOPS_CONVT(conv_transpose1d) KOPS_CONVT(conv_transpose2d) KOPS_CONVT(conv_transpose3d)
template <int = 0> Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b, IntArrayRef s, IntArrayRef p, IntArrayRef d, bool t, IntArrayRef o, int64_t g) { return kops::call<Tensor>("convolution", x, w, b, s, p, d, t, o, g); }
#define KOPS_POOL(N) template <int = 0> Tensor N(const Tensor& x, IntArrayRef k, IntArrayRef s = {}, IntArrayRef p = 0, IntArrayRef d = 1, bool c = false) { return kops::call<Tensor>(#N, x, k, s, p, d, c); }
KOPS_POOL(max_pool1d) KOPS_POOL(max_pool2d) KOPS_POOL(max_pool3d)
#define KOPS_APOOL(N) template <int = 0> Tensor N(const Tensor& x, IntArrayRef k, IntArrayRef s = {}, IntArrayRef p = 0, bool c = false, bool i = true, std::optional<int64_t> v = {}) { return kops::call<Tensor>(#N, x, k, s, p, c, i, v); }
KOPS_APOOL(avg_pool1d) KOPS_APOOL(avg_pool2d) KOPS_APOOL(avg_pool3d)
template <int = 0> Tensor batch_norm(const Tensor& x, const std::optional<Tensor>& w, const std::optional<Tensor>& b, const std::optional<Tensor>& m, const std::optional<Tensor>& v, bool t, double mo, double e, bool c) { return kops::call<Tensor>("batch_norm", x, w, b, m, v, t, mo, e, c); } template <int = 0> Tensor layer_norm(const Tensor& x, IntArrayRef s, const std::optional<Tensor>& w = {}, const std::optional<Tensor>& b = {}, double e = 1e-5, bool = true) { return kops::call<Tensor>("layer_norm", x, s, w, b, e); } template <int = 0> Tensor group_norm(const Tensor& x, int64_t g, const std::optional<Tensor>& w = {}, const std::optional<Tensor>& b = {}, double e = 1e-5, bool = true) { return kops::call<Tensor>("group_norm", x, g, w, b, e); } template <int = 0> Tensor linear(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b = {}) { return kops::call<Tensor>("linear", x, w, b); }
struct NoGradGuard { NoGradGuard() {} }; struct AutoGradMode { AutoGradMode(bool) {} }; struct OptionalDeviceGuard { template <class T> OptionalDeviceGuard(const T&) {} }; struct DeviceGuard { DeviceGuard(Device) {} };
inline std::optional<Device> device_of(const Tensor& t) { return t.device(); } inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); } inline TensorOptions device(Device d) { return TensorOptions(d); } inline TensorOptions requires_grad(bool g = true) { return TensorOptions().requires_grad(g); }
struct Generator {}; inline void manual_seed(uint64_t) {}
namespace cuda { struct CUDAStream { cudaStream_t s = nullptr; operator cudaStream_t() const { return s; } cudaStream_t stream() const { return s; } void synchronize() const { cudaStreamSynchronize(s); } int device_index() const { return 0; } int64_t id() const { return 0; } Device device() const { return Device(kCUDA, 0); } };
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; } inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; } inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; } inline cudaDeviceProp* getCurrentDeviceProperties() { static cudaDeviceProp p; cudaGetDeviceProperties(&p, 0); return &p; } inline cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); } inline void setCurrentCUDAStream(CUDAStream) {} template <int = 0> bool is_available() { return true; } inline int current_device() { return 0; } inline int device_count() { return 1; } inline int warp_size() { return 32; }
struct CUDAGuard { template <class T> CUDAGuard(const T&) {} void set_index(int) {} }; struct OptionalCUDAGuard { template <class T> OptionalCUDAGuard(const T&) {} OptionalCUDAGuard() {} }; struct CUDAStreamGuard { CUDAStreamGuard(CUDAStream) {} }; template <class T, class U> auto ATenCeilDiv(T a, U b) { return (a + b - 1) / b; } }
template <class T> struct OpMathType { using type = T; }; template <> struct OpMathType<Half> { using type = float; }; template <> struct OpMathType<BFloat16> { using type = float; }; template <class T> using opmath_type = typename OpMathType<T>::type; template <class T, bool = true> using acc_type = std::conditional_t<std::is_same_v<T, double>, double, float>; template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }
namespace native { using at::ceil_div; }
}  // namespace at
namespace at::cuda { }
namespace c10 { using at::Tensor; using at::TensorList; using at::OptionalDeviceGuard; namespace cuda { using namespace at::cuda; } }
namespace c10::cuda { struct KopsUnused {}; }
namespace kops {
inline void Box::operator()(const Tensor& t) { if (t.defined()) add(1, t.m().id); else add(0, 0); }
inline void Box::operator()(ArrayRef<Tensor> a) { std::vector<int64_t> k; for (auto& t : a) k.push_back(t.m().id); keep.push_back(std::move(k)); add(9, 0, 0, keep.back().data(), a.n); }
inline void Box::operator()(const std::vector<Tensor>& a) { (*this)(ArrayRef<Tensor>(a)); }
inline void run(const char* name, Box& b, std::vector<KopsTensor>& out, KopsValue& s);
template <class R> R call(const char* name, Box& b) { std::vector<KopsTensor> o; KopsValue s{}; run(name, b, o, s); 
  if constexpr (std::is_same_v<R, Scalar>) { Scalar r; r.tag = s.tag; r.i = s.i; r.d = s.d; return r; }
  else if constexpr (std::is_same_v<R, Tensor>) { if (o.empty()) throw Error(std::string(name) + " gives no tensor"); return Tensor(o[0]); }
  else { R v; for (auto& t : o) v.push_back(Tensor(t)); return v; } }
}  // namespace kops
namespace torch { using namespace at; using at::Tensor; namespace indexing = at::indexing; namespace headeronly { using namespace c10; }
namespace cuda { using namespace at::cuda; inline void synchronize(int = -1) { cudaDeviceSynchronize(); } inline int device_count() { return 1; } template <int = 0> bool is_available() { return true; } }
namespace nn::functional { 
#define KOPS_NF(N) using at::N;
KOPS_NF(relu) KOPS_NF(softmax) KOPS_NF(linear) KOPS_NF(gelu) KOPS_NF(conv2d)
struct PadFuncOptions { std::vector<int64_t> v; PadFuncOptions(std::vector<int64_t> v) : v(v) {} template <class T> PadFuncOptions& mode(T) { return *this; } PadFuncOptions& value(double) { return *this; } }; template <int = 0> Tensor pad(const Tensor& t, const PadFuncOptions& o) { return kops::call<Tensor>("pad", t, o.v); } }
namespace autograd { using Variable = at::Tensor; using variable_list = std::vector<at::Tensor>; using tensor_list = variable_list; } template <class T> using Dict = std::map<std::string, T>; template <class T> constexpr ScalarType CppTypeToScalarType_v = c10::CppTypeToScalarType<T>::value; using c10::CppTypeToScalarType; template <class F> F wrap_pybind_function(F f) { return f; } }

// ---------------------------------------------------------------- checks and dispatch
#define TORCH_CHECK(c, ...) do { if (!(c)) ::c10::fail(__FILE__, __LINE__, #c, ##__VA_ARGS__); } while (0)
#define TORCH_CHECK_VALUE TORCH_CHECK
#define TORCH_CHECK_INDEX TORCH_CHECK
#define TORCH_CHECK_TYPE TORCH_CHECK
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT TORCH_CHECK
#define AT_CHECK TORCH_CHECK
#define TORCH_CHECK_EQ(a, b) TORCH_CHECK((a) == (b))
#define AT_ERROR(...) ::c10::fail(__FILE__, __LINE__, "", ##__VA_ARGS__, "")
#define TORCH_ERROR AT_ERROR
#define TORCH_WARN(...) (std::cerr << ::c10::str(__VA_ARGS__) << "\n")
#define TORCH_WARN_ONCE TORCH_WARN
#define C10_CUDA_CHECK(e) do { cudaError_t kops_e = (e); if (kops_e != cudaSuccess) throw ::c10::Error(std::string("CUDA error: ") + cudaGetErrorString(kops_e)); } while (0)
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define TORCH_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_ERROR_HANDLED(e) (e)
#define TORCH_API
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_LAUNCH_BOUNDS_1(n)
#define TORCH_EXTENSION_NAME kops_extension
#define CUDA_KERNEL_LOOP(i, n) for (int i = 0; i < (n); i++)
#define TORCH_VERSION_MAJOR 2
#define TORCH_VERSION_MINOR 7
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...) [&] { const auto& kops_t = TYPE; ::c10::ScalarType kops_st = kops_t; switch (kops_st) { __VA_ARGS__ default: ::c10::fail("", 0, "", NAME, " not implemented for '", ::c10::toString(kops_st), "'"); } }()
#define KOPS_CASE(E, T, ...) case E: { using scalar_t [[maybe_unused]] = T; return __VA_ARGS__(); }
template <c10::ScalarType> struct KopsCpp; namespace c10::impl { template <c10::ScalarType s> struct ScalarTypeToCPPType : KopsCpp<s> {}; template <c10::ScalarType s> using ScalarTypeToCPPTypeT = typename KopsCpp<s>::type; }
#define _(T, N, I) template <> struct KopsCpp<c10::ScalarType::N> { using type = T; };
KOPS_TYPES(_)
#undef _
#define AT_DISPATCH_CASE(E, ...) case E: { using scalar_t [[maybe_unused]] = typename KopsCpp<E>::type; return __VA_ARGS__(); }
#define KOPS_C(N, ...) AT_DISPATCH_CASE(::c10::ScalarType::N, __VA_ARGS__)
#define KOPS_FL(...) KOPS_C(Double, __VA_ARGS__) KOPS_C(Float, __VA_ARGS__)
#define KOPS_IN(...) KOPS_C(Byte, __VA_ARGS__) KOPS_C(Char, __VA_ARGS__) KOPS_C(Int, __VA_ARGS__) KOPS_C(Long, __VA_ARGS__) KOPS_C(Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES KOPS_FL
#define AT_DISPATCH_CASE_INTEGRAL_TYPES KOPS_IN
#define AT_DISPATCH_FLOATING_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__) KOPS_C(Half, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(A, T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_C(Half, __VA_ARGS__) KOPS_C(BFloat16, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_IN(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__) KOPS_IN(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(A, T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__) KOPS_IN(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, T, N, ...) AT_DISPATCH_SWITCH(T, N, KOPS_FL(__VA_ARGS__) KOPS_IN(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES AT_DISPATCH_FLOATING_TYPES
// ---------------------------------------------------------------- binding
namespace kops {
struct Default { KopsValue value{-1, 0, 0, 0, nullptr}; std::string text; };
struct Parameter { std::string name; Default value; };
struct Def { std::string name, signature, doc; std::vector<Parameter> parameters; void* f; void (*call)(void* f, const KopsValue* in, KopsTensor* const* t, KopsTensor* out, int* nout, KopsValue* result); };
inline std::vector<Def> defs; inline thread_local std::string message, text; inline thread_local const char* type = "RuntimeError"; inline thread_local std::vector<KopsValue> values;
struct WrongArgument : std::runtime_error { using runtime_error::runtime_error; };
inline void want(bool right) { if (!right) throw WrongArgument("incompatible function arguments"); }
template <class T> struct Un { static T get(const KopsValue& v, KopsTensor* const* t) {
  if constexpr (std::is_same_v<T, bool>) { want(v.tag == KOPS_BOOL); return v.i; }
  else if constexpr (std::is_floating_point_v<T>) { want(v.tag == KOPS_FLOAT || v.tag == KOPS_INT); return v.tag == KOPS_FLOAT ? T(v.d) : T(v.i); }
  else if constexpr (std::is_integral_v<T>) { want(v.tag == KOPS_INT || v.tag == KOPS_BOOL); return T(v.i); }
  else if constexpr (std::is_same_v<T, std::string>) { want(v.tag == KOPS_STRING); return std::string((const char*)v.p, v.n); }
  else if constexpr (std::is_same_v<T, std::vector<int64_t>>) { want(v.tag == KOPS_INTS); auto q = (const int64_t*)v.p; return T(q, q + v.n); }
  else if constexpr (std::is_same_v<T, ScalarType>) { want(v.tag == KOPS_DTYPE); return T(v.i); }
  else { static_assert(std::is_same_v<T, Tensor>, "an argument of this type cannot be given from Python"); want(v.tag == KOPS_TENSOR || v.tag == KOPS_NONE); return v.tag == KOPS_TENSOR ? Tensor(*t[v.i]) : Tensor(); } } };
template <class T> struct Un<std::optional<T>> { static std::optional<T> get(const KopsValue& v, KopsTensor* const* t) { if (!v.tag) return {}; return Un<T>::get(v, t); } };
template <> struct Un<std::vector<Tensor>> { static std::vector<Tensor> get(const KopsValue& v, KopsTensor* const* t) { want(v.tag == KOPS_TENSORS); std::vector<Tensor> r; for (int i = 0; i < v.n; i++) r.push_back(Tensor(*t[((const int64_t*)v.p)[i]])); return r; } };
struct Back { KopsTensor* out; int* n;
  KopsValue of(const Tensor& t) { if (!t.defined()) return {}; if (*n == KOPS_RESULTS) throw Error("too many tensors as results"); out[*n] = t.m(); table->op("retain", nullptr, 0, out + *n, nullptr, nullptr); return {KOPS_TENSOR, 0, (*n)++, 0, nullptr}; }
  template <class T> std::enable_if_t<std::is_arithmetic_v<T>, KopsValue> of(T x) { Scalar s(x); return {s.tag, 0, s.i, s.d, nullptr}; }
  KopsValue of(const std::string& s) { text = s; return {KOPS_STRING, int(text.size()), 0, 0, text.data()}; }
  KopsValue list(std::vector<KopsValue> v) { values = std::move(v); return {KOPS_TUPLE, int(values.size()), 0, 0, values.data()}; }
  template <class T> KopsValue of(const std::vector<T>& v) { std::vector<KopsValue> r; for (const auto& x : v) r.push_back(of(x)); return list(r); }
  template <class... T> KopsValue of(const std::tuple<T...>& v) { std::vector<KopsValue> r; std::apply([&](auto&... x) { (r.push_back(of(x)), ...); }, v); return list(r); }
  template <class A, class B> KopsValue of(const std::pair<A, B>& p) { return list({of(p.first), of(p.second)}); } };
template <class R, class... A, size_t... I> void thunk(R (*f)(A...), const KopsValue* in, KopsTensor* const* t, Back b, KopsValue* r, std::index_sequence<I...>) { std::tuple<std::decay_t<A>...> a{Un<std::decay_t<A>>::get(in[I], t)...}; if constexpr (std::is_void_v<R>) f(static_cast<A>(std::get<I>(a))...); else *r = b.of(f(static_cast<A>(std::get<I>(a))...)); }
template <class T> Default constant(const T& v) { Default d; if constexpr (std::is_arithmetic_v<T>) { Scalar s(v); d.value = {s.tag, 0, s.i, s.d, nullptr}; } else if constexpr (std::is_convertible_v<T, std::string>) { d.text = v; d.value.tag = KOPS_STRING; } else d.value.tag = KOPS_NONE; return d; }
template <class... A> struct Names { static constexpr int count = sizeof...(A); };
template <class R, class... A> Def& def(const char* name, R (*f)(A...)) { defs.push_back({name, __PRETTY_FUNCTION__, "", std::vector<Parameter>(sizeof...(A)), (void*)f, [](void* f, const KopsValue* in, KopsTensor* const* t, KopsTensor* out, int* nout, KopsValue* r) { *nout = 0; thunk((R(*)(A...))f, in, t, Back{out, nout}, r, std::index_sequence_for<A...>()); }}); return defs.back(); }
template <class F> struct Member : Member<decltype(&F::operator())> {}; template <class F, class R, class... A> struct Member<R (F::*)(A...) const> { using type = R (*)(A...); }; }
extern "C" {
inline __attribute__((used, visibility("default"))) void kops_open(KopsTable* t) { kops::table = t; }
inline __attribute__((used, visibility("default"))) int kops_count() { return int(kops::defs.size()); }
inline __attribute__((used, visibility("default"))) const char* kops_def_name(int i) { return kops::defs[i].name.c_str(); }
inline __attribute__((used, visibility("default"))) const char* kops_def_signature(int i) { return kops::defs[i].signature.c_str(); }
inline __attribute__((used, visibility("default"))) const char* kops_def_doc(int i) { return kops::defs[i].doc.c_str(); }
inline __attribute__((used, visibility("default"))) int kops_def_arguments(int i) { return int(kops::defs[i].parameters.size()); }
inline __attribute__((used, visibility("default"))) const char* kops_def_argument(int i, int k, KopsValue* v) { auto& p = kops::defs[i].parameters[k]; *v = p.value.value; if (v->tag == KOPS_STRING) { v->p = p.value.text.data(); v->n = int(p.value.text.size()); } return p.name.empty() ? nullptr : p.name.c_str(); }
inline __attribute__((used, visibility("default"))) const char* kops_call(int i, const KopsValue* in, KopsTensor* const* t, KopsTensor* out, int* nout, KopsValue* r) {
  *r = {}; kops::type = "RuntimeError";
  try { auto d = kops::defs[i]; d.call(d.f, in, t, out, nout, r); return nullptr; }
  catch (const kops::WrongArgument& e) { kops::type = "TypeError"; kops::message = e.what(); }
  catch (const c10::IndexError& e) { kops::type = "IndexError"; kops::message = e.what(); }
  catch (const c10::ValueError& e) { kops::type = "ValueError"; kops::message = e.what(); }
  catch (const std::exception& e) { kops::message = e.what(); } catch (...) { kops::message = "an exception of an unknown type"; }
  return kops::message.c_str(); }
inline __attribute__((used, visibility("default"))) const char* kops_error_type() { return kops::type; }
}
namespace pybind11 { struct arg { const char* n; kops::Default d; explicit arg(const char* n) : n(n) {} template <class T> arg& operator=(const T& v) { d = kops::constant(v); return *this; } arg& noconvert() { return *this; } arg& none(bool = true) { return *this; } }; struct kw_only {}; struct pos_only {}; struct none {}; struct dict {}; struct object {}; struct gil_scoped_release {}; template <class T> struct call_guard {}; template <class... A> struct init {};
struct module_ { int at = 0; void extra(kops::Def& d, const arg& a) { if (at < int(d.parameters.size())) d.parameters[at++] = {a.n, a.d}; } void extra(kops::Def& d, const char* doc) { d.doc = doc; } template <class T> void extra(kops::Def&, const T&) {}
template <class R, class... A, class... X> module_& def(const char* n, R (*f)(A...), const X&... x) { auto& d = kops::def(n, f); at = 0; (extra(d, x), ...); return *this; } template <class F, class... X, class = decltype(&F::operator())> module_& def(const char* n, F f, const X&... x) { return def(n, (typename kops::Member<F>::type)f, x...); } std::string& doc() { static std::string s; return s; } template <class T> void attr(T) {} }; using module = module_;
template <class... A> struct overload_cast_t { template <class R> constexpr auto operator()(R (*f)(A...)) const { return f; } }; template <class... A> constexpr overload_cast_t<A...> overload_cast{}; namespace literals { inline arg operator""_a(const char* s, size_t) { return arg(s); } } }
namespace py = pybind11;
namespace torch { using pybind11::arg; struct Library { template <class R, class... A> Library& def(const char* n, R (*f)(A...)) { kops::def(n, f); return *this; } Library& def(const char*) { return *this; } template <class R, class... A> Library& impl(const char* n, R (*f)(A...)) { kops::def(n, f); return *this; } template <class T> Library& impl(const char*, T) { return *this; } }; }
#define PYBIND11_MODULE(N, m) static void kops_bind_body(pybind11::module_&); namespace { struct KopsBind { KopsBind() { pybind11::module_ m_; kops_bind_body(m_); } } kops_bind_now; } static void kops_bind_body(pybind11::module_& m)
#define KOPS_CAT2(a, b) a##b
#define KOPS_CAT(a, b) KOPS_CAT2(a, b)
#define KOPS_LIB(f, m) static void f(torch::Library&); namespace { struct KOPS_CAT(f, T) { KOPS_CAT(f, T)() { torch::Library l; f(l); } } KOPS_CAT(f, now); } static void f(torch::Library& m)
#define TORCH_LIBRARY(N, m) KOPS_LIB(KOPS_CAT(kops_lib_, __LINE__), m)
#define TORCH_LIBRARY_FRAGMENT TORCH_LIBRARY
#define TORCH_LIBRARY_IMPL(N, K, m) KOPS_LIB(KOPS_CAT(kops_lib_, __LINE__), m)
#define TORCH_FN(f) f
namespace kops {
inline void run(const char* n, Box& b, std::vector<KopsTensor>& out, KopsValue& s) { KopsTensor t[KOPS_RESULTS]; int k = 0; table->op(n, b.v.data(), int(b.v.size()), t, &k, &s); if (auto e = table->error()) throw Error(e); out.assign(t, t + k); }
}
