// torch's AT_DISPATCH_ macros: a switch over a ScalarType whose cases run one lambda with scalar_t as the C++ type.
#pragma once
#include <kops/ops.h>

namespace kops
{
// Older code dispatches on Tensor::type().
inline c10::ScalarType dispatch_type(c10::ScalarType type)
{
    return type;
}
inline c10::ScalarType dispatch_type(const at::DeprecatedTypeProperties &type)
{
    return type.scalarType();
}
} // namespace kops

#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                                            \
    [&] {                                                                                                              \
        const ::c10::ScalarType kops_type = ::kops::dispatch_type(TYPE);                                               \
        switch (kops_type) {                                                                                           \
            __VA_ARGS__                                                                                                \
        default:                                                                                                       \
            ::kops::fail<::c10::NotImplementedError>(                                                                  \
                ::c10::str('"', NAME, "\" not implemented for '", ::c10::toString(kops_type), "'"));                   \
        }                                                                                                              \
    }()
#define AT_PRIVATE_CASE_TYPE_USING_HINT(TYPE, HINT, ...)                                                               \
    case TYPE: {                                                                                                       \
        using HINT [[maybe_unused]] = ::c10::impl::ScalarTypeToCPPTypeT<TYPE>;                                         \
        return __VA_ARGS__();                                                                                          \
    }
#define AT_DISPATCH_CASE(TYPE, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(TYPE, scalar_t, __VA_ARGS__)
#define KOPS_CASE(NAME, ...)        AT_DISPATCH_CASE(::c10::ScalarType::NAME, __VA_ARGS__)

// Cases of the kinds of types.
#define AT_DISPATCH_CASE_FLOATING_TYPES(...)         KOPS_CASE(Double, __VA_ARGS__) KOPS_CASE(Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...) KOPS_CASE(Half, __VA_ARGS__) KOPS_CASE(BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_COMPLEX_TYPES(...)          KOPS_CASE(ComplexDouble, __VA_ARGS__) KOPS_CASE(ComplexFloat, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)                                                                           \
    KOPS_CASE(Byte, __VA_ARGS__)                                                                                       \
    KOPS_CASE(Char, __VA_ARGS__) KOPS_CASE(Int, __VA_ARGS__) KOPS_CASE(Long, __VA_ARGS__) KOPS_CASE(Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...)                                                                  \
    AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) KOPS_CASE(Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_AND_COMPLEX_TYPES(...)                                                               \
    AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_COMPLEX_TYPES(__VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...)                                                                                \
    AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX(...)                                                                    \
    AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_COMPLEX_TYPES(__VA_ARGS__)

// Cases of the types that a macro's name adds with _AND, _AND2 and so on.
#define KOPS_AND1(A, ...)                AT_DISPATCH_CASE(A, __VA_ARGS__)
#define KOPS_AND2(A, B, ...)             KOPS_AND1(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__)
#define KOPS_AND3(A, B, C, ...)          KOPS_AND2(A, B, __VA_ARGS__) AT_DISPATCH_CASE(C, __VA_ARGS__)
#define KOPS_AND4(A, B, C, D, ...)       KOPS_AND3(A, B, C, __VA_ARGS__) AT_DISPATCH_CASE(D, __VA_ARGS__)
#define KOPS_AND5(A, B, C, D, E, ...)    KOPS_AND4(A, B, C, D, __VA_ARGS__) AT_DISPATCH_CASE(E, __VA_ARGS__)
#define KOPS_AND6(A, B, C, D, E, F, ...) KOPS_AND5(A, B, C, D, E, __VA_ARGS__) AT_DISPATCH_CASE(F, __VA_ARGS__)

#define KOPS_DISPATCH(CASES, TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__))
#define KOPS_DISPATCH1(CASES, A, TYPE, NAME, ...)                                                                      \
    AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__) KOPS_AND1(A, __VA_ARGS__))
#define KOPS_DISPATCH2(CASES, A, B, TYPE, NAME, ...)                                                                   \
    AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__) KOPS_AND2(A, B, __VA_ARGS__))
#define KOPS_DISPATCH3(CASES, A, B, C, TYPE, NAME, ...)                                                                \
    AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__) KOPS_AND3(A, B, C, __VA_ARGS__))
#define KOPS_DISPATCH4(CASES, A, B, C, D, TYPE, NAME, ...)                                                             \
    AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__) KOPS_AND4(A, B, C, D, __VA_ARGS__))
#define KOPS_DISPATCH5(CASES, A, B, C, D, E, TYPE, NAME, ...)                                                          \
    AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__) KOPS_AND5(A, B, C, D, E, __VA_ARGS__))
#define KOPS_DISPATCH6(CASES, A, B, C, D, E, F, TYPE, NAME, ...)                                                       \
    AT_DISPATCH_SWITCH(TYPE, NAME, CASES(__VA_ARGS__) KOPS_AND6(A, B, C, D, E, F, __VA_ARGS__))

