// Checks and exceptions with torch's names and texts.
#pragma once
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace std
{
// Lists in messages: torch writes the first 100 elements.
template <class T> ostream &operator<<(ostream &out, const vector<T> &list)
{
    for (size_t i = 0; i < list.size() && i < 100; i++)
        out << (i ? " " : "") << list[i];
    return out << (list.size() > 100 ? " ..." : "");
}
} // namespace std

namespace c10
{
class Error : public std::exception
{
    std::string text;

  public:
    explicit Error(std::string text) : text(std::move(text))
    {
    }
    const char *what() const noexcept override
    {
        return text.c_str();
    }
    // The exception's name in Python.
    virtual const char *python() const
    {
        return "RuntimeError";
    }
    const char *what_without_backtrace() const
    {
        return what();
    }
    std::string msg() const
    {
        return text;
    }
};

#define KOPS_ERROR(NAME, PYTHON)                                                                                       \
    class NAME : public Error                                                                                          \
    {                                                                                                                  \
      public:                                                                                                          \
        using Error::Error;                                                                                            \
        const char *python() const override                                                                            \
        {                                                                                                              \
            return PYTHON;                                                                                             \
        }                                                                                                              \
    }
KOPS_ERROR(IndexError, "IndexError");
KOPS_ERROR(ValueError, "ValueError");
KOPS_ERROR(TypeError, "TypeError");
KOPS_ERROR(NotImplementedError, "NotImplementedError");
KOPS_ERROR(KeyError, "KeyError");
KOPS_ERROR(AttributeError, "AttributeError");
KOPS_ERROR(LinAlgError, "RuntimeError");
#undef KOPS_ERROR

template <class... A> std::string str(const A &...parts)
{
    std::ostringstream text;
    ((text << parts), ...);
    return text.str();
}
inline std::string str(const std::string &text)
{
    return text;
}
inline std::string str(const char *text)
{
    return text;
}
} // namespace c10

namespace kops
{
template <class E> [[noreturn]] void fail(const std::string &message)
{
    throw E(message);
}

// The text of a failed check: the caller's, or torch's own for a check without one.
inline std::string check_text(const char *condition)
{
    return std::string("Expected ") + condition +
           " to be true, but got false.  (Could this error message be improved?  "
           "If so, please report an enhancement request to PyTorch.)";
}
template <class... A> std::string check_text(const char *, const A &...parts)
{
    return c10::str(parts...);
}
inline std::string assert_text(const char *condition, const char *file, int line, const std::string &message = "")
{
    return c10::str(condition, " INTERNAL ASSERT FAILED at \"", file, "\":", line, ", please report a bug to PyTorch. ",
                    message);
}
} // namespace kops

// As torch's, checks are complete statements: a semicolon behind them is optional.
#define KOPS_CHECK(ERROR, CONDITION, ...)                                                                              \
    if (!(CONDITION)) {                                                                                                \
        ::kops::fail<ERROR>(::kops::check_text(#CONDITION, ##__VA_ARGS__));                                            \
    }

#define TORCH_CHECK(CONDITION, ...)                 KOPS_CHECK(::c10::Error, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(CONDITION, ...)           KOPS_CHECK(::c10::IndexError, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(CONDITION, ...)           KOPS_CHECK(::c10::ValueError, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(CONDITION, ...)            KOPS_CHECK(::c10::TypeError, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_LINALG(CONDITION, ...)          KOPS_CHECK(::c10::LinAlgError, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(CONDITION, ...) KOPS_CHECK(::c10::NotImplementedError, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_WITH(ERROR, CONDITION, ...)     KOPS_CHECK(::c10::ERROR, CONDITION, ##__VA_ARGS__)
#define TORCH_CHECK_IF_NOT_ON_CUDA(CONDITION, ...)
#define AT_CHECK(CONDITION, ...) KOPS_CHECK(::c10::Error, CONDITION, ##__VA_ARGS__)

#define TORCH_INTERNAL_ASSERT(CONDITION, ...)                                                                          \
    if (!(CONDITION)) {                                                                                                \
        ::kops::fail<::c10::Error>(                                                                                    \
            ::kops::assert_text(#CONDITION, __FILE__, __LINE__, ::c10::str("", ##__VA_ARGS__)));                       \
    }
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#define AT_ASSERT(...)                        TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#define AT_ASSERTM(...)                       TORCH_INTERNAL_ASSERT(__VA_ARGS__)

#define KOPS_COMPARE(A, OPERATOR, B)                                                                                   \
    do {                                                                                                               \
        const auto &kops_a = (A);                                                                                      \
        const auto &kops_b = (B);                                                                                      \
        if (!(kops_a OPERATOR kops_b))                                                                                 \
            ::kops::fail<::c10::Error>(                                                                                \
                ::c10::str("Check failed: " #A " " #OPERATOR " " #B " (", kops_a, " vs. ", kops_b, "). "));            \
    } while (0)
#define TORCH_CHECK_EQ(A, B) KOPS_COMPARE(A, ==, B)
#define TORCH_CHECK_NE(A, B) KOPS_COMPARE(A, !=, B)
#define TORCH_CHECK_LT(A, B) KOPS_COMPARE(A, <, B)
#define TORCH_CHECK_LE(A, B) KOPS_COMPARE(A, <=, B)
#define TORCH_CHECK_GT(A, B) KOPS_COMPARE(A, >, B)
#define TORCH_CHECK_GE(A, B) KOPS_COMPARE(A, >=, B)

#define AT_ERROR(...)           ::kops::fail<::c10::Error>(::c10::str(__VA_ARGS__))
#define C10_THROW_ERROR(E, ...) ::kops::fail<::c10::E>(::c10::str(__VA_ARGS__))
#define AT_WARN(...)            TORCH_WARN(__VA_ARGS__)
#define TORCH_WARN(...)         (std::cerr << "Warning: " << ::c10::str(__VA_ARGS__) << '\n')
#define TORCH_WARN_ONCE(...)                                                                                           \
    do {                                                                                                               \
        static const bool kops_warned = (TORCH_WARN(__VA_ARGS__), true);                                               \
        (void)kops_warned;                                                                                             \
    } while (0)
#define TORCH_WARN_DEPRECATION(...) TORCH_WARN_ONCE(__VA_ARGS__)

// Macros of c10/macros/Macros.h that mean nothing for a host compiler, or a builtin.
#define TORCH_API
#define TORCH_CUDA_CU_API
#define TORCH_CUDA_CPP_API
#define C10_API
#define C10_EXPORT
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_HOST
#define C10_LAUNCH_BOUNDS_1(...)
#define C10_LAUNCH_BOUNDS_2(...)
#define C10_UNUSED              [[maybe_unused]]
#define C10_NODISCARD           [[nodiscard]]
#define C10_ALWAYS_INLINE       inline
#define C10_NOINLINE            __attribute__((noinline))
#define C10_RESTRICT            __restrict__
#define C10_WARP_SIZE           32
#define C10_LIKELY(CONDITION)   __builtin_expect(static_cast<bool>(CONDITION), 1)
#define C10_UNLIKELY(CONDITION) __builtin_expect(static_cast<bool>(CONDITION), 0)
#define GPU_LAMBDA
#define KOPS_JOIN_(A, B) A##B
#define KOPS_JOIN(A, B)  KOPS_JOIN_(A, B)