#define AT_DISPATCH_FLOATING_TYPES(...)          KOPS_DISPATCH(AT_DISPATCH_CASE_FLOATING_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(...) KOPS_DISPATCH(AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND(...)      KOPS_DISPATCH1(AT_DISPATCH_CASE_FLOATING_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(...)     KOPS_DISPATCH2(AT_DISPATCH_CASE_FLOATING_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND3(...)     KOPS_DISPATCH3(AT_DISPATCH_CASE_FLOATING_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND4(...)     KOPS_DISPATCH4(AT_DISPATCH_CASE_FLOATING_TYPES, __VA_ARGS__)
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(...)  KOPS_DISPATCH(AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES, __VA_ARGS__)
#define AT_DISPATCH_COMPLEX_TYPES(...)           KOPS_DISPATCH(AT_DISPATCH_CASE_COMPLEX_TYPES, __VA_ARGS__)
#define AT_DISPATCH_COMPLEX_TYPES_AND(...)       KOPS_DISPATCH1(AT_DISPATCH_CASE_COMPLEX_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(...)                                                                    \
    KOPS_DISPATCH(AT_DISPATCH_CASE_FLOATING_AND_COMPLEX_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND1(...)                                                               \
    KOPS_DISPATCH1(AT_DISPATCH_CASE_FLOATING_AND_COMPLEX_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(...)                                                               \
    KOPS_DISPATCH2(AT_DISPATCH_CASE_FLOATING_AND_COMPLEX_TYPES, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(...)                                                               \
    KOPS_DISPATCH3(AT_DISPATCH_CASE_FLOATING_AND_COMPLEX_TYPES, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES(...)             KOPS_DISPATCH(AT_DISPATCH_CASE_INTEGRAL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES_AND(...)         KOPS_DISPATCH1(AT_DISPATCH_CASE_INTEGRAL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES(...)                  KOPS_DISPATCH(AT_DISPATCH_CASE_ALL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND(...)              KOPS_DISPATCH1(AT_DISPATCH_CASE_ALL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND2(...)             KOPS_DISPATCH2(AT_DISPATCH_CASE_ALL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND3(...)             KOPS_DISPATCH3(AT_DISPATCH_CASE_ALL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND4(...)             KOPS_DISPATCH4(AT_DISPATCH_CASE_ALL_TYPES, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_HALF(...)         KOPS_DISPATCH1(AT_DISPATCH_CASE_ALL_TYPES, ::c10::kHalf, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX(...)      KOPS_DISPATCH(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND(...)  KOPS_DISPATCH1(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(...) KOPS_DISPATCH2(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(...) KOPS_DISPATCH3(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND4(...) KOPS_DISPATCH4(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND5(...) KOPS_DISPATCH5(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND6(...) KOPS_DISPATCH6(AT_DISPATCH_CASE_ALL_TYPES_AND_COMPLEX, __VA_ARGS__)

#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...)                                                                       \
    AT_DISPATCH_SWITCH(TYPE, NAME,                                                                                     \
                       AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Int, index_t, __VA_ARGS__)                   \
                           AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Long, index_t, __VA_ARGS__))

// AT_DISPATCH_V2(type, name, AT_WRAP(lambda), types…), where AT_EXPAND(AT_FLOATING_TYPES) stands for a kind of types.
#define AT_WRAP(...)                __VA_ARGS__
#define AT_EXPAND(...)              __VA_ARGS__
#define AT_FLOATING_TYPES           ::c10::kDouble, ::c10::kFloat
#define AT_INTEGRAL_TYPES           ::c10::kByte, ::c10::kChar, ::c10::kInt, ::c10::kLong, ::c10::kShort
#define AT_ALL_TYPES                AT_INTEGRAL_TYPES, AT_FLOATING_TYPES
#define AT_COMPLEX_TYPES            ::c10::kComplexDouble, ::c10::kComplexFloat
#define AT_ALL_TYPES_AND_COMPLEX    AT_ALL_TYPES, AT_COMPLEX_TYPES
#define AT_FLOAT8_TYPES             ::c10::kFloat8_e5m2, ::c10::kFloat8_e4m3fn
#define AT_BAREBONES_UNSIGNED_TYPES ::c10::kUInt16, ::c10::kUInt32, ::c10::kUInt64
#define AT_INTEGRAL_TYPES_V2        AT_INTEGRAL_TYPES, AT_BAREBONES_UNSIGNED_TYPES
#define KOPS_SCAN(...)              KOPS_SCAN1(KOPS_SCAN1(KOPS_SCAN1(__VA_ARGS__)))
#define KOPS_SCAN1(...)             KOPS_SCAN2(KOPS_SCAN2(KOPS_SCAN2(__VA_ARGS__)))
#define KOPS_SCAN2(...)             KOPS_SCAN3(KOPS_SCAN3(KOPS_SCAN3(__VA_ARGS__)))
#define KOPS_SCAN3(...)             __VA_ARGS__
#define KOPS_EMPTY()
#define KOPS_CASES_NAME() KOPS_CASES
#define KOPS_CASES(BODY, TYPE, ...)                                                                                    \
    AT_DISPATCH_CASE(TYPE, KOPS_UNWRAP BODY)                                                                           \
    __VA_OPT__(KOPS_CASES_NAME KOPS_EMPTY()()(BODY, __VA_ARGS__))
#define KOPS_UNWRAP(...)                      __VA_ARGS__
#define KOPS_V2(TYPE, NAME, BODY, ...)        AT_DISPATCH_SWITCH(TYPE, NAME, KOPS_SCAN(KOPS_CASES(BODY, __VA_ARGS__)))
#define AT_DISPATCH_V2(TYPE, NAME, BODY, ...) KOPS_V2(TYPE, NAME, (BODY), __VA_ARGS__)
